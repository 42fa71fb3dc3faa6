"""process.json for followers: the state of the process and the offset of its clock."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from stepwell._core import clock
from stepwell._core.files import read_json
from stepwell._core.system import boot_id
from stepwell.journal.document import clock_offset, live_folder, status_of
from stepwell.journal.format import PROCESS

ALWAYS = 1 << 63
"""A horizon later than every time."""
MAX_TIME = (1 << 61) - 1


class ProcessDocumentWatcher:
    """Reads the process.json of a process folder whenever it changes.

    Attributes:
        content: its latest content; empty until it is written.
        offset: nanoseconds to add to a clock value to get the time since the epoch; None until known.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.content: dict[str, Any] = {}
        self.offset: int | None = None
        self._version: tuple[int, int] | None = None
        self._boot = boot_id()
        self.read()

    def read(self) -> None:
        """Read the file again if it has changed."""
        try:
            status = os.stat(self.folder / PROCESS)
        except OSError:
            return
        version = status.st_ino, status.st_mtime_ns
        if version == self._version:
            return
        document = read_json(self.folder / PROCESS)
        if document is None:
            return
        self._version = version
        self.content = document
        if self.offset is None:
            # Never changed later: the start and the stop of a span need the same offset.
            self.offset = clock_offset(_anchors(document))

    @property
    def status(self) -> str:
        """``running`` (also before the file exists), or how the process ended."""
        if not self.content:
            return "running"
        try:
            return status_of(self.content)
        except (TypeError, ValueError, OverflowError):
            return "killed"

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the process has the same monotonic clock as this one."""
        return self.content.get("boot") == self._boot

    def now(self, ended: bool) -> int:
        """Return the present on its clock; ALWAYS if it has ended or runs on another machine."""
        return clock.now() if self.is_of_this_boot and not ended else ALWAYS

    def ago(self, seconds: float) -> int:
        """Return the time this many seconds ago (before the last heartbeat if it has ended) on its clock."""
        self.read()
        now = time.time_ns()
        heartbeat = self.content.get("heartbeat")
        if self.status != "running" and isinstance(heartbeat, int):
            now = heartbeat
        return now - int(seconds * 1e9) - (self.offset or 0)

    def folders(self) -> list[Path]:
        """Return the folders with its files: its spool, if it is on this machine, and its folder."""
        return list(dict.fromkeys((live_folder(self.folder, self.content), self.folder)))

    def size_of(self, name: str) -> int:
        """Return the present size of one of its files in bytes."""
        sizes = [0]
        for folder in self.folders():
            with contextlib.suppress(OSError):
                sizes.append(os.stat(folder / name).st_size)
        return max(sizes)


def _anchors(document: dict[str, Any]) -> list[list[int]]:
    anchors = document.get("anchors")
    return [
        pair
        for pair in (anchors if isinstance(anchors, list) else ())
        if isinstance(pair, list)
        and len(pair) == 2
        and all(is_time(time, 2 * MAX_TIME) for time in pair)
    ]


def is_time(value: Any, most: int = MAX_TIME) -> bool:
    """Return whether this is a valid clock value."""
    return type(value) is int and 0 <= value <= most
