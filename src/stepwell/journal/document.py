"""process.json: who this process is, how its clock runs, whether it lives and what it lost."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stepwell.journal import clock
from stepwell.journal.files import read_file

PROCESS = "process.json"
STACKS = "stacks.json"
"""The stacks of all threads, while a process makes no progress."""
MAX_ANCHORS = 64
PAGE = 4096
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step, so that no reader ever sees half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=True) + "\n")
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def read_json(path: Path, limit: int = 64 << 20) -> dict[str, Any] | None:
    """A JSON object from a file; None when it is missing, too large or no object."""
    try:
        value = json.loads(read_file(path, limit))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def clock_offset(anchors: Iterable[Sequence[int]]) -> int | None:
    """Nanoseconds to add to a clock for the time since the epoch, None when no anchor tells.

    The median: a wall clock that is stepped for a while does not move it.
    """
    offsets = sorted(wall - ticks for ticks, wall in anchors)
    return offsets[(len(offsets) - 1) // 2] if offsets else None


class ProcessDocument:
    """The content of one process.json, kept up to date by the pump."""

    def __init__(self, path: Path, about: dict[str, Any], interval: float) -> None:
        self.path = path
        self.about = about
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
        """Note what the wall clock says now, so that clock steps show and ranks can be aligned."""
        before = clock.now()
        wall = clock.wall()
        after = clock.now()
        self._anchors.append([(before + after) // 2, wall])
        if len(self._anchors) > MAX_ANCHORS:
            del self._anchors[1:-1:2]

    def write(self) -> None:
        """Write the file: a heartbeat."""
        self.anchor()
        content = {
            **self.about,
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
    """Write a JSON file where it is, which needs no space on a full disk; whether it fits there.

    A file's last page is its own, however little of it is used.
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
