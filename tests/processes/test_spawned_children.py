"""Spawned children record as forked ones do, and take spans and runs along."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys

import polars as pl
import pytest

import stepwell
from stepwell import Run
from stepwell.journal.span import NamedSpan


def work(kept: NamedSpan, counted: NamedSpan, run: Run) -> None:
    """The work of the child; at the top of a module, so that spawn finds it."""
    stepwell.set_step(7)
    with kept:
        pass
    with counted:
        run.log({"child": 1.0})
    stepwell.artifact(b"made by the child", "from child")
    pid = os.fork()
    for _ in range(50):
        with stepwell.span("loop" if pid else "grandchild"):
            pass
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the child forks")
def test_a_spawned_child_records_all_that_a_parent_can(recorded: Run) -> None:
    """Pickled spans keep their names, steps and artifacts count, and a grandchild is kept apart."""
    for i in range(5):
        stepwell.span(f"ids differ between processes {i}")
    spans = stepwell.span("kept"), stepwell.span("counted", number=3)
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=work, args=(*spans, recorded))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    recorded.finish()
    run = stepwell.open_run(recorded.path)
    found = run.spans().collect()
    assert dict(found["name"].value_counts().iter_rows()) == {
        "kept": 1,
        "counted": 1,
        "loop": 50,
        "grandchild": 50,
    }
    where = {(row["name"], row["process"]) for row in found.to_dicts()}
    by_name = dict(where)
    assert len(where) == 4
    assert by_name["loop"] == by_name["kept"] != by_name["grandchild"]
    own = found.filter(pl.col("name") != "grandchild")
    assert own["step"].unique().to_list() == [7]
    assert own.filter(pl.col("name") == "counted")["attributes"].to_list() == ['{"number":3}']
    assert run.metrics().collect()["step"].to_list() == [7]
    assert run.artifacts().collect()["name"].to_list() == ["from child"]
    assert run.processes().collect()["started_ns"].null_count() == 0


def test_a_run_goes_through_pickle(recorded: Run) -> None:
    """A run that a data set holds on to can be sent to another process."""
    copy = pickle.loads(pickle.dumps(recorded))
    assert (copy.id, copy.path, copy.attempt) == (recorded.id, recorded.path, recorded.attempt)
    copy.log({"through the copy": 2.0})
    copy.finish()
    recorded.finish()
    names = stepwell.open_run(recorded.path).metrics().collect()["name"].to_list()
    assert names == ["through the copy"]


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_short_threads_of_a_child_leave_no_lanes(recorded: Run) -> None:
    """A child without a pump lets go of the files of threads that have ended."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        import threading

        # Whoever runs this test may have any number of files open.
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(100):
            thread = threading.Thread(target=stepwell.span("short").__enter__)
            thread.start()
            thread.join()
        os.write(writing, f"{len(os.listdir('/proc/self/fd')) - before}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert int(os.read(reading, 100)) < 40
    recorded.finish()
    assert stepwell.open_run(recorded.path).spans().collect().height == 100
