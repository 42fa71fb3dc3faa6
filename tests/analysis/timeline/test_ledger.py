"""The ledger, calculated by hand with a fake clock."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell import StepwellError, ai
from stepwell.analysis.timeline import background, ledger, phase_of_span, steps, timelines
from stepwell.testing import FakeClock, recorded
from tests.analysis.timeline.writing import Process, Thread, Written, write_run
from tests.harness import run_script

SECOND = 1_000_000_000


def seconds(table: pl.DataFrame, *keys: str) -> dict[Any, float]:
    """Return seconds by phase, or by the keys and phase, from whole nanoseconds."""
    rows = table.select(*keys, "phase", "ns").rows()
    return {row[:-1] if keys else row[0]: row[-1] / SECOND for row in rows}


def iteration(clock: FakeClock, forward: float = 2.0) -> None:
    """An iteration of 10 seconds: 2 forward, 3 backward, 1 optimizer, 4 in no phase."""
    with stepwell.span("training_single_iteration"):
        clock.advance(1)
        with stepwell.span("model_forward"):
            clock.advance(forward)
        with stepwell.span("model_backward"):
            clock.advance(3)
        clock.advance(3)
        with stepwell.span("optimizer_update"):
            clock.advance(1)


def test_the_whole_wall_time_is_in_the_ledger() -> None:
    """Start-up, data, the parts of iterations, pauses between them, validation, a checkpoint, the end."""
    with FakeClock() as clock, recorded() as run:
        clock.advance(5)
        with stepwell.span("application"):
            with stepwell.span("model_initialization"):
                clock.advance(7)
            with stepwell.span("training_loop"):
                for step in range(3):
                    with stepwell.span("data_loading"):
                        clock.advance(0.5)
                    run.run.set_step(step, 0)
                    iteration(clock)
                    clock.advance(0.25)
                with stepwell.span("validation_loop"), stepwell.span("model_forward"):
                    clock.advance(20)
                with stepwell.span("checkpoint_save_sync"):
                    clock.advance(30)
            clock.advance(2)
        run.run.flush()
        result = timelines(run.recorded)
        table = ledger(result)
        by_step = ledger(result, by=("step",))
        rows = steps(result)
    assert seconds(table) == {
        "startup": 12,
        "data": 1.5,
        "forward": 6,
        "backward": 9,
        "optimizer": 3,
        "other": 12.5,
        "checkpoint": 30,
        "validation": 20,
        "ending": 2.25,
    }
    wall = 12 + 3 * 10.75 + 50 + 2
    assert table["ns"].sum() == wall * SECOND
    assert table["share"].sum() == pytest.approx(1)
    assert result[0].wall_ns == wall * SECOND
    assert seconds(by_step.filter(pl.col("step") == 1)) == {
        "data": 0.5,
        "forward": 2,
        "backward": 3,
        "optimizer": 1,
        "other": 4.25,
    }
    assert seconds(by_step.filter(pl.col("step").is_null())) == {"startup": 12, "ending": 2}
    assert rows.select("step", "epoch", "duration_ns", "gap_ns", "period_ns").rows() == [
        (0, 0, 10 * SECOND, None, 10_750_000_000),
        (1, 0, 10 * SECOND, 750_000_000, 10_750_000_000),
        (2, 0, 10 * SECOND, 750_000_000, 60_750_000_000),
    ]
    assert rows["validation"].to_list() == [0, 0, 20 * SECOND]


def test_a_range_of_steps_and_epochs() -> None:
    """Only the time of these steps; an epoch includes the time after its last step."""
    with FakeClock() as clock, recorded() as run:
        for step in range(6):
            run.run.set_step(step, step // 3)
            iteration(clock, forward=2 + step)
            if step % 3 == 2:
                with stepwell.span("validation_loop"):
                    clock.advance(100)
        run.run.flush()
        result = timelines(run.recorded)
        some = seconds(ledger(result, steps=range(1, 6, 2)))
        epochs = seconds(ledger(result, by=("epoch",)), "epoch")
        nothing = ledger(result, steps=range(7, 9))
        none = ledger(result, by=())
    assert some == {
        "forward": 3 + 5 + 7,
        "backward": 9,
        "optimizer": 3,
        "other": 12,
        "validation": 100,
    }
    assert epochs[0, "forward"] == 2 + 3 + 4
    assert epochs[1, "forward"] == 5 + 6 + 7
    assert epochs[0, "validation"] == epochs[1, "validation"] == 100
    assert nothing.is_empty()
    assert none.columns == ["phase", "ns", "seconds", "share"]
    with pytest.raises(StepwellError, match="by must be 'rank', 'attempt', 'epoch' or 'step', got"):
        ledger(result, by=("phase",))


def test_what_claims_its_inside_and_what_does_not() -> None:
    """A checkpoint within validation is a checkpoint; an own span has the time without a phase."""
    with FakeClock() as clock, recorded() as run:
        with stepwell.span("training_single_iteration"):
            with stepwell.span("attention"):
                clock.advance(1)
            with stepwell.span("model_forward"), stepwell.span("attention"):
                clock.advance(2)
                with stepwell.span("all_reduce"):
                    clock.advance(4)
        with stepwell.span("validation_loop"):
            with stepwell.span("data_loading"):
                clock.advance(8)
            with stepwell.span("checkpoint_save_sync"), stepwell.span("model_forward"):
                clock.advance(16)
        with stepwell.span("logging to somewhere"):
            clock.advance(32)
        with stepwell.span("training_single_iteration"):
            clock.advance(64)
        run.run.flush()
        table = ledger(run.recorded)
    assert seconds(table) == {
        "span:attention": 1,
        "other": 64,
        "forward": 2,
        "communication": 4,
        "validation": 8,
        "checkpoint": 16,
        "span:logging to somewhere": 32,
    }


def test_a_run_with_plain_names_and_steps_only() -> None:
    """Steps as they were set, each from the wait for its batch on; time in no span is other."""
    with FakeClock() as clock, recorded() as run:
        with run.run.span("set up"):
            clock.advance(3)
        with run.run.span("epoch"):
            for step in range(3):
                with run.run.span("wait for data"):
                    clock.advance(step + 1)
                run.run.set_step(step)
                with run.run.span("forward"):
                    clock.advance(10)
                clock.advance(5)
                with run.run.span("backward"):
                    clock.advance(10)
                clock.advance(0.5)
            with run.run.span("validate"):
                clock.advance(7)
        clock.advance(1)
        run.run.flush()
        result = timelines(run.recorded)
        table, rows = ledger(result), steps(result)
    assert seconds(table) == {
        "startup": 3,
        "data": 6,
        "forward": 30,
        "backward": 30,
        "validation": 7,
        "ending": 1.5,
        "other": 16,
    }
    assert rows["data"].to_list() == [SECOND, 2 * SECOND, 3 * SECOND]
    assert rows["duration_ns"].to_list() == [25 * SECOND] * 3
    assert rows["gap_ns"].to_list() == [None, 2_500_000_000, 3_500_000_000]


def test_a_run_with_the_ai_tree_only() -> None:
    """Its nodes have phases, and ``ai.update(step=…)`` sets the step."""
    with FakeClock() as clock, recorded() as run:
        with ai.dataloader.init:
            clock.advance(1)
        for step in range(2):
            ai.update(step=step, epoch=0)
            with ai.dataloader.fetch:
                clock.advance(2)
            with ai.device.transfer:
                clock.advance(0.5)
            with ai.compute.forward, ai.comm.all_reduce:
                clock.advance(4)
            with ai.compute.step:
                clock.advance(3)
        with ai.checkpoint.capture:
            clock.advance(6)
        run.run.flush()
        result = timelines(run.recorded)
        table, rows = ledger(result), steps(result)
    assert seconds(table) == {
        "startup": 1,
        "data": 4,
        "transfer": 1,
        "communication": 8,
        "optimizer": 6,
        "checkpoint": 6,
    }
    assert rows["step"].to_list() == [0, 1]
    assert rows["period_ns"].to_list() == [9_500_000_000, 15_500_000_000]


def test_a_run_without_steps() -> None:
    """Before the first work it is startup, after the last it is ending, in between it is other."""
    with FakeClock() as clock, recorded() as run:
        clock.advance(1)
        for _ in range(2):
            with run.run.span("forward"):
                clock.advance(2)
            clock.advance(4)
        run.run.flush()
        result = timelines(run.recorded)
        table = seconds(ledger(result))
        assert steps(result).is_empty()
    assert table == {"startup": 1, "forward": 4, "other": 4, "ending": 4}


def test_a_run_without_anything() -> None:
    """All of it is other."""
    with FakeClock() as clock, recorded() as run:
        clock.advance(3)
        run.run.flush()
        assert seconds(ledger(run.recorded)) == {"other": 3}


def test_micro_batches_are_one_step() -> None:
    """Two iterations per step: one row, from the first to the last."""
    with FakeClock() as clock, recorded() as run:
        for number in range(4):
            run.run.set_step(number // 2)
            with stepwell.span("training_single_iteration"):
                clock.advance(2)
            clock.advance(1)
        run.run.flush()
        rows = steps(run.recorded)
    assert rows.select("step", "duration_ns", "other").rows() == [
        (0, 5 * SECOND, 6 * SECOND),
        (1, 5 * SECOND, 5 * SECOND),
    ]


def test_a_step_that_iterations_tell_themselves_counts() -> None:
    """An attribute ``step`` wins over ``set_step``."""
    with FakeClock() as clock, recorded() as run:
        for number in (7, 8, 3):
            with stepwell.span("training_single_iteration", step=number):
                clock.advance(1)
        run.run.flush()
        assert steps(run.recorded).select("step", "epoch").rows() == [
            (7, None),
            (8, None),
            (3, None),
        ]


def test_tasks_that_take_turns() -> None:
    """Of two overlapping spans, the one that began last owns the time; then the other one again."""

    async def work(clock: FakeClock) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            with stepwell.span("model_forward"):
                clock.advance(1)
                begun.set()
                await ended.wait()
                # The other one has ended in the meantime.
                clock.advance(4)

        async def second() -> None:
            await begun.wait()
            with stepwell.span("data_loading"):
                clock.advance(2)
            ended.set()

        with stepwell.span("training_single_iteration"):
            await asyncio.gather(first(), second())

    with FakeClock() as clock, recorded() as run:
        asyncio.run(work(clock))
        run.run.flush()
        assert seconds(ledger(run.recorded)) == {"forward": 5, "data": 2}


def test_a_child_that_outlives_its_parent(tmp_path: Path) -> None:
    """It owns its time until it ends, in the phase that it has as a child."""
    spans = [
        Written("training_single_iteration", 0, 50),
        Written("model_forward", 10, 30, 0),
        Written("helper", 20, 60, 1),
        Written("training_single_iteration", 70, 80),
    ]
    run = write_run(tmp_path, Process([Thread(spans)], 100))
    expected = {"other": 30, "forward": 50, "ending": 20}
    assert dict(ledger(run).select("phase", "ns").rows()) == expected


def test_garbage_collections_are_cut_out_of_everything(tmp_path: Path) -> None:
    """Out of iterations, pauses and validation; overlapping ones count once."""
    spans = [
        Written("training_single_iteration", 10, 30),
        Written("validation_loop", 40, 60),
        Written("training_single_iteration", 70, 90),
    ]
    pauses = [
        Written("gc", a, b, None, "runtime") for a, b in ((5, 12), (28, 45), (44, 46), (65, 75))
    ]
    run = write_run(tmp_path, Process([Thread(spans), Thread(pauses, "gc")], 100))
    assert dict(ledger(run).select("phase", "ns").rows()) == {
        "startup": 5,
        "garbage collection": 7 + 18 + 10,
        "other": 16 + 15 + 5,
        "validation": 14,
        "ending": 10,
    }
    assert steps(run)["garbage collection"].to_list() == [2 + 18 + 5, 5]


def test_two_ranks_and_attempts_are_kept_apart(tmp_path: Path) -> None:
    """Each has a wall time of its own; without ``by`` they are summed."""

    def process(rank: int, attempt: int, length: int) -> Process:
        spans = [Written("training_single_iteration", attempt * 1000, attempt * 1000 + length)]
        return Process(
            [Thread(spans)], attempt * 1000 + 200, rank=rank, attempt=attempt, start=attempt * 1000
        )

    run = write_run(
        tmp_path, process(0, 0, 100), process(1, 0, 50), process(0, 1, 30), process(1, 1, 20)
    )
    table = ledger(run, by=("rank", "attempt")).filter(pl.col("phase") == "other")
    assert table.select("rank", "attempt", "ns").rows() == [
        (0, 0, 100),
        (0, 1, 30),
        (1, 0, 50),
        (1, 1, 20),
    ]
    assert ledger(run)["ns"].sum() == 4 * 200
    assert ledger(run, by=("rank",)).group_by("rank").agg(pl.col("ns").sum())["ns"].to_list() == [
        400,
        400,
    ]


def test_workers_and_other_threads_own_nothing(tmp_path: Path) -> None:
    """Their work is listed as background: the time of any of them, and the sum."""
    main = [Written("training_single_iteration", 0, 100), Written("all_reduce", 40, 50, 0, "comm")]
    saver = [Written("checkpoint_save_async", 20, 90), Written("write", 30, 40, 0)]
    messenger = [
        Written("all_reduce", 30, 60, None, "comm"),
        Written("all_reduce", 55, 70, None, "comm"),
    ]
    threads = [Thread(main), Thread(saver, "saver"), Thread(messenger, "messenger")]
    items = [Written("item", 10, 30, None, "data"), Written("decode", 12, 20, 0)]
    run = write_run(
        tmp_path,
        Process(threads, 100),
        Process([Thread(items)], 100, worker=0),
        Process([Thread([Written("draw", 20, 60)])], 100, worker=1),
    )
    assert dict(ledger(run).select("phase", "ns").rows()) == {"other": 90, "communication": 10}
    assert background(run).rows() == [
        (0, 0, "communication overlapped", 30, 30, 2),
        (0, 0, "checkpoint in the background", 70, 70, 2),
        (0, 0, "data preparation in workers", 50, 60, 3),
    ]


def test_a_checkpoint_thread_takes_none_of_the_time_of_training() -> None:
    """With real threads: the iteration has all of its time."""
    with FakeClock() as clock, recorded() as run:
        begun, done = threading.Event(), threading.Event()

        def save() -> None:
            with stepwell.span("checkpoint_save_async"):
                begun.set()
                done.wait(10)

        thread = threading.Thread(target=save, name="saver")
        with stepwell.span("training_single_iteration"):
            clock.advance(1)
            thread.start()
            begun.wait(10)
            clock.advance(3)
            done.set()
            thread.join()
        run.run.flush()
        result = timelines(run.recorded)
        assert seconds(ledger(result)) == {"other": 4}
        assert background(result).select("kind", "ns").rows() == [
            ("checkpoint in the background", 3 * SECOND)
        ]


def test_training_in_another_thread_than_the_main_one(tmp_path: Path) -> None:
    """The ledger describes the thread that has the iterations."""
    waiting = [Written("application", 0, 100)]
    training = [Written("training_single_iteration", 10, 90)]
    run = write_run(tmp_path, Process([Thread(waiting), Thread(training, "trainer")], 100))
    expected = {"startup": 10, "other": 80, "ending": 10}
    assert dict(ledger(run).select("phase", "ns").rows()) == expected


def test_a_running_run_lasts_until_now() -> None:
    """An open span has the time up to now; a moment later it has more."""
    with FakeClock() as clock, recorded() as run, stepwell.span("training_single_iteration"):
        with stepwell.span("model_forward"):
            clock.advance(2)
            run.run.flush()
            assert seconds(ledger(run.recorded)) == {"forward": 2}
            clock.advance(3)
            assert seconds(ledger(run.recorded)) == {"forward": 5}
        clock.advance(1)
        assert seconds(ledger(run.recorded)) == {"forward": 5, "other": 1}


def test_a_run_that_stopped_showing_life(tmp_path: Path) -> None:
    """It lasts until its last sign of life; the heartbeat may be older than the last span."""
    spans = [
        Written("training_single_iteration", 0, 50),
        Written("training_single_iteration", 60, None),
        Written("model_backward", 70, 80, 1),
        Written("model_backward", 90, None, 1),
    ]
    run = write_run(tmp_path, Process([Thread(spans)], 75, status="running"))
    result = timelines(run)
    assert result[0].status == "killed"
    assert result[0].wall_ns == 90
    assert dict(ledger(result).select("phase", "ns").rows()) == {
        "other": 80,
        "backward": 10,
    }


KILLED = """
import os, signal, stepwell, sys
run = stepwell.init("victim", dir=sys.argv[1], run_id="job")
for step in range(3000):
    run.set_step(step)
    with run.span("training_single_iteration"):
        with run.span("model_forward"):
            pass
        if step == 2990:
            with run.span("checkpoint_save_sync"):
                os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_is_accounted_for_to_its_last_span(tmp_path: Path) -> None:
    """Over several segments, with the spans that were open when it died."""
    ended = run_script(KILLED, tmp_path)
    assert ended.returncode == -signal.SIGKILL
    run = stepwell.open_run(tmp_path / "job")
    result = timelines(run)
    part = result[0]
    assert part.status == "killed"
    assert ledger(result)["ns"].sum() == part.wall_ns
    rows = steps(result)
    assert rows["step"].to_list() == list(range(2991))
    spans = run.spans().filter(pl.col("name") == "model_forward").collect()
    assert rows["forward"].sum() == spans["duration_ns"].sum()


def test_what_goes_on_over_several_segments_keeps_its_time_and_phase() -> None:
    """Spans that begin in one segment and end two later, or never, with 40,000 in between."""
    with FakeClock() as clock, recorded() as run, stepwell.span("application"):
        with stepwell.span("training_single_iteration"), stepwell.span("model_forward"):
            for _ in range(20_000):
                clock.advance(1e-6)
                with stepwell.span("layer"):
                    clock.advance(2e-6)
            clock.advance(5)
        with stepwell.span("validation_loop"), stepwell.span("helper"):
            for _ in range(20_000):
                with stepwell.span("model_forward"):
                    clock.advance(1e-6)
                clock.advance(1e-6)
            run.run.flush()
            result = timelines(run.recorded)
    assert seconds(ledger(result)) == {"forward": 5.06, "validation": 0.04}
    assert result[0].wall_ns == 5_100_000_000


def test_long_spans_go_on_over_many_segments(tmp_path: Path) -> None:
    """The loop around 50,000 iterations has only the time between them."""
    spans = [Written("application", 0, 5_000_010), Written("training_loop", 5, 5_000_005, 0)]
    for number in range(50_000):
        spans.append(Written("training_single_iteration", 10 + 100 * number, 90 + 100 * number, 1))
    run = write_run(tmp_path, Process([Thread(spans)], 5_000_010))
    result = timelines(run)
    assert dict(ledger(result).select("phase", "ns").rows()) == {
        "startup": 10,
        "other": 80 * 50_000 + 20 * 49_999,
        "ending": 20,
    }
    assert len(steps(result)) == 50_000


@pytest.mark.parametrize(
    ("name", "category", "phase"),
    [
        ("model_forward", "", "forward"),
        ("forward", "compute", "forward"),
        ("forward", "", "forward"),
        ("wait for data", "", "data"),
        ("save_checkpoint", "", "checkpoint"),
        ("TrainStep", "", "training"),
        ("ai.comm.all_reduce", "", "communication"),
        ("fetch.block", "dataloader", None),
        ("attention", "", None),
        ("forward", "something else", None),
    ],
)
def test_phases_by_name(name: str, category: str, phase: str | None) -> None:
    """Standard names, `ai` nodes, and common names without a category."""
    assert phase_of_span(name, category) == phase
