"""What a follower reads in process.json: whose journal it is, whether it goes on, how its clock runs."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from stepwell.journal import clock
from stepwell.journal.document import PROCESS, clock_offset, read_json
from stepwell.journal.liveness import status_of
from stepwell.journal.spool import live_folder
from stepwell.journal.system import boot_id

ALWAYS = 1 << 63
"""A horizon behind every time."""
MAX_TIME = (1 << 61) - 1


class FollowedDocument:
    """The process.json of a process folder.

    Attributes:
        about: its content as last read; empty before it was written.
        offset: nanoseconds to add to a clock value for the time since the epoch; None: not known yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about: dict[str, Any] = {}
        self.offset: int | None = None
        self._version: tuple[int, int] | None = None
        self._boot = boot_id()
        self.read()

    def read(self) -> None:
        """Read it again if it has changed."""
        try:
            status = os.stat(self.folder / PROCESS)
        except OSError:
            return
        version = status.st_ino, status.st_mtime_ns
        if version == self._version:
            return
        about = read_json(self.folder / PROCESS)
        if about is None:
            return
        self._version = version
        self.about = about
        if self.offset is None:
            # Once for all: with another one later, a span's duration would not be what it was.
            self.offset = clock_offset(_anchors(about))

    @property
    def status(self) -> str:
        """Running (also while nothing is known), or how it ended."""
        if not self.about:
            return "running"
        try:
            return status_of(self.about)
        except (TypeError, ValueError, OverflowError):
            return "killed"

    @property
    def is_of_this_boot(self) -> bool:
        """Whether its clock is the one of this process."""
        return self.about.get("boot") == self._boot

    def now(self, ended: bool) -> int:
        """The present on its clock; ALWAYS where there is none, or it is not known here."""
        return clock.now() if self.is_of_this_boot and not ended else ALWAYS

    def ago(self, seconds: float) -> int:
        """So many seconds ago on its clock; before its last sign of life, if it has ended."""
        self.read()
        now = time.time_ns()
        heartbeat = self.about.get("heartbeat")
        if self.status != "running" and isinstance(heartbeat, int):
            now = heartbeat
        return now - int(seconds * 1e9) - (self.offset or 0)

    def folders(self) -> list[Path]:
        """Where its files are: in its spool perhaps, and in its folder."""
        return list(dict.fromkeys((live_folder(self.folder, self.about), self.folder)))

    def size_of(self, name: str) -> int:
        """How many bytes one of its files has by now."""
        sizes = [0]
        for folder in self.folders():
            with contextlib.suppress(OSError):
                sizes.append(os.stat(folder / name).st_size)
        return max(sizes)


def _anchors(about: dict[str, Any]) -> list[list[int]]:
    anchors = about.get("anchors")
    return [
        pair
        for pair in (anchors if isinstance(anchors, list) else ())
        if isinstance(pair, list) and len(pair) == 2 and all(map(_is_time, pair))
    ]


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 2 * MAX_TIME
