"""The priority of a sidecar is low, except while a process waits for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepwell.telemetry.os_process import NICE, NICEST, SESSION_NICE
from tests.harness import run_script

CODE = """
import os, subprocess, sys
from stepwell.telemetry.os_process import Priority, restore_priority

def nice(pid):
    with open(f"/proc/{pid}/autogroup") as file:
        words = file.read().split()
    # Without words it is in no session that the system knows of, and so is as usual.
    return int(words[-1]) if words else 0

if "leader" in sys.argv:
    os.setsid()
print(nice(os.getpid()))
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
before = os.nice(0)
priority = Priority()
priority.lower()
print(os.nice(0) - before, nice(os.getpid()), nice(child.pid))
priority.restore()
print(os.nice(0) - before, nice(os.getpid()), nice(child.pid))
late = subprocess.Popen(["sleep", "60"], start_new_session=True)
priority.lower()
print(nice(late.pid))
restore_priority(late.pid)
print(nice(late.pid))
for one in (child, late):
    one.kill()
    one.wait()
"""
AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")


@pytest.mark.parametrize("words", [["leader"], []])
def test_sessions_of_its_own_are_nice(words: list[str]) -> None:
    """With those of its children; a session that it only belongs to is not its own."""
    if not AUTOGROUPS.exists() or AUTOGROUPS.read_text().strip() != "1":
        pytest.skip("this system does not share processors between sessions")
    done = run_script(CODE, *words, check=True)
    before, *found = (int(word) for word in done.stdout.split())
    own = SESSION_NICE if words else before
    low = min(os.nice(0) + NICE, NICEST) - os.nice(0)
    kept = low if os.getuid() else 0
    assert found == [low, own, SESSION_NICE, kept, before, 0, SESSION_NICE, 0]
