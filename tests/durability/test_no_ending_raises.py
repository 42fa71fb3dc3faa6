"""No ending raises into the training script, whatever the system refuses meanwhile, and no record is lost."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tests.durability.helpers import numbers, only_run, run_script, values

PROGRAM = """
import builtins, contextlib, errno, mmap, pathlib, subprocess, traceback
from stepwell import training
from stepwell.exporters.file import FileExporter
from stepwell.loggers import ConsoleLogger, Logger, LoggersCollection

FULL = OSError(errno.ENOSPC, "No space left on device")
FAULTS = {
    "thread": (threading.Thread, "start", RuntimeError("can't start new thread")),
    "process": (subprocess, "Popen", BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")),
    "open": (builtins, "open", OSError(errno.EMFILE, "Too many open files")),
    "os.open": (os, "open", OSError(errno.EMFILE, "Too many open files")),
    "os.replace": (os, "replace", FULL),
    "os.rename": (os, "rename", FULL),
    "os.link": (os, "link", FULL),
    "os.unlink": (os, "unlink", OSError(errno.EROFS, "Read-only file system")),
    "os.mkdir": (os, "mkdir", OSError(errno.EROFS, "Read-only file system")),
    "os.write": (os, "write", FULL),
    "os.fsync": (os, "fsync", OSError(errno.EIO, "Input/output error")),
    "os.stat": (os, "stat", OSError(errno.ESTALE, "Stale file handle")),
    "os.scandir": (os, "scandir", OSError(errno.ESTALE, "Stale file handle")),
    "os.posix_fallocate": (os, "posix_fallocate", FULL),
    "mmap": (mmap, "mmap", MemoryError()),
    "json": (json, "dumps", MemoryError()),
    "time.sleep": (time, "sleep", MemoryError()),
}

class Own(Logger):
    to = "own"

def refuse(error):
    def refused(*args, **kwargs):
        raise error
    return refused

@contextlib.contextmanager
def fault(name):
    place, attribute, error = FAULTS[name]
    original = getattr(place, attribute)
    setattr(place, attribute, refuse(error))
    try:
        yield
    finally:
        setattr(place, attribute, original)

def train():
    for i in range(10):
        with span("item", i=i):
            log({"loss": i / 2}, step=i)

def run_finish(name):
    run = init("training", dir="runs")
    run.add_exporter(FileExporter(f"{name}.jsonl"))
    train()
    with fault(name):
        run.flush(0.5)
        run.finish()
    return run.path

def end_of_with(name):
    with contextlib.ExitStack() as stack:
        run = init("training", dir="runs")
        stack.enter_context(run)
        train()
        stack.enter_context(fault(name))
    return run.path

def end_of_logging(name):
    loggers = LoggersCollection([Own(), ConsoleLogger(f"console {name}")])
    with contextlib.ExitStack() as stack:
        run = init("training", dir="runs")
        stack.enter_context(loggers.start_logging())
        train()
        loggers.log(1.0, "accuracy")
        stack.enter_context(fault(name))
        loggers.flush(0.5)
    run.finish()
    return run.path

def end_of_application(name):
    run = init("training", dir="runs")
    training.on_app_start()
    train()
    with fault(name):
        training.on_app_end()
    run.finish()
    return run.path

def try_it(ending, name):
    path = ending(name)
    found = stepwell.open_run(path).spans().collect()
    items = found.filter(found["name"] == "item").height
    losses = stepwell.open_run(path).metrics().collect()
    return items, losses.filter(losses["name"] == "loss").height

wrong = []
for ending in (run_finish, end_of_with, end_of_logging, end_of_application):
    for name in FAULTS if which == "all" else which.split():
        try:
            found = try_it(ending, name)
        except BaseException:
            found = traceback.format_exc()
        if found != (10, 10):
            wrong.append([ending.__name__, name, found])
        with contextlib.suppress(Exception):
            stepwell.finish()
print(json.dumps(wrong))
"""


@pytest.mark.parametrize(
    "which", ["thread process open os.replace", pytest.param("all", marks=pytest.mark.full)]
)
def test_nothing_is_raised(tmp_path: Path, which: str) -> None:
    """Each ending under each fault; the reader finds everything afterwards."""
    done = run_script(f"which = {which!r}\n{PROGRAM}", tmp_path)
    assert done.returncode == 0, done.stderr
    wrong = json.loads(done.stdout.splitlines()[-1])
    assert not wrong, "\n".join(f"{ending}, {fault}: {what}" for ending, fault, what in wrong)


def test_the_exit_of_the_interpreter_needs_no_thread(tmp_path: Path) -> None:
    """No thread can be started from the start of the run on, and ``finish`` is not called."""
    code = """
        from stepwell.exporters.file import FileExporter
        from stepwell.loggers import ConsoleLogger, LoggersCollection
        def refused(self):
            raise RuntimeError("can't start new thread")
        threading.Thread.start = refused
        run = init("training", dir="runs")
        run.add_exporter(FileExporter("spans.jsonl"))
        loggers = LoggersCollection([ConsoleLogger()])
        loggers.create_logger_context()
        for i in range(10):
            with span("item", i=i):
                log({"loss": i / 2}, step=i)
            loggers.log(i / 4, "accuracy", step=i)
        print(warnings)
    """
    done = run_script(textwrap.dedent(code), tmp_path)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "Cannot start a thread (can't start new thread). Training continues" in done.stdout
    run = only_run(tmp_path / "runs")
    assert run.status == "finished"
    assert numbers(run, "item") == list(range(10))
    assert values(run, "loss") == [i / 2 for i in range(10)]
    assert values(run, "accuracy") == [i / 4 for i in range(10)]
    ends = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    assert sum(line["type"] == "complete" and line["name"] == "item" for line in ends) == 10
