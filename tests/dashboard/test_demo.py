"""The run of ``stepwell demo`` in a real browser: each view is opened and used, and the page beside it."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell
from stepwell._core.text import duration, number, percent
from stepwell.analysis.report import report
from stepwell.reading import RecordedRun
from tests.dashboard.browser import VIEWS, Browser, Page, chromium
from tests.dashboard.serving import Server, served
from tests.harness import run_stepwell

pytestmark = [pytest.mark.full, pytest.mark.torch]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """An epoch or more of the demo, each with 60 steps, two DataLoader workers and a validation."""
    folder = tmp_path_factory.mktemp("demo")
    done = run_stepwell("demo", "--seconds", "3", cwd=folder, STEPWELL_RUNTIME="0.5")
    assert done.returncode == 0, done.stderr
    (run,) = stepwell.list_runs(folder / "runs")
    return run


@pytest.fixture(scope="module")
def server(demo: RecordedRun) -> Iterator[Server]:
    with served(demo.path.parent) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def test_the_list_leads_to_the_run(browser: Browser, server: Server, demo: RecordedRun) -> None:
    with browser.page(server.link) as page:
        page.settle()
        page.tab.get_by_role("searchbox", name="Filter runs").fill("optimizer=adamw")
        row = page.tab.locator("tr.run-row")
        assert row.count() == 1
        assert str(steps_of(demo) - 1) in row.inner_text().split()
        row.click()
        page.settle()
        assert page.tab.evaluate("() => location.hash") == f"#/run/{demo.id}"


def test_the_overview_says_what_the_command_printed(
    browser: Browser, server: Server, demo: RecordedRun
) -> None:
    result = report(demo)
    with opened(browser, server, demo, "") as page:
        assert result.steps is not None
        for text in (
            duration(result.wall_ns),
            duration(result.steps.p50_ns),
            str(steps_of(demo)),
        ):
            assert text in page.text
        for line in result.time:
            if line.phase != "other" and line.share >= 0.001:
                cells = page.tab.locator("tr", has=page.tab.get_by_text(line.phase, exact=True))
                row = cells.first.inner_text()
                assert duration(line.ns) in row
                assert percent(line.share) in row
        for finding in result.findings:
            assert finding.sentence in page.text
        page.tab.get_by_role("link", name="val/accuracy").click()
        page.settle()
        assert page.tab.get_by_role("figure").count() == 1


def test_metrics_are_searched_smoothed_and_zoomed(
    browser: Browser, server: Server, demo: RecordedRun
) -> None:
    with opened(browser, server, demo, "metrics") as page:
        charts = page.tab.get_by_role("figure")
        assert charts.count() == 3
        page.tab.get_by_role("searchbox", name="Search metrics").fill("loss")
        page.tab.get_by_text("1 chart", exact=True).first.wait_for()
        assert charts.count() == 1
        page.tab.get_by_label("Smoothing").fill("0.9")
        page.tab.get_by_label("Log scale").check()
        box = page.tab.locator(".u-over").bounding_box()
        drag(page, box["x"] + box["width"] * 0.25, box["x"] + box["width"] * 0.5, box["y"] + 30)
        page.tab.wait_for_function("() => location.hash.includes('from=')")
        page.settle()
        state = dict(pair.split("=") for pair in query(page).split("&"))
        assert {key: state[key] for key in ("q", "smooth", "log")} == {
            "q": "loss",
            "smooth": "0.9",
            "log": "1",
        }
        last = steps_of(demo) - 1
        assert 0.2 * last < float(state["from"]) < 0.3 * last
        assert 0.45 * last < float(state["to"]) < 0.55 * last
        page.tab.locator(".u-over").dblclick()
        page.tab.wait_for_function("() => !location.hash.includes('from=')")
        page.tab.mouse.move(0, 0)
        page.settle()
        losses = demo.metrics().collect().filter(name="train/loss")["value"]
        assert number(losses[-1]) in charts.inner_text()


def test_a_span_is_found_in_the_timeline_and_the_trace_downloaded(
    browser: Browser, server: Server, demo: RecordedRun
) -> None:
    with opened(browser, server, demo, "timeline") as page:
        page.tab.get_by_role("searchbox", name="Find spans by name").fill("save checkpoint")
        page.tab.keyboard.press("Enter")
        results = page.tab.get_by_role("region", name="Search results")
        results.locator(".hits button").first.click()
        detail = page.tab.get_by_role("region", name="Span save checkpoint")
        detail.get_by_role("heading", name="Path").wait_for()
        assert "epoch" in detail.inner_text()
        page.tab.wait_for_function("() => location.hash.includes('start=')")
        detail.get_by_role("button", name="Close").click()
        detail.wait_for(state="detached")
        page.tab.get_by_role("button", name="Whole run").click()
        page.tab.wait_for_function("() => !location.hash.includes('start=')")
        names = page.tab.get_by_role("region", name="Spans in view").inner_text()
        assert {"epoch", "forward", "backward", "draw", "validate"} <= set(names.split())
        with page.tab.expect_download() as trace:
            page.tab.get_by_role("link", name="Download for Perfetto").click()
        events = json.loads(gzip.decompress(Path(trace.value.path()).read_bytes()))["traceEvents"]
        assert sum(event.get("name") == "optimizer" for event in events) == steps_of(demo)


def test_a_cell_of_a_step_opens_that_step(
    browser: Browser, server: Server, demo: RecordedRun
) -> None:
    with opened(browser, server, demo, "ranks") as page:
        assert "This run has one rank" in page.text
        page.tab.get_by_label("Phase").select_option("forward")
        page.settle()
        canvas = page.tab.get_by_role("img", name="Time in forward by rank and step")
        box = canvas.bounding_box()
        canvas.click(position={"x": box["width"] * 0.6, "y": 20})
        page.tab.wait_for_function("() => location.hash.includes('start=')")
        page.settle()
        assert "timeline" in page.tab.evaluate("() => location.hash")


def test_the_other_views(browser: Browser, server: Server, demo: RecordedRun) -> None:
    with opened(browser, server, demo, "system") as page:
        page.tab.get_by_role("img", name="Line chart of Process over time").first.wait_for()
        page.go(f"run/{demo.id}/provenance")
        assert "AdamW" in page.text
        with page.tab.expect_download() as artifact:
            page.tab.get_by_role("link", name="model.pt").click()
        (stored,) = demo.artifacts().collect().to_dicts()
        assert Path(artifact.value.path()).stat().st_size == stored["size"]
        page.check()
        page.go(f"run/{demo.id}/media")
        assert "No images, tables or texts were recorded." in page.text
        page.check()
        page.go(f"run/{demo.id}/model")
        assert "No measures of the model were recorded." in page.text


def test_the_page_beside_the_run(browser: Browser, demo: RecordedRun) -> None:
    """The file that the command writes is small and has every view, without a server or a network."""
    html = demo.path.with_suffix(".html")
    assert html.stat().st_size < 1_000_000
    with browser.page(html.as_uri(), offline=True) as page:
        page.settle()
        for view in VIEWS:
            page.go(f"run/{demo.id}/{view}")
            assert page.tab.locator("h1").inner_text() == "demo"
            page.picture(f"demo-file-{view or 'overview'}")
            page.check()


@contextlib.contextmanager
def opened(browser: Browser, server: Server, run: RecordedRun, view: str) -> Iterator[Page]:
    """Open a view of the run; keep a picture of it if pictures are wanted."""
    with browser.page(f"{server.link}#/run/{run.id}/{view}") as page:
        page.settle()
        page.picture(f"demo-{view or 'overview'}")
        yield page


def steps_of(run: RecordedRun) -> int:
    """Return the number of training steps."""
    return run.spans().filter(name="optimizer").collect().height


def query(page: Page) -> str:
    """Return the state of the view in its address."""
    return str(page.tab.evaluate("() => location.hash.split('?')[1] ?? ''"))


def drag(page: Page, start: float, end: float, y: float) -> None:
    """Drag with the mouse from left to right."""
    page.tab.mouse.move(start, y)
    page.tab.mouse.down()
    page.tab.mouse.move(end, y, steps=8)
    page.tab.mouse.up()
