"""A sidecar's priority: below that of training, except while training waits for it.

Being nice is not enough. A sidecar has a session of its own, so that Ctrl-C ends training alone, and Linux
shares processors evenly between sessions first (autogroups). How nice a process is counts within its session,
or where a container or scheduler has put all processes into one control group. So both are set. The nice
value of the session can always be taken back, that of the process only by root, or as ``ulimit -e`` allows.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from stepwell.telemetry.os_process import family

NICE = 10
"""Added to the nice value of the process."""
SESSION_NICE = 15
"""Of the session. The kernel weighs it as it weighs processes: 36 against the 1024 of one that trains."""
NICEST = 19


class Priority:
    """The priority of this process and of those that it has started."""

    def __init__(self) -> None:
        self._normal = _nice_of(os.getpid())
        self._is_low = False
        self._applied: dict[int, bool] = {}

    def lower(self) -> None:
        """Lower it: training comes first."""
        self._is_low = True
        self.keep()

    def restore(self) -> None:
        """Raise it again: the process that trains waits."""
        self._is_low = False
        self.keep()

    def keep(self) -> None:
        """Set it for processes that were started since, too. To be called now and then."""
        is_low = self._is_low
        for process in family(os.getpid()):
            if self._applied.get(process) == is_low:
                continue
            with contextlib.suppress(OSError):  # It was asked too often: then next time.
                _set_session_nice(process, SESSION_NICE if is_low else 0)
                self._applied[process] = is_low
            _set_nice(process, min(self._normal + NICE, NICEST) if is_low else self._normal)


def restore_priority(process: int) -> None:
    """Give a process that this one started, and its children, this one's priority, where that is allowed."""
    for each in family(process):
        with contextlib.suppress(OSError):
            _set_session_nice(each, 0)
        _set_nice(each, _nice_of(os.getpid()))


def _set_session_nice(process: int, nice: int) -> None:
    """Set that of a session that a process leads; a session that it merely is in belongs to others."""
    if hasattr(os, "getsid") and os.getsid(process) == process:
        with contextlib.suppress(FileNotFoundError):  # Another kind of system.
            Path(f"/proc/{process}/autogroup").write_text(str(nice))


def _set_nice(process: int, nice: int) -> None:
    """Set that of all threads of a process; nothing happens where this user may not raise it again."""
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
