"""The Python stacks of a process that makes no progress."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.analysis.ranks.stacks import stacks
from stepwell.telemetry import stacks as stacks_module
from stepwell.telemetry.stacks import QUIET, StackWatch, describe_threads
from tests.harness import environment, start_script, wait_until


class Clock:
    """Stands still until it is put forward."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stacks_module, "time", clock)
    return clock


def look(watch: StackWatch) -> None:
    """Look from another thread, as the pump does."""
    thread = threading.Thread(target=watch.look, name="stepwell-pump")
    thread.start()
    thread.join()


def test_stacks_are_written_without_progress_and_removed_with_it(
    tmp_path: Path, clock: Clock
) -> None:
    """After a few seconds without a record of the main thread, then less and less often."""
    with stepwell.init(dir=tmp_path) as run:
        assert run._recorder is not None
        folder = tmp_path / "here"
        folder.mkdir()
        watch, path = StackWatch(run._recorder.journal, folder), folder / "stacks.json"
        run.log({"loss": 1.0})
        look(watch)
        clock.now += QUIET - 0.1
        look(watch)
        assert not path.exists()
        clock.now += 0.1
        secret_value = "hunter2"
        look(watch)
        first = json.loads(path.read_text())
        clock.now += QUIET - 0.1
        look(watch)
        assert json.loads(path.read_text()) == first
        clock.now += 0.1
        look(watch)
        assert json.loads(path.read_text())["quiet_s"] == 2 * QUIET
        run.log({"loss": 1.0})
        look(watch)
        assert not path.exists()
    lines = first["threads"][0]["lines"]
    (own,) = [line for line in lines if line["file"] == __file__ and line["function"] != "look"]
    assert first["threads"][0]["thread"] == "MainThread"
    assert own["function"].endswith("test_stacks_are_written_without_progress_and_removed_with_it")
    assert own["source"] == "look(watch)"
    assert first["quiet_s"] == QUIET
    assert secret_value not in json.dumps([line for line in lines if line is not own])
    assert not [t for t in first["threads"] if t["thread"].startswith("stepwell-")]


def test_a_deep_stack_is_bounded(tmp_path: Path, clock: Clock) -> None:
    """The outermost and the innermost lines are kept."""

    def deep(depth: int) -> dict[str, Any]:
        return deep(depth - 1) if depth else describe_threads()

    lines = deep(500)["threads"][0]["lines"]
    assert len(lines) == 40
    assert lines[-1]["function"] == "describe_threads"


HANG = """
import sys, threading, time
import stepwell
from stepwell.telemetry import stacks
stacks.QUIET = stacks.EVERY = 0.1

def stuck():
    threading.Event().wait()

run = stepwell.init(dir="runs")
run.set_step(46)
with run.span("training_loop"):
    run.set_step(47)
    with run.span("augment"):
        stuck()
"""


def test_a_hang_shows_its_line_also_after_kill_9(tmp_path: Path) -> None:
    """The innermost line of the user's code, for a process that runs and for one that was killed."""
    (tmp_path / "train.py").write_text(HANG)
    program = start_script(tmp_path / "train.py", cwd=tmp_path, env=environment())
    try:
        wait_until(lambda: list(tmp_path.glob("runs/*/rank-*/stacks.json")))
        (run,) = stepwell.list_runs(tmp_path / "runs")
        place = f"train.py:{1 + HANG[: HANG.index('threading.Event')].count(chr(10))} in stuck"
        (stack,) = stacks(run)
        assert (stack.status, stack.place, stack.step) == ("running", place, 47)
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()
    (stack,) = stacks(run)
    assert (stack.status, stack.place) == ("killed", place)
    assert [frame.name for frame in stack.frames] == ["training_loop", "augment"]
