"""Forks at awkward moments: threads in the midst of recording, the pump at work.

Programs that fork often start cold: a fork takes longer the more a process has imported.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.nesting.tree import check_tree, edges
from tests.processes.programs import WAIT, execute, only_run, runs_in, write_program


@pytest.mark.full
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
    execute(tmp_path, write_program(tmp_path, program, WAIT), cold=True)
    run = only_run(tmp_path)
    assert run.spans().collect().height == 160
    assert run.metrics().collect().height == 160
    assert run.events().collect().height == 160
    assert run.processes().collect()["dropped"].sum() == 0


@pytest.mark.full
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
    printed = execute(tmp_path, write_program(tmp_path, program, WAIT), cold=True)
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


@pytest.mark.full
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
    execute(tmp_path, write_program(tmp_path, program), cold=True)
    assert {run.status for run in runs_in(tmp_path)} == {"finished"}


def test_a_fork_while_another_thread_holds_the_locks(tmp_path: Path) -> None:
    """A child whose parent was just writing a name or an event does not wait for it for ever."""
    program = """
    import threading
    from stepwell.journal.names import names
    from stepwell.journal.state import state
    run = stepwell.init(dir=RUNS)
    held, go = threading.Event(), threading.Event()

    def hold():
        with names._lock, state.journal._lock:
            held.set()
            go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    pid = os.fork()
    if pid == 0:
        with stepwell.span("a new name"):
            stepwell.event("ping")
        os._exit(0)
    wait_for(pid)
    go.set()
    thread.join()
    run.finish()
    """
    execute(tmp_path, write_program(tmp_path, program, WAIT))
    run = only_run(tmp_path)
    assert edges(run.spans().collect()) == {("a new name", None): 1}
    assert run.events().collect()["name"].to_list() == ["ping"]


def test_a_fork_while_the_pump_imports(tmp_path: Path) -> None:
    """Whatever the pump needs for the first time, a child forked meanwhile can import it too."""
    program = """
    pids = []
    run = stepwell.init(dir=RUNS)
    for i in range(40):
        pid = os.fork()
        if pid == 0:
            import codecs, csv, email.message, email.parser, importlib.metadata, platform
            import shutil, subprocess, tempfile, zipfile, zstandard
            codecs.lookup("ascii")
            email.message.Message, importlib.metadata.version, zstandard.ZstdCompressor
            os._exit(0)
        pids.append(pid)
        time.sleep(0.001)
    for pid in pids:
        wait_for(pid, limit=20)
    run.finish()
    """
    for _ in range(2):
        execute(tmp_path, write_program(tmp_path, program, WAIT), cold=True)
