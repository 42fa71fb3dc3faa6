"""Forked children record as workers of their parent, and never into its files."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.nesting.tree import check_tree, edges
from tests.processes.programs import execute, files_of, only_run, runs_in, write_program

WAIT = """
def wait_for(pid, code=0, limit=60.0):
    # Bounded: a child that hangs is a failure, not a test that never ends.
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == code, os.waitstatus_to_exitcode(status)
            return
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise SystemExit("a child hangs")
"""


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
    """A child may flush, finish and exit normally: the parent's run goes on and is complete."""
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


def test_threads_of_a_child_record_at_once(tmp_path: Path) -> None:
    """Where several threads of a child are the first to record there, none loses anything."""
    program = """
    import threading
    run = stepwell.init(dir=RUNS)
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            together = threading.Barrier(8)

            def work():
                together.wait(30)
                with stepwell.span("thread"):
                    stepwell.log({"x": 1.0})
                    stepwell.event("ping")

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            os._exit(0)
        wait_for(pid)
    run.finish()
    """
    execute(tmp_path, write_program(tmp_path, program, WAIT))
    run = only_run(tmp_path)
    assert run.spans().collect().height == 160
    assert run.metrics().collect().height == 160
    assert run.events().collect().height == 160
    assert run.processes().collect()["dropped"].sum() == 0


@pytest.mark.slow
def test_forks_in_the_midst_of_recording(tmp_path: Path) -> None:
    """Threads record, the pump seals and the main thread forks 60 times: no child hangs."""
    program = """
    import threading
    run = stepwell.init(dir=RUNS)
    stop = threading.Event()
    counts = [0, 0]

    def work(number):
        while not stop.is_set():
            for _ in range(200):
                with stepwell.span("thread", a=1), stepwell.span("inside"):
                    counts[number] += 1
            stepwell.event("mark")
            # A new name takes the lock of the string table.
            with stepwell.span(f"name {number} {counts[number]}"):
                time.sleep(0.005)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for i in range(60):
        run.log({f"metric {i}": 1.0})
        if i % 10 == 0:
            run.flush()
        pid = os.fork()
        if pid == 0:
            with stepwell.span("child", i=i), stepwell.span(f"child {i}"):
                stepwell.event("ping", i=i)
                stepwell.log({"x": float(i)})
            os._exit(0)
        wait_for(pid)
    stop.set()
    for thread in threads:
        thread.join()
    run.finish()
    print(sum(counts))
    """
    printed = execute(tmp_path, write_program(tmp_path, program, WAIT))
    run = only_run(tmp_path)
    spans = run.spans().collect()
    check_tree(spans)
    found = edges(spans)
    assert found["child", None] == 60
    assert sum(found[f"child {i}", "child"] for i in range(60)) == 60
    assert found["inside", "thread"] == found["thread", None] == int(printed)
    assert run.metrics().filter(pl.col("name") == "x").collect()["value"].to_list() == list(
        map(float, range(60))
    )
    assert run.events().filter(pl.col("name") == "ping").collect().height == 60
    assert run.processes().collect()["dropped"].sum() == 0


def test_children_that_live_on_do_not_hold_up_the_pump(tmp_path: Path) -> None:
    """Children forked while the pump asks git about the code do not keep it waiting."""
    program = """
    pids = []
    for _ in range(8):
        run = stepwell.init(dir=RUNS)
        for _ in range(25):
            pid = os.fork()
            if pid == 0:
                time.sleep(600)
            pids.append(pid)
            time.sleep(0.0005)
        in_time = run.flush(20)
        if not in_time:
            break
        run.finish()
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert in_time
    """
    execute(tmp_path, write_program(tmp_path, program))
    assert {run.status for run in runs_in(tmp_path)} == {"finished"}
