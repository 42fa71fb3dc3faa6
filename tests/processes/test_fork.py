"""Forked children record as workers of their parent, and never into its files."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tests.nesting.tree import check_tree, edges
from tests.processes.programs import WAIT, execute, files_of, only_run, runs_in, write_program


def test_a_forked_child_records_as_a_worker(tmp_path: Path) -> None:
    """Its spans, metrics and events have the parent's rank, step and epoch, and its own process."""
    program = """
    run = stepwell.init("forking", dir=RUNS)
    run.set_step(7, epoch=2)
    with run.span("parent"):
        pid = os.fork()
        if pid == 0:
            with stepwell.span("child", a=1), stepwell.span("child inside"):
                stepwell.log({"x": 1.5})
                stepwell.event("ping", b=2)
            os._exit(0)
        wait_for(pid)
    run.finish()
    """
    execute(tmp_path, write_program(tmp_path, program, WAIT))
    run = only_run(tmp_path)
    spans = run.spans().collect()
    check_tree(spans)
    assert edges(spans) == {("parent", None): 1, ("child", None): 1, ("child inside", "child"): 1}
    assert set(spans.select("rank", "attempt", "step", "epoch").iter_rows()) == {(0, 0, 7, 2)}
    processes = run.processes().collect()
    main, child = processes.sort("role").to_dicts()
    assert (main["role"], child["role"]) == ("main", "worker")
    assert child["parent"] == main["process"]
    assert child["worker"] is None
    assert child["pid"] != main["pid"]
    by_name = dict(spans.select("name", "process").iter_rows())
    assert by_name["parent"] == main["process"]
    assert by_name["child"] == by_name["child inside"] == child["process"]
    assert run.metrics().collect().select("process", "step", "epoch", "value").rows() == [
        (child["process"], 7, 2, 1.5)
    ]
    event = run.events().collect().row(0, named=True)
    assert (event["name"], event["process"], event["step"]) == ("ping", child["process"], 7)
    assert event["span"] == spans.filter(pl.col("name") == "child inside")["id"].item()
    assert not any("workers/" in name for name in files_of(run))


def test_a_child_that_leaves_the_parents_spans(tmp_path: Path) -> None:
    """Leaving in the child what the parent entered, in plain and in async code, changes nothing."""
    program = """
    import asyncio

    async def fork_inside():
        with stepwell.span("async parent"):
            pid = os.fork()
            if pid == 0:
                stepwell.log({"x": 1.0})
            else:
                wait_for(pid)
                await asyncio.sleep(0.02)
        return pid

    async def child():
        with stepwell.span("async child"):
            pass

    run = stepwell.init(dir=RUNS)
    with run.span("parent"):
        pid = os.fork()
        if pid:
            wait_for(pid)
            time.sleep(0.02)
        else:
            with stepwell.span("child"):
                pass
    if pid == 0:
        with stepwell.span("child after"):
            asyncio.run(child())
        os._exit(0)
    context_pid = asyncio.run(fork_inside())
    if context_pid == 0:
        os._exit(0)

    async def outer():
        with stepwell.span("outer"):
            pid = os.fork()
            if pid == 0:
                # A thread's loop in this context sees the parent's open span.
                import contextvars, threading
                thread = threading.Thread(
                    target=contextvars.copy_context().run, args=(asyncio.run, child())
                )
                thread.start()
                thread.join(30)
                os._exit(0)
            wait_for(pid)

    asyncio.run(outer())
    run.finish()
    """
    execute(tmp_path, write_program(tmp_path, program, WAIT))
    spans = only_run(tmp_path).spans().collect()
    check_tree(spans)
    assert edges(spans) == {
        ("parent", None): 1,
        ("child", None): 1,
        ("child after", None): 1,
        ("async child", "child after"): 1,
        ("async parent", None): 1,
        ("outer", None): 1,
        ("async child", None): 1,
    }
    durations = dict(spans.select("name", "duration_ns").iter_rows())
    # Ended by the parent after its nap, not by the child before.
    assert durations["parent"] >= 20_000_000
    assert durations["async parent"] >= 20_000_000
    assert set(spans["status"]) == {"ok"}


def test_flush_and_finish_in_a_child_leave_the_parent_alone(tmp_path: Path) -> None:
    """A child may flush, finish and exit normally: the parent's run continues and is complete."""
    program = """
    import threading
    run = stepwell.init(dir=RUNS)
    ready, go = threading.Event(), threading.Event()

    def work():
        with stepwell.span("thread"):
            ready.set()
            go.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(60)
    with run, run.span("parent", a=1):
        pid = os.fork()
        if pid == 0:
            with stepwell.span("child"):
                pass
            assert stepwell.flush()
            run.flush()
            run.finish()
            stepwell.finish()
            sys.exit(0)  # through the run's own context, and atexit
        wait_for(pid)
        for i in range(100):
            with run.span("later", i=i):
                pass
        go.set()
        thread.join()
    """
    execute(tmp_path, write_program(tmp_path, program, WAIT))
    run = only_run(tmp_path)
    assert run.status == "finished"
    spans = run.spans().collect()
    check_tree(spans)
    assert edges(spans) == {
        ("thread", None): 1,
        ("parent", None): 1,
        ("child", None): 1,
        ("later", "parent"): 100,
    }
    assert set(spans["status"]) == {"ok"}


def test_a_child_that_begins_a_run_has_its_own(tmp_path: Path) -> None:
    """``init`` in a forked child starts another run; the parent's is not touched by it."""
    program = """
    run = stepwell.init("parent", dir=RUNS)
    with run.span("before"):
        pass
    pid = os.fork()
    if pid == 0:
        with stepwell.init("child", dir=RUNS) as own:
            assert own.id != run.id
            with stepwell.span("inside"):
                pid = os.fork()
                if pid == 0:
                    with stepwell.span("grandchild"):
                        os._exit(0)
                wait_for(pid)
        sys.exit(0)
    wait_for(pid)
    with run.span("after"):
        pass
    """
    execute(tmp_path, write_program(tmp_path, program, WAIT))
    parent, child = runs_in(tmp_path)
    assert (parent.name, child.name) == ("parent", "child")
    assert (parent.status, child.status) == ("finished", "finished")
    assert sorted(parent.spans().collect()["name"]) == ["after", "before"]
    assert sorted(child.spans().collect()["name"]) == ["grandchild", "inside"]
    roles = child.processes().collect().select("role", "rank").rows()
    assert sorted(roles) == [("main", 0), ("worker", 0)]


def test_children_of_children(tmp_path: Path) -> None:
    """A child's child records too, when the run is still the grandparent's."""
    program = """
    run = stepwell.init(dir=RUNS)
    pid = os.fork()
    if pid == 0:
        with stepwell.span("child"):
            pid = os.fork()
            if pid == 0:
                with stepwell.span("grandchild"):
                    pass
                os._exit(0)
            wait_for(pid)
        os._exit(0)
    wait_for(pid)
    run.finish()
    """
    execute(tmp_path, write_program(tmp_path, program, WAIT))
    run = only_run(tmp_path)
    spans = run.spans().collect()
    assert sorted(spans["name"]) == ["child", "grandchild"]
    assert spans["process"].n_unique() == 2
    assert not any("workers/" in name for name in files_of(run))
