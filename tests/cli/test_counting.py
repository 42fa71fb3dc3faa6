"""What counts as a step, and reports of runs that did not finish."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import pytest

import stepwell
from stepwell.analysis.live import LiveRun
from stepwell.analysis.overview import overview
from stepwell.analysis.report import report
from stepwell.cli.terminal import wrapped
from stepwell.testing import FakeClock
from tests.harness import run_script, run_stepwell


def steps_of(path: Path) -> int:
    line = report(stepwell.open_run(path)).steps
    return 0 if line is None else line.count


@pytest.mark.parametrize("name", ["training_single_iteration", "train step"])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_step_that_failed_is_none(tmp_path: Path, name: str, is_told: bool) -> None:
    """Seven were done, the eighth raised; whether or not anybody said which step it is."""
    with (
        FakeClock() as clock,
        contextlib.suppress(ValueError),
        stepwell.init("fails", dir=tmp_path) as run,
    ):
        for step in range(8):
            if is_told:
                run.set_step(step)
            with run.span(name):
                clock.advance(0.1 if step < 7 else 5.0)
                if step == 7:
                    raise ValueError("no")
    made = report(stepwell.open_run(run.path))
    assert made.steps is not None
    assert made.steps.count == 7
    # Nor does it say how long steps take.
    assert made.steps.max_ns < 1e9


def test_one_that_was_done_again_counts_once(tmp_path: Path) -> None:
    """An exception that was caught, and the same step once more: the run ended well."""
    with FakeClock() as clock, stepwell.init("again", dir=tmp_path) as run:
        for time, step in enumerate((0, 1, 2, 2)):
            run.set_step(step)
            with contextlib.suppress(ValueError), run.span("training_single_iteration"):
                clock.advance(0.1)
                if time == 2:
                    raise ValueError("once")
    assert steps_of(run.path) == 3


def test_one_under_way_is_not_done_yet(tmp_path: Path) -> None:
    """Neither in the count nor in how far it is."""
    with (
        FakeClock() as clock,
        stepwell.init("runs", dir=tmp_path, config={"max_steps": 40}) as run,
    ):
        for step in range(30):
            run.set_step(step)
            with run.span("train step"):
                clock.advance(0.1)
        run.set_step(30)
        with run.span("train step"):
            clock.advance(0.1)
            run.flush()
            made = report(stepwell.open_run(run.path))
            assert made.left is not None
            assert made.left.ns is not None
            assert (made.left.done, made.left.target) == (30, 40)
            assert made.steps is not None
            assert made.steps.count == 30
    assert steps_of(run.path) == 31


KILLED = """
import os, signal, stepwell

run = stepwell.init("killed", dir="runs", run_id="killed")
with run.span("training_loop"):
    for step in range(6):
        run.set_step(step)
        with run.span("train step"):
            run.log({"loss": 1.0 / (step + 1)})
            if step == 5:
                with run.span("all_reduce"):
                    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    assert run_script(KILLED, cwd=tmp_path).returncode == -signal.SIGKILL
    return tmp_path / "runs" / "killed"


def test_what_it_was_killed_inside_of(killed: Path) -> None:
    """Five steps, and a live view that still says where it was; in `show` with a time that is not 0."""
    run = stepwell.open_run(killed)
    assert steps_of(killed) == 5
    (rank,) = LiveRun(run, findings=False).look().ranks
    assert (rank.status, rank.inside) == ("killed", ("training_loop", "train step", "all_reduce"))
    shown = run_stepwell("watch", "killed", "--once", cwd=killed.parent.parent).stdout
    assert (
        "open spans when it ended\nrank 0 (killed)  training_loop › train step › all_reduce"
        in shown
    )
    (line,) = overview(run).open
    assert line.path.endswith("train step › all_reduce")
    assert 0 <= line.seconds < 60


def test_the_end_comes_before_other_critical_findings(tmp_path: Path) -> None:
    """However much time was lost to something else."""
    with (
        FakeClock() as clock,
        contextlib.suppress(RuntimeError),
        stepwell.init("ends", dir=tmp_path) as run,
    ):
        for step in range(60):
            run.set_step(step)
            with run.span("train step"):
                with run.span("wait for data"):
                    clock.advance(0.5)
                with run.span("forward"):
                    clock.advance(0.1)
        raise RuntimeError("planted")
    found = report(stepwell.open_run(run.path)).findings
    assert [finding.rule for finding in found][:2] == ["died", "data-bound"]
    assert found[1].severity == "critical"


def test_while_it_hangs_nobody_knows_how_long(tmp_path: Path) -> None:
    """No time left and no pace is made up, by `report` or by `watch`."""
    with (
        FakeClock() as clock,
        stepwell.init("hangs", dir=tmp_path, config={"max_steps": 100}) as run,
    ):
        for step in range(40):
            run.set_step(step)
            with run.span("train step"), run.span("all_reduce", category="comm"):
                clock.advance(0.1)
        run.set_step(40)
        with run.span("train step"), run.span("all_reduce", category="comm"):
            clock.advance(400)
            run.flush()
            opened = stepwell.open_run(run.path)
            made = report(opened)
            assert [finding.rule for finding in made.findings][:1] == ["hang"]
            assert made.left is not None
            assert (made.left.done, made.left.ns) == (40, None)
            now = LiveRun(opened).look(last=True)
            assert (now.steps_per_second, now.seconds_left, now.step) == (None, None, 40)


def test_a_batch_that_never_comes_is_not_a_slow_loader(tmp_path: Path) -> None:
    """Before it is late enough for a hang: no time left, and no advice about workers of the loader."""
    with (
        FakeClock() as clock,
        stepwell.init("waits", dir=tmp_path, config={"max_steps": 200}) as run,
    ):
        for step in range(80):
            run.set_step(step)
            with run.span("wait for data"):
                clock.advance(0.01)
            with run.span("train step"), run.span("forward"):
                clock.advance(0.2)
        with run.span("wait for data"):
            clock.advance(20)
            run.flush()
            opened = stepwell.open_run(run.path)
            made = report(opened)
            assert [finding.sentence for finding in made.findings] == []
            assert made.left is not None
            assert (made.left.done, made.left.ns) == (80, None)
            assert made.steps is not None
            assert made.steps.max_ns < 1e9
            now = LiveRun(opened).look(last=True)
            assert (now.steps_per_second, now.seconds_left) == (None, None)


def test_a_failed_run_says_where_to_look(tmp_path: Path) -> None:
    """Its spans were ended by the exception, so `stacks` has none."""
    with (
        contextlib.suppress(ValueError),
        stepwell.init("bad", dir=tmp_path, run_id="bad") as run,
        run.span("work"),
    ):
        raise ValueError("no")
    done = run_stepwell("stacks", str(run.path), cwd=tmp_path)
    assert done.returncode == 0
    assert f"`stepwell report {run.path}`" in done.stdout.replace("\n", " ")
    assert (
        json.loads(run_stepwell("stacks", str(run.path), "--json", cwd=tmp_path).stdout)["run"]
        == "bad"
    )


def test_lines_break_between_words_and_not_before_a_unit() -> None:
    """By hand: 2 min 03 s stays together, and nothing is wider than it may be."""
    text = "it waits for 2 min 03 s and then 10 ms more, of 3 h 05 min in all"
    for width in range(12, 70):
        lines = wrapped(text, width).split("\n")
        assert max(map(len, lines)) <= width
        assert " ".join(lines) == text
        for whole in ("2 min 03 s", "10 ms", "3 h 05 min"):
            assert any(whole in line for line in lines), (width, whole)
    assert wrapped("one two three", 8, "  ") == "one two\n  three"


def test_line_breaks_of_a_text_stay() -> None:
    """The lines of a long message are indented; what commands a terminal is made harmless."""
    text = "ended with E: a\n  b\tc d\r\n\x1b[31mred"
    assert wrapped(text, 80) == "ended with E: a\n      b c d\n    \N{REPLACEMENT CHARACTER}[31mred"
