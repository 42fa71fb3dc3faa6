"""Garbage collections as spans: exact, from any thread, and never in the recorder's way."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from tests.harness import environment, run_script


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> stepwell.Run:
    """A run that records collections of any length."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    monkeypatch.setenv("STEPWELL_GC_PAUSES", "0")
    return stepwell.init("test", dir=tmp_path / "runs")


def pauses(run: stepwell.Run) -> pl.DataFrame:
    """The collections of a finished run, with their attributes as columns."""
    spans = stepwell.open_run(run.path).spans().filter(name="gc").collect()
    about = [json.loads(text) for text in spans["attributes"]]
    return spans.with_columns(
        *(pl.Series(key, [a[key] for a in about]) for key in ("generation", "collected")),
        pl.Series("by", [a["thread"] for a in about]),
    )


def knot() -> None:
    """Two objects that only a collection can free."""
    a: list[Any] = []
    b = [a]
    a.append(b)


@pytest.mark.full
def test_a_collection_is_a_span_with_its_exact_time(run: stepwell.Run) -> None:
    """From its beginning to its end, however long that is, and what it collected."""

    class Slow:
        def __init__(self) -> None:
            self.knot = self

        def __del__(self) -> None:
            # Objects in a knot are finalized in the middle of the collection that frees them.
            time.sleep(0.02)

    gc.collect()
    gc.disable()
    for _ in range(100):
        knot()
    Slow()
    with run.span("around"):
        began = time.perf_counter_ns()
        found = gc.collect()
        took = time.perf_counter_ns() - began
    gc.enable()
    run.finish()
    spans = stepwell.open_run(run.path).spans().collect()
    around = spans.filter(name="around").row(0, named=True)
    inside = pauses(run).filter(pl.col("start_ns") >= around["start_ns"])
    first = inside.row(0, named=True)
    assert (first["generation"], first["collected"], first["by"]) == (2, found, "MainThread")
    assert (first["thread"], first["category"], first["status"]) == ("gc", "runtime", "ok")
    assert first["parent"] is None
    assert 0.02e9 <= first["duration_ns"] <= took
    end = first["start_ns"] + first["duration_ns"]
    assert end <= around["start_ns"] + around["duration_ns"]


@pytest.mark.full
def test_the_thread_that_collected_is_named(run: stepwell.Run) -> None:
    gc.collect()
    before = len(gc.get_objects())
    thread = threading.Thread(target=gc.collect, name="collector")
    thread.start()
    thread.join()
    run.finish()
    assert before > 0
    assert "collector" in set(pauses(run)["by"])


def test_short_ones_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_GC_PAUSES", "60000")
    run = stepwell.init("test", dir=tmp_path)
    gc.collect()
    run.finish()
    assert pauses(run).is_empty()


def test_after_the_run_python_calls_nobody(run: stepwell.Run) -> None:
    assert len(gc.callbacks) > 0
    before = len(gc.callbacks)
    run.finish()
    assert len(gc.callbacks) == before - 1
    again = stepwell.init("again", dir=run.path.parent)
    assert len(gc.callbacks) == before
    again.finish()


@pytest.mark.full
def test_a_forked_child_does_not_note_them(run: stepwell.Run) -> None:
    """It has no pump; and what its parent noted is its parent's."""
    before = len(gc.callbacks)
    pid = os.fork()
    if not pid:
        right = len(gc.callbacks) == before - 1
        gc.collect()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(gc.callbacks) == before


def test_the_callback_may_come_at_any_moment(run: stepwell.Run) -> None:
    """A collection at almost every allocation, in four threads that record all the while."""
    count, threads = 3000, 4
    old = gc.get_threshold()
    collections = [0]

    def counted(phase: str, info: dict[str, int]) -> None:
        collections[0] += phase == "stop"

    def work(number: int) -> None:
        for i in range(count):
            with run.span("outer", number=number, i=i), run.span("inner"):
                run.log({f"value {number}": float(i)}, step=i)
            if i % 100 == 0:
                run.event("hundred", number=number, i=i)

    gc.freeze()
    gc.callbacks.append(counted)
    gc.set_threshold(5, 2, 2)
    try:
        workers = [threading.Thread(target=work, args=(n,), name=f"w{n}") for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        gc.set_threshold(*old)
        gc.callbacks.remove(counted)
        gc.unfreeze()
    run.finish()
    recorded = stepwell.open_run(run.path)
    spans = recorded.spans().collect()
    for n in range(threads):
        own = spans.filter(pl.col("thread") == f"w{n}")
        outer, inner = own.filter(name="outer"), own.filter(name="inner")
        assert [json.loads(a) for a in outer["attributes"]] == [
            {"number": n, "i": i} for i in range(count)
        ]
        assert inner["parent"].to_list() == outer["id"].to_list()
        values = recorded.metrics().filter(name=f"value {n}").collect()
        assert values["value"].to_list() == [float(i) for i in range(count)]
    assert recorded.events().collect().height == threads * count // 100
    noted = pauses(run)
    # All but those of the few that began before the recorder was called, or after it.
    assert noted.height >= 10
    assert collections[0] - 200 <= noted.height <= collections[0] + 200
    # One after the other: a process never has two at once.
    ordered = noted.sort("start_ns")
    ends = (ordered["start_ns"] + ordered["duration_ns"]).to_list()
    assert all(a <= b for a, b in zip(ends, ordered["start_ns"].to_list()[1:], strict=False))


KILLED = """
import gc, os, signal
import stepwell
from tests.telemetry.pump_clock import stop_clock
clock = stop_clock()
run = stepwell.init("killed", dir=".")
junk = [[i] for i in range(200_000)]
gc.collect()
clock.pass_seconds(run, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_they_survive_a_kill(tmp_path: Path) -> None:
    """A second after a collection its span is in the run folder, come what may."""
    done = run_script(KILLED, cwd=tmp_path, env=environment(STEPWELL_GC_PAUSES="0"))
    assert done.returncode == -9
    (found,) = stepwell.list_runs(tmp_path)
    spans = found.spans().filter(name="gc").collect()
    assert spans.height >= 1
    assert set(spans["status"]) == {"ok"}
    assert found.open_spans().collect().is_empty()
