"""Operating-system processes: unique keys, start times, children, their work, and the priority of sidecars.

A process id is reused; together with host, boot id and start time it is unique. On systems without /proc,
only host and process id are used.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from stepwell._core.system import boot_id, process_start
from stepwell.telemetry.rank_info import RANK_VARIABLES

_IMPORTED = time.time()
_MOST_WRAPPERS = 16
UNIT_SECONDS = 0.2
UNIT_BYTES = 1 << 20
UNIT_PAGES = 50
"""A unit of work: CPU seconds, bytes read and written, or pages read from disk. A thread that only polls
needs more than ten seconds for one."""

NICE = 10
"""Added to the nice value of the process."""
SESSION_NICE = 15
"""Nice value of the session. The kernel weighs sessions like processes: 36 against the 1024 of training."""
NICEST = 19


def make_process_key(pid: int) -> str:
    """Return a key for a process that no earlier or later process shares."""
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

    That is the parent, or the nearest ancestor above the wrapper scripts that each rank has
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
    """Return whether a process was started as our rank and is not a Python program.

    A Python program with our rank is a rank that started us as a helper: a separate launch.
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
    match = re.search(r"^PPid:\s*(\d+)$", status, re.MULTILINE)
    return int(match[1]) if match else 0


def process_family(pid: int) -> list[int]:
    """Return a process and its children."""
    processes = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            processes += map(int, path.read_text().split())
        except (OSError, ValueError):
            continue
    return processes


def measure_work(pid: int) -> float | None:
    """Return the work of a process and its children, in units; None if the system does not report it.

    Distinguishes a process that imports, computes or copies from one that hangs.
    """
    units = [_units_of(process) for process in process_family(pid)]
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
    """Return whether a process or a child of it waits for a CPU or for the disk, not for a server."""
    for process in process_family(pid):
        for path in Path(f"/proc/{process}/task").glob("*/stat"):
            try:
                state = path.read_text().rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if state in "RD":
                return True
    return False


def _bytes_of(pid: int) -> int:
    """Return the bytes that a process has read and written, including those in the file cache."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines[:2])
    except (OSError, ValueError, IndexError):
        return 0


class Priority:
    """The priority of this process and its children: below that of training, except while training waits.

    The nice value alone is not enough. A sidecar has its own session, so that Ctrl-C ends training only,
    and Linux shares CPUs evenly between sessions first (autogroups). The nice value of a process counts
    within its session, or where a container or scheduler has put all processes into one control group. So
    both are set. The nice value of the session can always be restored, that of the process only by root, or
    as ``ulimit -e`` allows.
    """

    def __init__(self) -> None:
        self._normal = _nice_of(os.getpid())
        self._is_low = False
        self._applied: dict[int, bool] = {}

    def lower(self) -> None:
        """Lower it: training comes first."""
        self._is_low = True
        self.keep()

    def restore(self) -> None:
        """Restore it: the training process waits."""
        self._is_low = False
        self.keep()

    def keep(self) -> None:
        """Apply it to children started since the last call. Call this regularly."""
        is_low = self._is_low
        for process in process_family(os.getpid()):
            if self._applied.get(process) == is_low:
                continue
            with contextlib.suppress(OSError):  # Changed too often: try next time.
                _set_session_nice(process, SESSION_NICE if is_low else 0)
                self._applied[process] = is_low
            _set_nice(process, min(self._normal + NICE, NICEST) if is_low else self._normal)


def restore_priority(process: int) -> None:
    """Give a child and its children the priority of this process, if that is allowed."""
    for each in process_family(process):
        with contextlib.suppress(OSError):
            _set_session_nice(each, 0)
        _set_nice(each, _nice_of(os.getpid()))


def _set_session_nice(process: int, nice: int) -> None:
    """Set the nice value of the session that a process leads, if it leads one."""
    if hasattr(os, "getsid") and os.getsid(process) == process:
        with contextlib.suppress(FileNotFoundError):  # A system without autogroups.
            Path(f"/proc/{process}/autogroup").write_text(str(nice))


def _set_nice(process: int, nice: int) -> None:
    """Set the nice value of all threads of a process, if this user is allowed to."""
    if not hasattr(os, "setpriority"):
        return
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{process}/task")]
    except OSError:
        threads = [process]
    with contextlib.suppress(PermissionError, ProcessLookupError):
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, nice)


def _nice_of(process: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, process) if hasattr(os, "getpriority") else 0
