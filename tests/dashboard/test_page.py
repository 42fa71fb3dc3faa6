"""The page in a real browser: every view, its numbers, links that restore it, and hostile content."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import polars as pl
import pytest

import stepwell
from stepwell._core.text import duration, number, percent
from stepwell.analysis.compare import compare
from stepwell.analysis.report import report
from stepwell.dashboard import catalogue
from stepwell.dashboard.html import notebook_html, write_html
from stepwell.testing.simulate import make_plan, simulate
from tests.dashboard.browser import VIEWS, Browser, chromium
from tests.dashboard.serving import Server, served
from tests.harness import run_script, start_script, wait_until

WIDTHS = (380, 1024, 1680)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("run", ["job", "small"])
def test_every_view_opens(browser: Browser, server: Server, run: str, view: str) -> None:
    """No error, nothing from elsewhere, no barrier, no sideways scrolling."""
    with browser.page(f"{server.link}#/run/{run}/{view}") as page:
        page.settle()
        assert page.tab.locator("h1").inner_text() == {"job": "simulated", "small": "small"}[run]
        assert len(page.text) > 100
        page.picture(f"{run}-{view or 'overview'}")


def test_the_list_of_runs(browser: Browser, server: Server) -> None:
    with browser.page(server.link) as page:
        page.settle()
        page.tab.get_by_text("simulated").first.wait_for()
        goodput = percent(server_goodput(server))
        page.tab.get_by_text(goodput, exact=True).wait_for()
        page.picture("runs")
        page.tab.get_by_role("link", name="small").first.click()
        page.tab.get_by_role("heading", name="small", level=1).wait_for()


def server_goodput(server: Server) -> float:
    runs = wait_until(lambda: (a := server.get("/api/runs"))["pending"] == 0 and a)["runs"]
    return float(next(run for run in runs if run["id"] == "job")["goodput"])


def test_the_overview_has_the_words_and_numbers_of_the_report(
    browser: Browser, server: Server, runs: Path
) -> None:
    result = report(stepwell.open_run(runs / "job"))
    with browser.page(f"{server.link}#/run/job") as page:
        page.settle()
        for finding in result.findings:
            assert finding.sentence in page.text
            assert finding.advice in page.text
        for line in result.time:
            cells = page.tab.locator("tr", has=page.tab.get_by_text(line.phase, exact=True))
            row = cells.first.inner_text()
            assert duration(line.ns) in row
            assert percent(line.share) in row
        assert duration(result.wall_ns) in page.text
        assert percent(result.goodput or 0) in page.text
        page.tab.get_by_role("button", name="Evidence").first.click()


def test_metrics_show_last_and_best_values(browser: Browser, server: Server) -> None:
    with browser.page(f"{server.link}#/run/small/metrics") as page:
        page.settle()
        assert number(1 / 50) in page.text
        assert number(49 / 50) in page.text
        chart = page.tab.get_by_role("img").first
        assert chart.get_attribute("aria-label")


def test_each_end_of_the_window_works_alone(browser: Browser, server: Server) -> None:
    with browser.page(f"{server.link}#/run/small/metrics") as page:
        page.settle()
        first, last = page.tab.get_by_label("From step"), page.tab.get_by_label("To step")
        first.fill("10")
        first.press("Tab")
        page.tab.wait_for_function("() => location.hash.endsWith('?from=10')")
        last.fill("5")
        last.press("Tab")
        page.tab.get_by_text("From must be less than to.").wait_for()
        assert (first.input_value(), last.input_value()) == ("10", "5")
        last.fill("20")
        last.press("Tab")
        page.tab.wait_for_function("() => location.hash.endsWith('?from=10&to=20')")
        first.fill("")
        first.press("Tab")
        page.tab.wait_for_function("() => location.hash.endsWith('?to=20')")


def test_a_link_restores_the_view(browser: Browser, server: Server) -> None:
    """State is in the address: another window with the same address shows the same."""
    with browser.page(f"{server.link}#/run/small/timeline") as page:
        page.settle()
        before = page.tab.get_by_role("button", name="Zoom in").first
        before.click()
        before.click()
        page.tab.wait_for_function("() => location.hash.includes('start=')")
        page.settle()
        route = page.tab.evaluate("() => location.hash")
        shown = page.tab.locator(".timeline-zoom").inner_text()
    with browser.page(f"{server.link}{route}") as again:
        again.settle()
        assert again.tab.evaluate("() => location.hash") == route
        assert again.tab.locator(".timeline-zoom").inner_text() == shown


def test_a_span_is_found_and_explained(browser: Browser, server: Server, runs: Path) -> None:
    spans = stepwell.open_run(runs / "small").spans().filter(pl.col("name") == "forward").collect()
    with browser.page(f"{server.link}#/run/small/timeline") as page:
        page.settle()
        page.tab.get_by_placeholder("Find spans").fill("forward")
        page.tab.get_by_role("button", name="Find").click()
        panel = page.tab.get_by_role("region", name="Search results")
        panel.wait_for()
        page.settle()
        assert str(spans.height) in panel.inner_text()
        panel.locator(".hits button").first.click()
        page.settle()
        detail = page.tab.get_by_role("region", name="Span forward")
        detail.wait_for()
        assert "batch" in detail.inner_text()


def test_runs_are_compared(browser: Browser, server: Server, runs: Path) -> None:
    result = compare([stepwell.open_run(runs / "small"), stepwell.open_run(runs / "job")])
    with browser.page(f"{server.link}#/compare?run=small&run=job") as page:
        page.settle()
        for sentence in result.summary:
            assert sentence in page.text
        page.picture("compare")


def test_by_keyboard(browser: Browser, server: Server) -> None:
    """The tabs move with arrow keys, and the focus is visible."""
    with browser.page(f"{server.link}#/run/job") as page:
        page.settle()
        page.tab.get_by_role("tab", name="Overview").focus()
        page.tab.keyboard.press("ArrowRight")
        page.tab.keyboard.press("Enter")
        page.settle()
        assert "metrics" in page.tab.evaluate("() => location.hash")
        outline = page.tab.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_in_light_and_dark(
    browser: Browser, server: Server, width: int, scheme: str
) -> None:
    with browser.page(server.link, width, scheme) as page:
        page.settle()
        page.picture(f"runs-{width}-{scheme}")
        for view in VIEWS:
            page.go(f"run/job/{view}")
            page.picture(f"job-{view or 'overview'}-{width}-{scheme}")
            page.check()
        page.go("compare?run=small&run=job")
        page.picture(f"compare-{width}-{scheme}")


def test_an_empty_folder_says_how_to_record(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path) as server, browser.page(server.link) as page:
        page.settle()
        assert "stepwell.init" in page.text or "stepwell.watch" in page.text
        page.picture("empty")


EVIL = '"><img src=x onerror=alert(1)><script>alert(2)</script>{{3}}javascript:alert(4)'


def test_hostile_names_and_values_stay_text(browser: Browser, tmp_path: Path) -> None:
    with stepwell.init(EVIL, dir=tmp_path, run_id="evil", config={EVIL: EVIL}, tags=[EVIL]) as run:
        for step in range(30):
            run.set_step(step)
            with run.span(EVIL, **{"key": EVIL}):
                run.log({EVIL: 1.0 / (step + 1), f"train/{EVIL}": step})
                run.event(EVIL, text=EVIL)
        run.log({"note": stepwell.Text(EVIL)})
        file = tmp_path / "evil.svg"
        file.write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(5)</script></svg>")
        run.artifact(file)
        run.summary[EVIL] = EVIL
    html = write_html(stepwell.open_run(tmp_path / "evil"), tmp_path)
    with served(tmp_path) as server, browser.page(server.link) as page:
        page.settle()
        assert EVIL in page.text
        for view in VIEWS:
            page.go(f"run/evil/{view}")
            assert EVIL[:20] in page.text
            assert page.tab.locator("img[src=x]").count() == 0
            page.check(axe=False)
    with browser.page(html.as_uri(), offline=True) as page:
        page.settle()
        assert EVIL in page.text
        assert page.tab.locator("img[src=x]").count() == 0


def test_one_file_without_a_server(browser: Browser, runs: Path, tmp_path: Path) -> None:
    run = stepwell.open_run(runs / "job")
    result = report(run)
    with browser.page(write_html(run, tmp_path).as_uri(), offline=True) as page:
        page.settle()
        assert result.findings[0].sentence in page.text
        for view in VIEWS:
            page.go(f"run/job/{view}")
            page.picture(f"file-{view or 'overview'}")
            page.check()


def test_in_a_notebook(browser: Browser, runs: Path, tmp_path: Path) -> None:
    """The page works in the frame of a cell, and its links stay inside that frame."""
    notebook = tmp_path / "notebook.html"
    frame = notebook_html(stepwell.open_run(runs / "small"), 700)
    notebook.write_text(
        f"<!doctype html><html lang=en><title>cell</title><h1>cell</h1>{frame}</html>"
    )
    with browser.page(notebook.as_uri(), offline=True, axe=False) as page:
        inside = page.tab.frame_locator("iframe")
        inside.get_by_role("heading", name="small", level=1).wait_for()
        inside.get_by_role("tab", name="Metrics").click()
        inside.get_by_text("train/loss").first.wait_for()
        assert page.tab.locator("h1").inner_text() == "cell"


TRAINING = """
import sys, stepwell
run = stepwell.init("live", dir=sys.argv[1], run_id="live", config={"max_steps": 100})
for step, line in enumerate(sys.stdin):
    run.set_step(step)
    with run.span("step"), run.span("forward"):
        run.log({"train/loss": float(line)})
        print(step, flush=True)
        if line.startswith("0.125"):
            sys.stdin.readline()
run.finish()
"""


class LiveProgram:
    """A training that waits for the loss of each step."""

    def __init__(self, program: Popen[str]) -> None:
        self.process = program
        for step in range(5):
            self.train(4.0 - step / 4)

    def train(self, loss: float) -> None:
        """Make a step with this loss, and wait until it is logged."""
        self.process.stdin.write(f"{loss}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()


@contextlib.contextmanager
def live_program(folder: Path) -> Iterator[LiveProgram]:
    with start_script(TRAINING, folder, stdin=PIPE, stdout=PIPE, text=True) as program:
        yield LiveProgram(program)


def test_a_live_run_and_its_death(browser: Browser, tmp_path: Path) -> None:
    """A new value appears without a reload; after kill -9 the page says what the run was doing."""
    with served(tmp_path) as server, live_program(tmp_path) as live:
        wait_until(lambda: server.ask("/api/runs/live").status == 200)
        with browser.page(f"{server.link}#/run/live") as page:
            page.tab.get_by_role("heading", name="live", level=1).wait_for()
            page.tab.get_by_text("running").first.wait_for()
            live.train(0.734)
            page.tab.get_by_text("0.734").first.wait_for()
            page.tab.get_by_text("step 5").first.wait_for()
            page.picture("live")
            live.train(0.125)
            os.kill(live.process.pid, signal.SIGKILL)
            live.process.wait()
            page.tab.get_by_text("killed").first.wait_for()
        with browser.page(f"{server.link}#/run/live") as page:
            page.settle()
            page.tab.get_by_text("killed inside forward").first.wait_for()
            page.picture("killed")


def test_a_value_that_comes_just_after_an_answer(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps answers for a while. The page asks again, although the run is quiet by then."""
    monkeypatch.setattr(catalogue, "FRESH_S", 4.0)
    with served(tmp_path) as server, live_program(tmp_path) as live:
        wait_until(lambda: server.ask("/api/runs/live").status == 200)
        with browser.page(f"{server.link}#/run/live") as page:
            page.settle()
            page.tab.get_by_text("running").first.wait_for()
            page.tab.wait_for_timeout(1500)
            assert server.ask("/api/runs/live").headers["retry-after"] in set("1234")
            live.train(0.734)
            page.tab.get_by_text("0.734").first.wait_for(timeout=30_000)
        live.process.kill()


@pytest.mark.full
def test_diagnostics_of_a_model(browser: Browser, tmp_path: Path) -> None:
    example = Path(__file__).parent.parent.parent / "examples" / "diagnostics.py"
    env = {**os.environ, "STEPWELL_DIR": str(tmp_path), "STEPWELL_QUIET": "1"}
    run_script(example, env=env, cwd=tmp_path, check=True)
    with served(tmp_path) as server, browser.page(server.link) as page:
        run_id = server.get("/api/runs")["runs"][0]["id"]
        page.go(f"run/{run_id}/model")
        page.tab.get_by_role("img", name="2 rows").first.wait_for()
        assert "Learning rate" in page.text
        page.picture("model")


@pytest.mark.full
def test_256_ranks(browser: Browser, tmp_path: Path) -> None:
    simulate(tmp_path / "wide", make_plan(256, 200))
    with served(tmp_path) as server, browser.page(f"{server.link}#/run/wide/ranks") as page:
        page.settle()
        assert "256" in page.text
        page.picture("ranks-256")
        page.go("run/wide/timeline")
        page.picture("timeline-256")
