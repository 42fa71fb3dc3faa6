"""``stepwell report``, as a person sees it."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.analysis.live import LiveRun
from stepwell.analysis.report import cost_sentence, report
from stepwell.testing import FakeClock
from stepwell.testing.simulate import RunPlan, simulate
from tests.analysis.findings.training import healthy_values, train
from tests.harness import run_stepwell


def slow(step: int) -> dict[str, float]:
    return {"wait for data": 0.05}


def test_the_answer_comes_first(tmp_path: Path) -> None:
    """State, findings, time, values, cost; in 80 columns, without an empty row."""
    run = train(tmp_path / "runs", times=slow)
    done = run_stepwell("report", str(run.path), cwd=tmp_path, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "training  finished after 10.5 s at step 119"
    assert lines[1].startswith("1 rank · 120 steps of 81.6 ms (p95 ")
    assert lines[4].startswith(
        "!! Waiting for data takes 57 % of the wall time (49.7 ms of each 81.6"
    )
    assert all(len(line) <= 80 for line in lines)
    (best,) = [line.split() for line in lines if line.startswith("val/loss")]
    assert (best[0], best[2]) == ("val/loss", "119")
    assert any(line.startswith("Recorded 600 spans and 240 numbers") for line in lines)
    # Nothing is there that was not: no transfers, no communication, no garbage collections.
    assert not any(line.startswith(("transfer", "communication", "garbage")) for line in lines)


def test_the_time_sums_to_the_wall_time(tmp_path: Path) -> None:
    """To the nanosecond."""
    made = report(train(tmp_path, times=slow))
    assert sum(line.ns for line in made.time) == made.wall_ns
    assert math.isclose(sum(line.share for line in made.time), 1.0)


def test_values_have_their_best_and_its_step(tmp_path: Path) -> None:
    """Not only the last one."""

    def values(step: int) -> dict[str, float]:
        return {"val/accuracy": 0.9 - abs(step - 30) / 1000}

    (line,) = report(train(tmp_path, values=values)).values
    assert (line.name, line.best, line.best_step) == ("val/accuracy", 0.9, 30)
    assert (line.last, line.last_step) == (pytest.approx(0.811), 119)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_the_last_value_is_shown_although_it_is_not_finite(tmp_path: Path, odd: float) -> None:
    """As in ``stepwell ls``; the best is the best of the finite ones."""

    def values(step: int) -> dict[str, float]:
        return {"loss": 1.0 / (step + 1) if step < 100 else odd}

    run = train(tmp_path / "runs", values=values)
    (line,) = report(run).values
    assert str(line.last) == str(odd)
    assert (line.last_step, line.best, line.best_step, line.nonfinite) == (119, 0.01, 99, 20)
    done = run_stepwell("report", str(run.path), cwd=tmp_path)
    (shown,) = [line.split() for line in done.stdout.splitlines() if line.startswith("loss ")]
    assert shown == ["loss", str(odd), "119", "0.01", "99"]


def test_json_for_scripts(tmp_path: Path) -> None:
    """The same, strict: NaN is null."""

    def values(step: int) -> dict[str, float]:
        return {"loss": math.nan}

    run = train(tmp_path / "runs", times=slow, values=values)
    done = run_stepwell("report", str(run.path), "--json", cwd=tmp_path, COLUMNS="200")
    made: dict[str, Any] = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(word))
    assert {f["rule"] for f in made["findings"]} == {"not-finite", "data-bound"}
    assert made["values"][0]["last"] is None
    assert sum(line["ns"] for line in made["time"]) == made["wall_ns"]


def test_exit_codes(tmp_path: Path) -> None:
    """0 unless asked to fail; 2 for a wrong word."""
    run = train(tmp_path / "runs", times=slow)
    path = str(run.path)
    done = run_stepwell("report", path, "--fail-on", "warning", cwd=tmp_path)
    assert done.returncode == 1
    fine = train(tmp_path / "runs")
    done = run_stepwell("report", str(fine.path), "--fail-on", "note", cwd=tmp_path)
    assert done.returncode == 0
    assert "No problems found." in done.stdout
    assert run_stepwell("report", path, "--fail-on", "x", cwd=tmp_path).returncode == 2
    missing = run_stepwell("report", "nowhere", cwd=tmp_path)
    assert missing.returncode == 2
    assert "Traceback" not in missing.stderr


def test_it_says_what_could_not_be_checked(tmp_path: Path) -> None:
    """Under the line that says that nothing was found."""
    run = train(tmp_path / "runs", values=lambda step: {"train/loss": 1 / (1 + step)})
    out = run_stepwell("report", str(run.path), cwd=tmp_path, COLUMNS="200").stdout
    assert (
        "No problems found.\n"
        "Not checked: gradients (none recorded), learning rate (none recorded),\n"
        "validation (no validation metric), memory (no system metrics).\n"
    ) in out
    few = report(train(tmp_path / "runs", steps=12, values=lambda step: {"val/loss": 1.0}))
    assert {(one.subject, one.reason) for one in few.unchecked} >= {
        ("loss", "none recorded"),
        ("step times", "only 12 steps"),
    }


def test_steps_are_counted_once_for_all_ranks(tmp_path: Path) -> None:
    """Four ranks that make 4 steps have made 4."""
    simulate(tmp_path / "run", RunPlan(4, 4))
    made = report(stepwell.open_run(tmp_path / "run"))
    assert ("step times", "only 4 steps") in {(one.subject, one.reason) for one in made.unchecked}


def test_a_single_step(tmp_path: Path) -> None:
    """It has no distribution."""
    run = train(tmp_path / "runs", steps=1)
    out = run_stepwell("report", str(run.path), cwd=tmp_path, COLUMNS="200").stdout
    assert re.search(r"^1 rank · 1 step of [\d.]+ ms$", out, re.MULTILINE)


def test_the_cost_of_recording_is_that_of_a_rank(tmp_path: Path) -> None:
    """Beside its share of the wall time there is no sum over all ranks."""
    simulate(tmp_path / "runs" / "run", RunPlan(4, 20))
    made = report(stepwell.open_run(tmp_path / "runs" / "run"))
    made = replace(made, cost=replace(made.cost, ns=4_000_000, beside_ns=None))
    assert "at least 1 ms per rank (" in cost_sentence(made)


def test_pauses_need_no_hint(tmp_path: Path) -> None:
    """The finding says how to see what they are; code in no span in all steps gives a hint."""
    pauses = report(train(tmp_path, times=lambda s: {"pause": 0.5} if s % 10 == 9 else {}))
    assert [finding.rule for finding in pauses.findings] == ["pauses"]
    assert pauses.hints == []
    always = report(train(tmp_path, times=lambda step: {"pause": 0.05}))
    assert [hint.lines for hint in always.hints] == [('with stepwell.span("a name of yours"): …',)]


def test_without_steps_it_says_what_to_add(tmp_path: Path) -> None:
    """Two lines, not an empty table."""
    with stepwell.init("bare", dir=tmp_path / "runs") as run:
        pass
    out = run_stepwell("report", str(run.path), cwd=tmp_path, COLUMNS="200").stdout
    assert "    import stepwell\n    stepwell.watch(model, optimizer, loader)\n" in out
    assert "No problems found" not in out


def test_without_validation_it_says_so(tmp_path: Path) -> None:
    """Overfitting cannot be seen then."""
    run = train(tmp_path, values=lambda step: {"train/loss": healthy_values(step)["train/loss"]})
    assert [hint.lines for hint in report(run).hints] == [('stepwell.log({"val/loss": loss})',)]
    assert report(train(tmp_path)).hints == []


def test_the_time_left_of_one_that_runs(tmp_path: Path) -> None:
    """At the pace of the latest steps, validation and pauses included."""
    with (
        FakeClock() as clock,
        stepwell.init("runs", dir=tmp_path, config={"max_steps": 200}) as run,
    ):
        for step in range(50):
            run.set_step(step)
            with run.span("train step"):
                clock.advance(0.1)
            clock.advance(0.1)
        run.flush()
        left = report(stepwell.open_run(run.path)).left
        assert left is not None
        assert (left.done, left.target) == (50, 200)
        assert left.ns == pytest.approx(150 * 0.2e9, rel=0.02)
    assert report(stepwell.open_run(run.path)).left is None


def test_a_run_that_was_not_told_apart(tmp_path: Path) -> None:
    """Steps without parts: it says how to record the parts."""
    with FakeClock() as clock, stepwell.init("steps", dir=tmp_path) as run:
        for step in range(30):
            run.set_step(step)
            clock.advance(0.1)
    made = report(stepwell.open_run(run.path))
    assert made.hints[0].text.startswith("The parts of a step were not recorded")


def exit_in_a_step(folder: Path) -> None:
    """End as programs that handle SIGTERM do, in step 30."""
    with FakeClock() as clock, stepwell.init("job", dir=folder) as run:
        for step in range(40):
            run.set_step(step)
            with run.span("train step"), run.span("forward"):
                clock.advance(0.1)
                if step == 30:
                    sys.exit(143)


def test_a_step_that_a_handled_signal_left(tmp_path: Path) -> None:
    """It does not count; the place is named, without the code of stepwell."""
    with pytest.raises(SystemExit):
        exit_in_a_step(tmp_path)
    (run,) = stepwell.list_runs(tmp_path)
    made = report(run)
    assert (made.status, made.step) == ("killed", 30)
    assert made.steps is not None
    assert made.steps.count == 30
    (found,) = made.findings
    assert found.sentence.startswith(
        "The process was terminated by SIGTERM at step 30 inside train step › forward (test_report.py:"
    )
    assert found.lines[-1] == "    sys.exit(143)"
    assert LiveRun(run, findings=False).look().error == "SystemExit: 143"


def test_an_error_without_a_message(tmp_path: Path) -> None:
    """It is its type alone."""
    with pytest.raises(MemoryError), stepwell.init("job", dir=tmp_path) as run:
        raise MemoryError
    live = LiveRun(stepwell.open_run(run.path), findings=False)
    assert live.look().error == "MemoryError"


def test_the_longest_step_may_be_the_first(tmp_path: Path) -> None:
    """It is not typical, but still the longest."""
    line = report(train(tmp_path, times=lambda step: {"backward": 0.9} if step == 0 else {})).steps
    assert line is not None
    assert line.max_step == 0
    assert line.max_ns > 0.9e9
    assert line.p95_ns < 0.2e9


def test_the_longest_step_is_without_validation_and_checkpoints(tmp_path: Path) -> None:
    """They come after a step and have lines of their own in the time table."""

    def times(step: int) -> dict[str, float]:
        if step == 70:
            return {"backward": 0.5}
        return {"validate": 3.0, "save checkpoint": 1.0} if step == 59 else {}

    line = report(train(tmp_path, times=times)).steps
    assert line is not None
    # 0.5 s, up to 5% more or less, and 13 ms of the other parts.
    assert (line.max_step, line.max_ns) == (70, pytest.approx(0.513e9, rel=0.06))


def test_summary_and_epochs_are_shown_and_nothing_is_cut_in_a_pipe(tmp_path: Path) -> None:
    """`report` and `show` have what the training set, as text and JSON; long names are whole."""
    name = "gradient_norm_before_clipping_of_the_second_decoder_block"
    with FakeClock() as clock, stepwell.init("folds", dir=tmp_path, run_id="folds") as run:
        for step in range(60):
            # Two folds of three epochs each.
            run.set_step(step, step // 10 % 3)
            with run.span("forward"), run.span(f"own {name}"):
                clock.advance(0.1)
            run.log({"loss": 1 / (step + 1), name: 1.0})
        run.summary["cv_acc"] = 0.5140000045
        run.summary["note"] = "two folds"
    for command in ("report", "show"):
        done = run_stepwell(command, str(run.path), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert re.search(r"summary +value *\ncv_acc +0.514 *\nnote +two folds *\n", done.stdout)
        assert "…" not in done.stdout
        assert name in done.stdout
        printed = json.loads(run_stepwell(command, str(run.path), "--json", cwd=tmp_path).stdout)
        assert printed["summary"] == {"cv_acc": 0.5140000045, "note": "two folds"}
    text = " ".join(run_stepwell("report", str(run.path), cwd=tmp_path).stdout.split())
    assert ") in 6 epochs" in text
