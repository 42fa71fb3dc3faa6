"""Curves: which are drawn, what is done to their numbers, and the files made of them."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import pytest

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.analysis import plots
from stepwell.analysis.diagnostics import find_diagnostics, holdout_table, margin
from stepwell.analysis.plots.builder import by_default
from stepwell.analysis.plots.curves import Curve, default_weight, smoothed, thinned, wants_log
from stepwell.analysis.plots.export import html
from stepwell.reading import RecordedRun
from tests.harness import environment, run_script, run_stepwell


def record(root: Path, rows: list[dict[str, float]], name: str = "run") -> RecordedRun:
    """A finished run that logged these numbers, at a step each, ten steps an epoch."""
    with stepwell.init(name, dir=root) as run:
        for step, row in enumerate(rows):
            run.set_step(step, epoch=step // 10)
            run.log(row)
    return stepwell.open_run(run.path)


def record_rank(root: Path, rank: int, attempt: int, values: dict[int, float]) -> RecordedRun:
    """The loss that one rank of one attempt logged."""
    about = {
        "RANK": f"{rank}",
        "LOCAL_RANK": f"{rank}",
        "WORLD_SIZE": "2",
        "STEPWELL_RUN_ID": "two",
        "TORCHELASTIC_RESTART_COUNT": f"{attempt}",
    }
    script = (
        f"import stepwell\nwith stepwell.init('two', dir={str(root)!r}) as run:\n"
        f"    for step, value in {values!r}.items():\n"
        "        run.set_step(step)\n        run.log({'loss': value})"
    )
    run_script(script, env=environment(**about), check=True)
    return stepwell.open_run(root / "two")


# Numbers


def test_smoothing_by_hand() -> None:
    """Weight 0.5 of 4, 0, 0: forward 4, 4/3, 4/7; backward 16/7, 0, 0; the mean of both."""
    assert smoothed([4.0, 0.0, 0.0], 0.5) == pytest.approx([22 / 7, 2 / 3, 2 / 7])


def test_smoothing_leaves_a_constant_and_does_not_lag() -> None:
    assert smoothed([3.0] * 50, 0.9) == pytest.approx([3.0] * 50)
    ramp = smoothed([float(i) for i in range(201)], 0.9)
    assert ramp[100] == pytest.approx(100.0, abs=0.01)


def test_short_curves_are_not_smoothed() -> None:
    assert default_weight(299) == 0.0
    assert default_weight(1000) == 0.95


def test_thinning_keeps_every_spike_and_both_ends() -> None:
    """Of 100,000 values a single high and a single low one are still there."""
    y = [0.0] * 100_000
    y[54_321], y[77_777], y[-1] = 9.0, -9.0, 1.0
    x = [float(i) for i in range(100_000)]
    few = thinned(Curve("c", x, y, smooth=list(y), count=100_000))
    assert len(few.x) <= 1501
    points = dict(zip(few.x, few.y, strict=True))
    assert (points[54_321.0], points[77_777.0], points[99_999.0]) == (9.0, -9.0, 1.0)
    assert few.x[0] == 0.0
    assert few.x == sorted(few.x)
    assert few.smooth == few.y
    assert few.count == 100_000


@pytest.mark.parametrize(
    ("values", "log"),
    [([1.0, 299.0], False), ([1.0, 301.0], True), ([0.0, 1000.0], False), ([1e-5, 1e-1], True)],
)
def test_values_far_apart_get_a_logarithmic_scale(values: list[float], log: bool) -> None:
    assert wants_log([Curve("c", [0.0, 1.0], values)]) is log


# Choice


def test_what_is_drawn_when_nothing_is_asked_for() -> None:
    names = [
        "batch/size",
        "flossy",
        "gradient_norm/backbone",
        "gradient_norm/overall",
        "holdout/accuracy",
        "learning_rate/group_0",
        "system/cpu_percent",
        "train/loss",
        "train/lr",
        "val_loss",
        "weight_delta/overall",
    ]
    assert {choice.title: choice.names for choice in by_default(names)} == {
        "Loss": ["train/loss", "val_loss"],
        "Accuracy": ["holdout/accuracy"],
        "Gradient norm": ["gradient_norm/overall", "gradient_norm/backbone"],
        "Weight delta": ["weight_delta/overall"],
        "Learning rate": ["learning_rate/group_0", "train/lr"],
    }


def test_without_any_of_these_it_is_whatever_was_logged() -> None:
    assert [c.names for c in by_default(["b", "c", "system/x"])] == [["b"], ["c"]]
    assert [c.names for c in by_default(["system/x"])] == [["system/x"]]


def test_metrics_by_name_by_pattern_and_by_a_part(tmp_path: Path) -> None:
    run = record(tmp_path, [{"val/loss": 1.0, "val/acc": 0.5, "val": 2.0}] * 2)
    found = plots.panels([run], ["val", "val/*", "ACC"])
    assert [[curve.label for curve in panel.curves] for panel in found] == [
        ["val"],
        ["val/acc", "val/loss"],
        ["val/acc"],
    ]


def test_a_metric_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    run = record(tmp_path, [{"train/loss": 1.0, "lr": 0.1}])
    with pytest.raises(StepwellError, match=r"no metric 'tran/los'; there are: train/loss, lr"):
        plots.panels([run], ["tran/los"])


def test_a_run_without_metrics_says_how_to_log_some(tmp_path: Path) -> None:
    with pytest.raises(StepwellError, match=r"run\.log"):
        plots.panels([record(tmp_path, [])])


# Curves of a run


def test_a_curve_is_what_was_logged(tmp_path: Path) -> None:
    run = record(tmp_path, [{"loss": 3.0}, {"loss": 2.0}, {"loss": math.nan}, {"loss": 1.0}])
    (panel,) = plots.panels([run])
    (curve,) = panel.curves
    assert (panel.title, panel.x_label, panel.log) == ("Loss", "step", False)
    assert (curve.x, curve.y) == ([0.0, 1.0, 3.0], [3.0, 2.0, 1.0])
    assert (curve.nonfinite, curve.smooth, curve.low, curve.count) == ([2.0], [], [], 4)


def test_by_epoch_it_is_the_mean_of_each(tmp_path: Path) -> None:
    run = record(tmp_path, [{"loss": float(i)} for i in range(20)])
    (panel,) = plots.panels([run], options=plots.Options(x="epoch"))
    assert (panel.curves[0].x, panel.curves[0].y) == ([0.0, 1.0], [4.5, 14.5])


def test_by_time_it_is_seconds_since_the_beginning(tmp_path: Path) -> None:
    run = record(tmp_path, [{"loss": 1.0}, {"loss": 2.0}])
    (panel,) = plots.panels([run], options=plots.Options(x="time"))
    x = panel.curves[0].x
    assert panel.x_label == "time (s)"
    assert 0 <= x[0] <= x[1] < 30


def test_without_epochs_none_can_be_drawn(tmp_path: Path) -> None:
    with stepwell.init("r", dir=tmp_path) as run:
        run.log({"loss": 1.0}, step=0)
    with pytest.raises(StepwellError, match="epoch="):
        plots.panels([stepwell.open_run(run.path)], options=plots.Options(x="epoch"))


def test_ranks_are_a_mean_with_its_range_and_restarts_are_marked(tmp_path: Path) -> None:
    """Rank 0 has 1, 2 then from step 1 on, in its second attempt, 4, 6; rank 1 the same plus 1."""
    for rank in (0, 1):
        record_rank(tmp_path, rank, 0, {0: 1.0 + rank, 1: 2.0 + rank})
    for rank in (0, 1):
        run = record_rank(tmp_path, rank, 1, {1: 4.0 + rank, 2: 6.0 + rank})
    (panel,) = plots.panels([run])
    (curve,) = panel.curves
    assert (curve.x, curve.y) == ([0.0, 1.0, 2.0], [1.5, 4.5, 6.5])
    assert (curve.low, curve.high) == ([1.0, 4.0, 6.0], [2.0, 5.0, 7.0])
    assert panel.marks == [plots.Mark(1.0, "attempt 1")]
    (apart,) = plots.panels([run], options=plots.Options(by_rank=True))
    assert {c.label: c.y for c in apart.curves} == {
        "loss rank 0": [1.0, 4.0, 6.0],
        "loss rank 1": [2.0, 5.0, 7.0],
    }
    (one,) = plots.panels([run], options=plots.Options(rank=1))
    assert one.curves[0].y == [2.0, 5.0, 7.0]
    with pytest.raises(StepwellError, match=r"rank 5 .* 0, 1"):
        plots.panels([run], options=plots.Options(rank=5))


def test_several_runs_share_a_panel_for_each_metric(tmp_path: Path) -> None:
    a = record(tmp_path, [{"loss": 1.0, "lr": 0.1}] * 2, "a")
    b = record(tmp_path, [{"loss": 2.0}] * 2, "b")
    again = record(tmp_path, [{"loss": 3.0}] * 2, "b")
    found = plots.panels([a, b, again])
    assert [panel.title for panel in found] == ["loss", "lr"]
    assert [(c.label, c.colour, c.y[0]) for c in found[0].curves] == [
        ("a", 0, 1.0),
        ("b", 1, 2.0),
        ("b #2", 2, 3.0),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"x": "batch"}, "'step', 'epoch' or 'time'"), ({"smooth": 1.0}, "below 1")],
)
def test_options_that_make_no_sense(options: dict[str, float], words: str) -> None:
    with pytest.raises(StepwellError, match=words):
        plots.Options(**options)  # type: ignore[arg-type]


# The holdout


@pytest.mark.parametrize(
    ("logits", "label", "expected"),
    [
        ([1.0, 3.0, 2.5], 1, 0.5),
        ([1.0, 3.0], 0, -2.0),
        ([0.7], 1, 0.7),
        ([0.7], 0, -0.7),
        ([1.0, 2.0], 5, None),
        ([1.0, 2.0], None, None),
        (None, 1, None),
    ],
)
def test_margin_by_hand(
    logits: list[float] | None, label: int | None, expected: float | None
) -> None:
    assert margin(logits, label) == (None if expected is None else pytest.approx(expected))


def holdout_run(tmp_path: Path) -> RecordedRun:
    run = record(tmp_path, [{"loss": 1.0}])
    folder = run.path / "telemetry"
    folder.mkdir()
    lines = [
        {
            "batch_idx": step,
            "epoch": 0,
            "holdout_logits": {
                "logits": [[0.0, 1.0 * step], [2.0, 0.0]],
                "labels": [1, 1],
                "predictions": [1, 0],
            },
        }
        for step in (10, 20)
    ]
    texts = [json.dumps(line) for line in lines]
    odd = ["not json", "[]", '{"holdout_logits": {"logits": "x"}}', '{"holdout_logits": {"lo']
    (folder / "telemetry.jsonl").write_text("\n".join([*texts, *odd]))
    return run


def test_the_holdout_is_a_table(tmp_path: Path) -> None:
    table = holdout_table(holdout_run(tmp_path))
    assert table.select("step", "example", "label", "prediction", "margin").rows() == [
        (10, 0, 1, 1, 10.0),
        (10, 1, 1, 0, -2.0),
        (20, 0, 1, 1, 20.0),
        (20, 1, 1, 0, -2.0),
    ]


def test_its_logits_are_a_panel(tmp_path: Path) -> None:
    """Each example faintly, and their median: of 10 and -2 it is 4, of 20 and -2 it is 9."""
    _, panel = plots.panels([holdout_run(tmp_path)])
    assert "logits" in panel.title
    assert [(c.faint, c.x, c.y) for c in panel.curves] == [
        (True, [10.0, 20.0], [10.0, 20.0]),
        (True, [10.0, 20.0], [-2.0, -2.0]),
        (False, [10.0, 20.0], [4.0, 9.0]),
    ]


# A folder of diagnostics outside a run


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Two records of rank 0, one of rank 1, in an ``output_dir``; a second model beside the first."""
    folder = tmp_path / "out" / "siamese" / "telemetry"
    folder.mkdir(parents=True)
    first = {
        "batch_idx": 200,
        "epoch": 0,
        "timestamp": "2026-01-31T12:00:00+01:00",
        "step": 200,
        "attempt": 0,
        "gradient_norm": {"overall": 2.0, "head": 1.0},
        "gradient_source": "step",
        "learning_rates": {"group_0": 0.1},
        "weight_delta": {"overall": None},
        "holdout_logits": {"logits": [[0.0, 1.0]], "labels": [1], "accuracy": 1.0},
        "batch_stats": {"winner_0_pct": 50.0, "batch_size": 8},
    }
    second = {
        **first,
        "batch_idx": 400,
        "step": 400,
        "timestamp": "2026-01-31T12:00:30+01:00",
        "gradient_norm": {"overall": None, "head": 4.0},
        "nonfinite": {"gradient_norm.overall": "nan"},
    }
    other = {**first, "model": 1, "gradient_norm": {"overall": 7.0}}
    lines = [json.dumps(each) for each in (first, second, other)]
    (folder / "telemetry.jsonl").write_text("\n".join([*lines, '{"batch_idx": 60']))
    ranked = {**first, "gradient_norm": {"overall": 4.0}}
    (folder / "telemetry.rank-00001.jsonl").write_text(json.dumps(ranked) + "\n")
    (folder / "last_checkpoint.pt").write_bytes(b"")
    return folder


@pytest.mark.parametrize("given", ["", "telemetry.jsonl", ".."])
def test_a_folder_of_diagnostics_is_drawn_like_a_run(outside: Path, given: str) -> None:
    """The folder, its file, or the folder above; metrics have the names that they have in a run."""
    found = find_diagnostics(str(outside / given))
    assert found is not None
    assert (found.name, found.ranks()) == ("siamese", [0, 1])
    assert plots.metric_names([found]) == [
        "batch/batch_size",
        "batch/winner_0_pct",
        "gradient_norm/head",
        "gradient_norm/overall",
        "holdout/accuracy",
        "learning_rate/group_0",
        "model_1/batch/batch_size",
        "model_1/batch/winner_0_pct",
        "model_1/gradient_norm/overall",
        "model_1/holdout/accuracy",
        "model_1/learning_rate/group_0",
    ]
    (panel,) = plots.panels([found], ["gradient_norm/overall"])
    # The mean of both ranks; the NaN is a cross.
    assert [(c.x, c.y, c.nonfinite) for c in panel.curves] == [([200.0], [3.0], [400.0])]
    (panel,) = plots.panels([found], ["gradient_norm/head"], plots.Options(x="time", rank=0))
    (curve,) = panel.curves
    assert (curve.x, curve.y) == (pytest.approx([0.0, 30.0]), [1.0, 4.0])
    assert "logits" in plots.panels([found])[-1].title


def test_the_command_takes_a_folder_of_diagnostics(outside: Path, tmp_path: Path) -> None:
    done = run_stepwell("plot", str(outside), "--json", cwd=tmp_path, check=True)
    titles = [panel["title"] for panel in json.loads(done.stdout)]
    assert titles[:3] == ["Accuracy", "Gradient norm", "Learning rate"]
    run_stepwell("plot", "out/siamese", "-o", "curves.html", cwd=tmp_path, check=True)
    assert "siamese" in (tmp_path / "curves.html").read_text()


def test_a_folder_without_diagnostics_is_taken_for_a_run(tmp_path: Path) -> None:
    """Also a run folder that has some: its metrics are more."""
    assert find_diagnostics(None) is None
    assert find_diagnostics("a name") is None
    assert find_diagnostics(str(tmp_path)) is None
    assert find_diagnostics(str(holdout_run(tmp_path).path)) is None


# Files


def test_a_png_is_a_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    run = record(tmp_path, [{"loss": 1.0 / (i + 1), "acc_$x_1$": i / 9} for i in range(400)])
    target = plots.save(plots.panels([run]), tmp_path / "curves.png", "my $run_1")
    with image.open(target) as picture:
        assert picture.format == "PNG"
        assert picture.width > 1000
        colours = {c for _, c in picture.convert("RGB").getcolors(1 << 24)}
    assert (42, 111, 187) in colours  # the first curve's blue
    assert os.listdir(tmp_path).count("curves.png") == 1


def test_curves_that_lie_on_each_other_are_all_seen(tmp_path: Path) -> None:
    """As the rate of a group does under its number and its name: both colours are in the picture."""
    image = pytest.importorskip("PIL.Image")
    run = record(tmp_path, [{"lr/group_0": 0.1, "lr/head": 0.1} for _ in range(40)])
    target = plots.save(plots.panels([run], ["lr/*"]), tmp_path / "rates.png")
    with image.open(target) as picture:
        # Without the legend above.
        lower = picture.convert("RGB").crop((0, int(picture.height * 0.4), *picture.size))
        colours = {c for _, c in lower.getcolors(1 << 24)}
    assert {(42, 111, 187), (209, 96, 47)} <= colours


def test_there_are_no_halves_of_steps(tmp_path: Path) -> None:
    """Ticks of the axis are whole numbers also where there are few."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    from stepwell.analysis.plots.export import _draw

    run = record(tmp_path, [{"loss": float(i)} for i in range(3)])
    axes = figure.subplots()
    (panel,) = plots.panels([run])
    _draw(axes, panel)
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_a_page_needs_nothing_else_and_takes_names_as_data(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    run = record(tmp_path, [{evil: 1.0}, {evil: 2.0}])
    page = html(plots.panels([run]), "<b>run</b>")
    assert "&lt;b&gt;run&lt;/b&gt;" in page
    assert evil not in page
    assert page.count("</script>") == 2
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!data:)", page)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    data = page.split('id="data">')[1].split("</script>")[0]
    (panel,) = json.loads(data)
    assert panel["curves"][0]["label"] == evil
    assert panel["curves"][0]["y"] == [1.0, 2.0]


def test_the_page_works_in_a_browser_without_a_network(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    run = record(tmp_path, [{"loss": 2.0 - i / 10, "val/acc": i / 10} for i in range(11)])
    target = plots.save(plots.panels([run]), tmp_path / "page.html", "a run")
    with playwright.sync_playwright() as tools:
        try:
            browser = tools.chromium.launch(
                executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
                args=["--no-sandbox"],
            )
        except playwright.Error as error:
            pytest.skip(f"no browser: {error}")
        page = browser.new_context(offline=True).new_page()
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(target.as_uri())
        assert page.title() == page.locator("h1").inner_text() == "a run"
        assert page.locator("svg").count() == 2
        first = page.locator("section").first
        assert first.locator("li b").inner_text() == "1"
        assert first.locator("path[stroke]").count() == 1
        box = first.locator("svg").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 58 / 560 + 1, box["y"] + 40)
        assert first.locator("li b").inner_text() == "2 at 0"
        first.locator("li button").click()
        assert first.locator("path[stroke]").count() == 0
        page.locator("#smooth").fill("0.5")
        assert page.locator("section").nth(1).locator("path[stroke]").count() == 2
        assert problems == []
        browser.close()


@pytest.mark.parametrize("name", ["curves", "curves.svg", "missing/curves.html"])
def test_a_file_that_cannot_be_written_is_said(tmp_path: Path, name: str) -> None:
    panels = [plots.Panel("p", "step", [Curve("c", [0.0], [1.0])])]
    with pytest.raises(StepwellError, match=r"\.png or \.html|cannot write"):
        plots.save(panels, tmp_path / name)


# The command


def test_the_terminal_shows_it_in_80_columns(tmp_path: Path) -> None:
    record(tmp_path / "runs", [{"loss": 2.0 - i / 100, "lr": 0.1} for i in range(100)])
    done = run_stepwell("plot", cwd=tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "Loss" in lines
    assert any(line.startswith("        2 ┤⠑") or line.startswith("        2 ┤") for line in lines)
    assert any("loss  last 1.01" in line for line in lines)
    assert any(line.strip().startswith("└0") and line.endswith("99") for line in lines)


def test_a_falling_line_falls(tmp_path: Path) -> None:
    """The dots of a straight line go from the upper left to the lower right."""
    record(tmp_path / "runs", [{"loss": 9.0 - i} for i in range(10)])
    lines = [
        line.split("┤")[-1].split("│")[-1]
        for line in run_stepwell("plot", cwd=tmp_path).stdout.splitlines()
    ]
    drawn = [line for line in lines if any(0x2800 < ord(c) < 0x2900 for c in line)]
    starts = [len(line) - len(line.lstrip()) for line in drawn]
    assert len(drawn) == 10
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert len(drawn[-1]) == 68


def test_the_command_writes_files_and_json(tmp_path: Path) -> None:
    record(tmp_path / "runs", [{"loss": 1.0}, {"loss": math.inf}])
    assert run_stepwell("plot", "-o", "a.html", cwd=tmp_path).stdout == "1 panel in a.html\n"
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    (panel,) = json.loads(run_stepwell("plot", "--json", cwd=tmp_path).stdout)
    assert panel["curves"][0]["nonfinite"] == [1.0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plot", "run", "nothing"], "there are: loss"),
        (["plot", "--x", "day"], "'step', 'epoch' or 'time'"),
        (["plot", "-o", "a.pdf"], ".png or .html"),
        (["plot", "nowhere"], "No run named"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    record(tmp_path / "runs", [{"loss": 1.0}])
    done = run_stepwell(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_numbers_too_large_to_subtract_count_as_infinite(tmp_path: Path) -> None:
    run = record(tmp_path / "runs", [{"loss": 1.7e308}, {"loss": -1.7e308}, {"loss": 1.0}])
    (panel,) = plots.panels([run])
    assert (panel.curves[0].y, panel.curves[0].nonfinite) == ([1.0], [0.0, 1.0])
    for name in ("a.png", "a.html"):
        assert plots.save([panel], tmp_path / name).stat().st_size > 1000
    assert run_stepwell("plot", cwd=tmp_path).returncode == 0
