"""Operating-system processes: keys that no other process ever has, start times, children, and their work.

A process id alone comes back; together with host, boot and start time it does not. Outside of
Linux, where /proc does not tell, host and process id have to do.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from stepwell.journal.system import boot_id, process_start
from stepwell.telemetry.place import RANK_VARIABLES

_IMPORTED = time.time()
_MOST_WRAPPERS = 16
UNIT_SECONDS = 0.2
UNIT_BYTES = 1 << 20
UNIT_PAGES = 50
"""A unit of work: CPU time, bytes read and written, or pages read from disk. A thread that only polls does
less than one in ten seconds."""


def make_process_key(pid: int) -> str:
    """Return a key for this process that no process before or after it shares."""
    return f"{socket.gethostname()}|{boot_id()}|{pid}|{process_start(pid)}"


def read_start_time() -> float:
    """Return when this process started, in seconds since the epoch."""
    ticks = process_start(os.getpid())
    if not ticks:
        return _IMPORTED
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")


def find_launcher(environ: Mapping[str, str]) -> int:
    """Return the id of the process that started the ranks: torchrun, mpirun, a script.

    That is the parent, or the nearest ancestor above wrapper scripts that each rank has of its own
    (`mpirun ./bind_gpu.sh python train.py`).
    """
    ranks = {f"{name}={environ[name]}" for name in RANK_VARIABLES if environ.get(name)}
    pid = os.getppid()
    for _ in range(_MOST_WRAPPERS):
        parent = _find_parent(pid) if _is_wrapper(pid, ranks) else 0
        if not parent:
            break
        pid = parent
    return pid


def _is_wrapper(pid: int, ranks: set[str]) -> bool:
    """Whether this process was itself started as our rank, and is no Python program.

    A Python program with our rank is a rank that started us as a helper: a launch of its own.
    """
    try:
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    if program.startswith(("python", "pypy")):
        return False
    return not ranks.isdisjoint(os.fsdecode(raw).split("\0"))


def _find_parent(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except OSError:
        return 0
    found = re.search(r"^PPid:\s*(\d+)$", status, re.MULTILINE)
    return int(found[1]) if found else 0


def family(pid: int) -> list[int]:
    """Return a process and its children."""
    processes = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            processes += map(int, path.read_text().split())
        except (OSError, ValueError):
            continue
    return processes


def measure_work(pid: int) -> float | None:
    """Return how much a process and its children have done, in units; None where the system does not say.

    It tells a process that imports, computes or copies from one that hangs.
    """
    units = [_units_of(process) for process in family(pid)]
    return None if units[0] is None else sum(filter(None, units))


def _units_of(pid: int) -> float | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pages, ticks = int(fields[9]), sum(map(int, fields[11:15]))
    except (OSError, ValueError, IndexError):
        return None
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    return seconds / UNIT_SECONDS + pages / UNIT_PAGES + _bytes_of(pid) / UNIT_BYTES


def is_held_up(pid: int) -> bool:
    """Whether a process or a child of it waits for a processor or for the disk, rather than for a server."""
    for process in family(pid):
        for path in Path(f"/proc/{process}/task").glob("*/stat"):
            try:
                state = path.read_text().rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if state in "RD":
                return True
    return False


def _bytes_of(pid: int) -> int:
    """Return how many bytes a process has read and written, also those that were in the file cache."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines[:2])
    except (OSError, ValueError, IndexError):
        return 0
