"""A sidecar is modest towards training, unless somebody waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.telemetry.modesty import NICE, SESSION_NICE
from tests.harness import run_script

CODE = """
import os, subprocess, sys
from stepwell.telemetry.modesty import Modesty

def nice(pid):
    with open(f"/proc/{pid}/autogroup") as file:
        words = file.read().split()
    # Without words it is in no session that the system knows of, and so is as usual.
    return int(words[-1]) if words else 0

if "leader" in sys.argv:
    os.setsid()
print(nice(os.getpid()))
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
modesty = Modesty()
modesty.begin()
print(os.nice(0), nice(os.getpid()), nice(child.pid))
modesty.hurry()
print(nice(os.getpid()), nice(child.pid))
late = subprocess.Popen(["sleep", "60"], start_new_session=True)
modesty.rest()
modesty.keep()
print(nice(late.pid))
for one in (child, late):
    one.kill()
    one.wait()
"""
AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")


@pytest.mark.parametrize("words", [["leader"], []])
def test_sessions_of_its_own_are_nice(words: list[str]) -> None:
    """With those of its children; a session that it merely is in belongs to somebody else."""
    if not AUTOGROUPS.exists() or AUTOGROUPS.read_text().strip() != "1":
        pytest.skip("this system does not share processors between sessions")
    done = run_script(CODE, *words, check=True)
    before, *found = (int(word) for word in done.stdout.split())
    own = SESSION_NICE if words else before
    assert found == [NICE, own, SESSION_NICE, before, 0, SESSION_NICE]
