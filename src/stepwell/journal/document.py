"""process.json: identity, clock anchors, heartbeat, status and losses of one process."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepwell._core import clock
from stepwell._core.files import write_json
from stepwell._core.system import boot_id, is_alive

MAX_ANCHORS = 64
PAGE = 4096
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def clock_offset(anchors: Iterable[Sequence[int]]) -> int | None:
    """Return the nanoseconds to add to a clock value to get the time since the epoch; None without anchors.

    It is the median of the anchors, so that a temporary step of the wall clock does not change it.
    """
    offsets = sorted(wall - ticks for ticks, wall in anchors)
    return offsets[(len(offsets) - 1) // 2] if offsets else None


class ProcessDocument:
    """The content of process.json, which the pump updates."""

    def __init__(self, path: Path, identity: dict[str, Any], interval: float) -> None:
        self.path = path
        self.identity = identity
        self.interval = interval
        self.status = "running"
        self.error: dict[str, Any] | None = None
        self.exit_code: int | None = None
        self.signal: str | None = None
        self.drops: dict[str, int] = {}
        self.problems = 0
        self.recorder_cpu_ns = 0
        self._anchors: list[list[int]] = []

    def anchor(self) -> None:
        """Record both clocks at this moment, to align processes and to detect steps of the wall clock."""
        before = clock.now()
        wall = clock.wall()
        after = clock.now()
        self._anchors.append([(before + after) // 2, wall])
        if len(self._anchors) > MAX_ANCHORS:
            del self._anchors[1:-1:2]

    def write(self) -> None:
        """Write the file, with a new heartbeat."""
        self.anchor()
        content = {
            **self.identity,
            "status": self.status,
            "error": self.error,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "heartbeat": clock.wall(),
            "interval": self.interval,
            "anchors": self._anchors,
            "drops": self.drops,
            "problems": self.problems,
            "recorder_cpu_ns": self.recorder_cpu_ns,
        }
        try:
            write_json(self.path, content)
        except OSError as error:
            if error.errno not in FULL or not _overwrite(self.path, content):
                raise


def _overwrite(path: Path, value: Any) -> bool:
    """Overwrite a JSON file in place, which works on a full disk. Return whether it fits.

    The last page of a file belongs to it even if it is not full.
    """
    data = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    try:
        fd = os.open(path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        size = os.fstat(fd).st_size
        data = data.ljust(size - 1) + b"\n"
        return len(data) <= -(-size // PAGE) * PAGE and os.write(fd, data) == len(data)
    finally:
        os.close(fd)


STALE_HEARTBEATS = 6
ENDINGS = ("finished", "failed", "interrupted", "killed")
"""The ways a process can end. ``interrupted``: Ctrl-C. ``killed``: without writing its status."""
_WORST_FIRST = ("running", "failed", "interrupted", "killed", "finished")


def status_of(document: dict[str, Any]) -> str:
    """Return ``running``, or how the process ended; ``killed`` if it claims to run but does not."""
    status = str(document.get("status") or "running")
    if status != "running":
        return status
    if document.get("boot") == boot_id() and document.get("host") == socket.gethostname():
        alive = is_alive(int(_number(document, "pid")), int(_number(document, "start")))
        return "running" if alive else "killed"
    age = time.time_ns() - _number(document, "heartbeat")
    limit = STALE_HEARTBEATS * (_number(document, "interval") or 5.0) * 1e9
    return "running" if age < limit else "killed"


def _number(document: dict[str, Any], key: str) -> float:
    """Return a number of the document; 0 if it is missing or damaged."""
    value = document.get(key)
    return value if isinstance(value, int | float) and abs(value) < 2**63 else 0


def worst_of(statuses: Iterable[str]) -> str:
    """Return the joint status of several processes; ``empty`` without any."""
    present = set(statuses)
    return next((status for status in _WORST_FIRST if status in present), "empty")


def is_spool_of(spool: Path, folder: Path) -> bool:
    """Return whether this is the path that ``choose_spool`` gives to a process folder.

    Documents are untrusted: no other folder is ever read, or removed, as a spool.
    """
    run = spool.parent
    return (
        spool.is_absolute()
        and ".." not in spool.parts
        and spool.name == folder.name
        and run.name == folder.absolute().parent.name
        and run.parent.name.startswith("stepwell-")
        and not any(place.is_symlink() for place in (spool, run, run.parent))
    )


def live_folder(folder: Path, document: Mapping[str, Any]) -> Path:
    """Return the folder of its live files: the spool if it is on this machine, else ``folder``."""
    spool = document.get("spool")
    if isinstance(spool, str) and document.get("boot") == boot_id():
        path = Path(spool)
        if is_spool_of(path, folder) and path.is_dir():
            return path
    return folder
