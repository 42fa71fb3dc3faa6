"""Recording is switched on and off while spans are open; nothing breaks and nothing leaks over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import stepwell
from stepwell import Run
from stepwell.journal import journal as journal_module
from stepwell.journal.segment import Segment
from tests.nesting.tree import SLOTS, edges, events, finished, read, statuses


@stepwell.span("module level", kind="decorated")
def work(x: int) -> int:
    with stepwell.span("inside") as inside:
        inside.set(x=x)
        stepwell.event("ping", x=x)
        stepwell.log({"x": x})
        stepwell.set_step(x)
    return x + 1


def test_without_a_run_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything can be called with no run active; no file appears."""
    monkeypatch.chdir(tmp_path)
    assert stepwell.active_run() is None
    assert work(1) == 2
    stepwell.artifact(b"content", "name")
    assert stepwell.flush()
    stepwell.finish()
    assert list(tmp_path.iterdir()) == []


def test_mode_off_switches_all_of_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With STEPWELL_MODE=off a run can be used as ever, and no file appears."""
    monkeypatch.setenv("STEPWELL_MODE", "off")
    with stepwell.init("off", dir=tmp_path / "runs", config={"a": 1}) as run:
        assert run.disabled
        assert work(1) == 2
        with run.span("work", a=1):
            run.log({"loss": 1.0})
            run.event("ping")
            run.artifact(b"content", "name")
        assert run.flush()
    assert stepwell.active_run() is None
    assert list(tmp_path.iterdir()) == []


def test_a_span_entered_before_the_run_is_not_in_it(tmp_path: Path) -> None:
    """Leaving it is harmless, and it is not a parent of later spans."""
    before, again = stepwell.span("before"), stepwell.span("again")
    with before, again:
        run = stepwell.init(dir=tmp_path)
        with again, stepwell.span("during"):
            pass
    with stepwell.span("after"):
        pass
    spans = finished(run)
    assert edges(spans) == {("again", None): 1, ("during", "again"): 1, ("after", None): 1}
    assert set(spans["status"]) == {"ok"}


def test_a_span_left_after_the_run_is_unfinished(recorded: Run) -> None:
    """Spans that were open when the run was finished have their time until then, and are left later."""
    with recorded.span("outer"), recorded.span("inner", a=1):
        with recorded.span("done"):
            pass
        recorded.finish()
        with stepwell.span("nowhere"):
            pass
    spans = read(recorded)
    assert dict(spans.select("name", "status").iter_rows()) == {
        "outer": "unfinished",
        "inner": "unfinished",
        "done": "ok",
    }
    assert spans["duration_ns"].null_count() == 0
    assert stepwell.open_run(recorded.path).open_spans().collect().height == 0


def test_a_generator_that_spans_two_runs(recorded: Run) -> None:
    """Its span, begun in one run and closed in the next, changes nothing in the next."""

    def generate() -> Iterator[None]:
        with stepwell.span("generator"):
            yield

    generator = generate()
    next(generator)
    second = stepwell.init("second", dir=recorded.path.parent)
    with stepwell.span("outer"):
        generator.close()
        with stepwell.span("inner"):
            pass
    assert edges(finished(second)) == {("outer", None): 1, ("inner", "outer"): 1}
    assert statuses(read(recorded)) == {("generator", "unfinished"): 1}


def test_a_second_init_finishes_the_first_run(recorded: Run) -> None:
    """The first run is finished and complete, what follows is in the second one only."""
    with recorded.span("one"):
        recorded.log({"loss": 1.0})
    second = stepwell.init("second", dir=recorded.path.parent)
    assert stepwell.active_run() is second
    assert recorded.status == "finished"
    assert second.id != recorded.id
    with stepwell.span("two"):
        stepwell.event("ping")
    second.finish()
    assert stepwell.active_run() is None
    assert stepwell.open_run(recorded.path).status == "finished"
    assert edges(read(recorded)) == {("one", None): 1}
    assert edges(read(second)) == {("two", None): 1}
    assert events(recorded) == []
    assert [name for name, _, _ in events(second)] == ["ping"]


def test_finishing_twice_or_an_old_run_is_harmless(recorded: Run) -> None:
    """A run can be finished again, and finishing the old one leaves the new one alone."""
    recorded.finish()
    recorded.finish("failed")
    second = stepwell.init("second", dir=recorded.path.parent)
    recorded.finish()
    recorded.flush()
    assert stepwell.active_run() is second
    with stepwell.span("two"):
        pass
    assert edges(finished(second)) == {("two", None): 1}
    assert stepwell.open_run(recorded.path).status == "finished"


def test_a_module_level_function_in_two_runs(recorded: Run) -> None:
    """Steps and counts of one run are not carried into the next."""
    for x in (5, 6):
        work(x)
    recorded.finish()
    second = stepwell.init("second", dir=recorded.path.parent)
    stepwell.log({"x": 0.0})
    for x in (7, 8):
        work(x)
    second.finish()
    first_steps, second_steps = (
        stepwell.open_run(run.path).metrics().select("step", "value").collect().rows()
        for run in (recorded, second)
    )
    # Logged before the first step is set: a count; afterwards: the step of the moment.
    assert first_steps == [(0, 5.0), (5, 6.0)]
    assert second_steps == [(0, 0.0), (1, 7.0), (7, 8.0)]
    for run in (recorded, second):
        assert edges(read(run)) == {("module level", None): 2, ("inside", "module level"): 2}


def test_a_thread_goes_on_from_one_run_to_the_next(recorded: Run) -> None:
    """A thread that keeps recording while runs change loses no span of a later run."""
    turn, done = threading.Semaphore(0), threading.Semaphore(0)

    def loop() -> None:
        for i in range(3):
            turn.acquire()
            with stepwell.span(f"round {i}"), stepwell.span("inside"):
                done.release()
                turn.acquire()
            done.release()

    thread = threading.Thread(target=loop)
    thread.start()
    runs = [recorded]
    for i in range(3):
        turn.release()
        assert done.acquire(timeout=60)
        turn.release()
        assert done.acquire(timeout=60)
        if i < 2:
            runs.append(stepwell.init(f"run {i}", dir=recorded.path.parent))
    thread.join(60)
    for i, run in enumerate(runs):
        assert edges(finished(run)) == {(f"round {i}", None): 1, ("inside", f"round {i}"): 1}


def test_threads_record_while_the_run_is_finished(recorded: Run) -> None:
    """Finishing in the midst of other threads' spans breaks neither them nor the files."""
    stop = threading.Event()
    problems: list[BaseException] = []

    def loop() -> None:
        try:
            while not stop.wait(0.0005):
                with stepwell.span("outer", a=1), stepwell.span("inner"):
                    stepwell.log({"x": 1.0})
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    runs = [recorded]
    for i in range(3):
        with stepwell.span("main"):
            pass
        runs.append(stepwell.init(f"run {i}", dir=recorded.path.parent))
    stop.set()
    for thread in threads:
        thread.join(60)
    assert problems == []
    for run in runs:
        spans = finished(run)
        # Where the outer span was entered before the run began, the inner one has no parent.
        expected = {("outer", None), ("inner", "outer"), ("inner", None), ("main", None)}
        assert set(edges(spans)) <= expected


def test_a_late_spare_segment_is_not_used_out_of_order(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the pump was slow to prepare a segment, the open spans are still seen as open."""
    begun, go = threading.Event(), threading.Event()

    class Slow(Segment):
        __slots__ = ()

        def __init__(self, folder: Path, kind: str, seq: int) -> None:
            if threading.current_thread().name == "stepwell-pump":
                begun.set()
                go.wait(60)
            super().__init__(folder, kind, seq)

    monkeypatch.setattr(journal_module, "Segment", Slow)
    with recorded.span("epoch"):
        for _ in range(SLOTS // 2 + 100):
            with recorded.span("step"):
                pass
        assert begun.wait(60)
        for _ in range(SLOTS):
            with recorded.span("step"):
                pass
        go.set()
        assert recorded.flush()
        for _ in range(SLOTS):
            with recorded.span("step"):
                pass
        opened = stepwell.open_run(recorded.path).open_spans().collect()
        assert opened["name"].to_list() == ["epoch"]
    spans = finished(recorded)
    assert edges(spans) == {("epoch", None): 1, ("step", "epoch"): SLOTS // 2 + 100 + 2 * SLOTS}
    assert spans.filter(pl.col("status") != "ok").height == 0
