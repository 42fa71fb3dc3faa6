"""The user's own spans in the time table: each under its own name, and one line for all other code."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import stepwell
from stepwell.analysis.live import LiveRun
from stepwell.analysis.report import report
from stepwell.analysis.timeline import ledger, steps, time_table, timelines
from stepwell.reading import RecordedRun
from stepwell.testing import FakeClock, recorded
from tests.analysis.timeline.writing import Process, Thread, Written, write_run

SECOND = 1_000_000_000


def train(clock: FakeClock, step: int) -> None:
    """A step of 4 s: 1 forward, 2 backward, 1 in no span."""
    stepwell.set_step(step)
    with stepwell.span("training_single_iteration"):
        with stepwell.span("model_forward"):
            clock.advance(1)
        with stepwell.span("model_backward"):
            clock.advance(2)
        clock.advance(1)


def reinforcement(folder: Path, name: str = "rollout") -> RecordedRun:
    """40 rollouts of 6 s, of which 2 are forward passes, each followed by 5 steps."""
    with FakeClock() as clock, stepwell.init("rl", dir=folder) as run:
        for number in range(40):
            with stepwell.span(name):
                clock.advance(1)
                with stepwell.span("environment"):
                    clock.advance(3)
                with stepwell.span("model_forward"):
                    clock.advance(2)
            for step in range(5):
                train(clock, 5 * number + step)
    return stepwell.open_run(run.path)


def test_a_span_of_ones_own_has_a_line_and_is_no_finding(tmp_path: Path) -> None:
    """The outermost one wins, phases within it stay phases; all lines sum to the wall time."""
    made = report(reinforcement(tmp_path))
    assert {line.phase: line.ns / SECOND for line in made.time} == {
        "rollout": 40 * 4,
        "forward": 200 + 40 * 2,
        "backward": 400,
        "other": 200,
    }
    assert made.time[-1].phase == "other"
    assert sum(line.ns for line in made.time) == made.wall_ns
    assert [finding.rule for finding in made.findings] == []


def test_the_live_view_uses_the_same_words(tmp_path: Path) -> None:
    """The last minute: two rollouts of 10 s, and 10 steps of 4 s."""
    with FakeClock() as clock, stepwell.init("rl", dir=tmp_path) as run:
        for number in range(4):
            with stepwell.span("rollout"), stepwell.span("environment"):
                clock.advance(10)
            for step in range(5):
                train(clock, 5 * number + step)
        run.flush()
        now = LiveRun(stepwell.open_run(run.path), findings=False).look()
        made = report(stepwell.open_run(run.path))
    assert set(now.time) == {line.phase for line in made.time}
    assert now.time["rollout"] == pytest.approx(2 * 10 / 60)
    assert now.time["other"] == pytest.approx(10 / 60)


def test_what_contains_whole_steps_has_no_line_of_its_own() -> None:
    """A span around the loop does not explain the time in no span."""
    with FakeClock() as clock, recorded() as run:
        with stepwell.span("stage one"):
            clock.advance(5)
            train(clock, 0)
            with stepwell.span("logging"):
                clock.advance(3)
            train(clock, 1)
        with stepwell.span("export"):
            clock.advance(7)
        run.run.flush()
        result = timelines(run.recorded)
        table = {name: ns / SECOND for name, ns in time_table(result).items()}
        rows = steps(result)
    assert table == {
        "startup": 5,
        "forward": 2,
        "backward": 4,
        "span:logging": 3,
        "span:export": 7,
        "other": 2,
    }
    assert rows["span:logging"].to_list() == [3 * SECOND, 0]
    assert rows["period_ns"].to_list() == [7 * SECOND, 4 * SECOND]


def test_a_span_around_each_step_has_the_rest_of_it() -> None:
    """Named by the user, it is not "other"; spans within it have lines of their own."""
    with FakeClock() as clock, recorded() as run:
        for step in range(3):
            run.run.set_step(step)
            with stepwell.span("train step"):
                with stepwell.span("forward"):
                    clock.advance(1)
                with stepwell.span("augment"):
                    clock.advance(2)
                clock.advance(4)
        run.run.flush()
        table = dict(ledger(run.recorded).select("phase", "seconds").rows())
    assert table == {"forward": 3, "span:augment": 6, "span:train step": 12}


def test_a_category_makes_no_difference_but_threads_do() -> None:
    """Spans of other threads take no time of the training."""
    with FakeClock() as clock, recorded() as run:
        train(clock, 0)

        def beside() -> None:
            with stepwell.span("uploading"):
                begun.set()
                done.wait(10)

        begun, done = threading.Event(), threading.Event()
        thread = threading.Thread(target=beside)
        thread.start()
        begun.wait(10)
        with stepwell.span("rollout", category="environment"):
            clock.advance(8)
        done.set()
        thread.join()
        train(clock, 1)
        run.run.flush()
        table = dict(ledger(run.recorded).select("phase", "seconds").rows())
    assert table == {"forward": 2, "backward": 4, "other": 2, "span:rollout": 8}


def test_names_without_end_do_not_make_lines_without_end(tmp_path: Path) -> None:
    """The 20 names with the most time have a line; the others count as "other", like a span of that name."""
    spans = [Written("training_single_iteration", 0, 10)]
    begin = 10
    for number in range(50):
        spans.append(Written(f"shard {number}", begin, begin + number + 1))
        begin += number + 1
    spans += [Written("other", begin, begin + 7), Written("model_forward", begin + 7, begin + 8)]
    run = write_run(tmp_path, Process([Thread(spans)], begin + 8))
    table = dict(ledger(run).select("phase", "ns").rows())
    assert [name for name in table if name.startswith("span:")] == [
        f"span:shard {number}" for number in range(49, 29, -1)
    ]
    assert table["other"] + table["ending"] == 10 + sum(range(1, 31)) + 7
    assert sum(table.values()) == begin + 8


def test_ranks_and_attempts_sum_to_the_wall_time(tmp_path: Path) -> None:
    """The mean of the ranks; a late start counts as startup, an early end as ending."""

    def process(rank: int, attempt: int, start: int, end: int) -> Process:
        spans = [Written("training_single_iteration", start + 10, end - 20)]
        return Process([Thread(spans)], end, rank=rank, attempt=attempt, start=start)

    run = write_run(
        tmp_path,
        process(0, 0, 0, 100),
        process(1, 0, 40, 140),
        process(0, 1, 1000, 1100),
        process(1, 1, 1000, 1100),
    )
    made = report(run)
    assert made.wall_ns == 1100
    assert {line.phase: line.ns for line in made.time} == {
        "startup": (10 + 50) // 2 + 10,
        "after the last step": (60 + 20) // 2 + 20,
        "other": 70 + 70,
        "between attempts": 860,
    }
    assert sum(line.share for line in made.time) == pytest.approx(1)
