"""Handlers of the user's that record themselves, at moments that are not of their choosing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import run_script

LOGGING = """
import logging, os, stepwell
class Forward(logging.Handler):
    def emit(self, record):
        stepwell.event("logged", text=record.getMessage())
logging.getLogger("stepwell").addHandler(Forward())
run = stepwell.init("x", dir={dir!r})
os.rename(run.path, str(run.path) + ".away")
for i in range(3):
    run.event("into the void")
print("done")
"""

SIGNALS = """
import itertools, signal, stepwell
run = stepwell.init("x", dir={dir!r})
def handler(number, frame):
    stepwell.event("signal")
    with stepwell.span(f"in a handler {{next(numbers)}}"):
        pass
numbers = itertools.count()
signal.signal(signal.SIGPROF, handler)
# Of CPU time: on a busy machine the handlers have all the time that they need.
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
for i in range(3000):
    run.event("event", number=i)
    with stepwell.span(f"name {{i}}"):
        pass
signal.setitimer(signal.ITIMER_PROF, 0)
run.finish()
reader = stepwell.open_run(run.path)
names = set(reader.spans().collect()["name"])
assert {{f"name {{i}}" for i in range(3000)}} <= names
handled = next(numbers)
# Handlers that interrupt each other faster than files are created may lose spans, which are counted.
lost = {{f"in a handler {{i}}" for i in range(handled)}} - names
assert len(lost) <= reader.processes().collect()["dropped"].sum(), lost
assert reader.events().collect().height == 3000 + handled
print("done")
"""

SLOW_DISK = """
import time
from stepwell.journal import journal
create = journal.Segment
def slowly(*args, **keywords):
    time.sleep(0.02)
    return create(*args, **keywords)
journal.Segment = slowly
"""

FIRST_SEGMENT = """
import signal, stepwell
from stepwell.journal.mapping import bus_errors
install = type(bus_errors)._install
def interrupted(self):
    type(bus_errors)._install = install
    signal.raise_signal(signal.SIGALRM)
    install(self)
type(bus_errors)._install = interrupted
bus_errors._is_tried = False
def handler(number, frame):
    with stepwell.span("in a handler"):
        pass
signal.signal(signal.SIGALRM, handler)
run = stepwell.init("x", dir={dir!r})
with stepwell.span("first"):
    pass
run.finish()
assert set(stepwell.open_run(run.path).spans().collect()["name"]) == {{"first", "in a handler"}}
print("done")
"""

AT_EXIT = """
import atexit, contextlib, stepwell, threading, time
run = stepwell.init("x", dir={dir!r})
stack = contextlib.ExitStack()
stack.enter_context(stepwell.span("program"))
atexit.register(stack.close)
threading.Thread(target=time.sleep, args=(0.2,)).start()
print("done")
"""


@pytest.mark.parametrize(
    "script",
    [LOGGING, SIGNALS, FIRST_SEGMENT, AT_EXIT],
    ids=["logging", "signal", "first segment", "exit"],
)
def test_recording_from_a_handler_does_no_harm(tmp_path: Path, script: str) -> None:
    """A logging handler, a signal handler and an atexit handler may record; nothing hangs or raises."""
    done = run_script(script.format(dir=str(tmp_path)))
    assert done.stdout == "done\n", done.stderr
    assert "Traceback" not in done.stderr


def test_signals_that_come_faster_than_files_are_created(tmp_path: Path) -> None:
    """Each handler interrupts the one before it, which creates a file. They end all the same."""
    signals = SIGNALS.replace("PROF", "REAL").replace("SIGREAL", "SIGALRM")
    script = (SLOW_DISK + signals.replace("0.001", "0.004")).format(dir=str(tmp_path))
    done = run_script(script, timeout=60)
    assert done.stdout == "done\n", done.stderr
    assert "RecursionError" not in done.stderr
