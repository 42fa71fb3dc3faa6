"""Running small programs as processes of their own, and looking at what they recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import stepwell
from stepwell.reading import RecordedRun
from tests.harness import recording_environment, start_script

HEAD = """
import json, os, sys, time
from pathlib import Path
import stepwell
RUNS = Path(os.environ["TEST_RUNS"])
"""

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


def write_program(folder: Path, text: str, *heads: str, name: str = "program.py") -> Path:
    """A program with the usual imports, and RUNS for where to record."""
    path = folder / name
    path.write_text("".join(textwrap.dedent(part) for part in (HEAD, *heads, text)))
    return path


def environ(folder: Path, **more: str) -> dict[str, str]:
    """An environment in which a problem inside stepwell is raised."""
    return recording_environment(folder / "runs", **{"HOME": str(folder), **more})


def execute(folder: Path, program: Path, *arguments: str, cold: bool = False, **more: str) -> str:
    """Run a program to its end, which must be a good one; returns what it printed.

    ``cold``: in an interpreter that has imported nothing yet.
    """
    options: dict[str, Any] = {
        "env": environ(folder, **more),
        "cwd": folder,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    process = (
        subprocess.Popen([sys.executable, program, *arguments], **options)
        if cold
        else start_script(program, *arguments, **options)
    )
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        # Python then tells where each of the processes hangs.
        os.killpg(process.pid, signal.SIGABRT)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Traceback" not in err, err
    return out


def runs_in(folder: Path) -> list[RecordedRun]:
    """The runs that were recorded, oldest first."""
    return sorted(stepwell.list_runs(folder / "runs"), key=lambda run: run.created_ns)


def only_run(folder: Path) -> RecordedRun:
    """The one run that was recorded."""
    (run,) = runs_in(folder)
    return run


def files_of(run: RecordedRun) -> list[str]:
    """All files of a run."""
    return sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file())
