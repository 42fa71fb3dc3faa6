"""Followers that begin a while ago, not at the beginning of a run that may have gone on for weeks."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from stepwell.journal.archive import read_frames
from stepwell.journal.follow import Follower
from stepwell.journal.follow_document import FollowedDocument
from stepwell.journal.follow_log import LogFollower
from stepwell.journal.format import EPOCH_MASK, STEP_SHIFT
from stepwell.journal.journal import EVENTS

MOST_EVENTS = 1 << 20
"""So many bytes of older events are looked at."""
MOST_SPANS = 40_000
"""So many older spans at most are gone through: of a job that makes more, less than a minute is seen."""
MOST_SEGMENTS = 2
"""The same for older segments of metrics."""


class RecentSpans(Follower):
    """The spans and events of a process since so many seconds ago; those that were open then, too.

    Attributes:
        since_ns: from when on all spans of ``thread`` are given out; 0: from the beginning.
    """

    def __init__(self, folder: Path, seconds: float, thread: str) -> None:
        super().__init__(folder)
        self.since_ns = 0
        files = self._files
        files.live_folder = self._document.folders()[0]
        files.look()
        since, room = _since(self._document, seconds), MOST_SPANS
        for segment in sorted(files.sealed.values(), key=lambda segment: -segment.last):
            room -= segment.slots
            if segment.last < since or room < 0:
                # As if it were lost: what was open at its end goes on in the next one, and is given out.
                files.done(segment.seq, False)
                if segment.thread == thread:
                    self.since_ns = max(self.since_ns, segment.last + (self._document.offset or 0))
        tail = self._events._tail
        tail.offset = max(0, _size(self._document, EVENTS) - MOST_EVENTS)
        # The first piece of a line is none.
        tail._inside = tail.offset > 0

    @property
    def status(self) -> str:
        """How the process is: running, finished, failed or killed."""
        return self._document.status


class RecentLog(LogFollower):
    """The metrics of a process since so many seconds ago.

    Attributes:
        contexts: since when it is which step and epoch, for who takes them away.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.contexts: deque[tuple[int, int | None, int | None]] = deque()
        document = FollowedDocument(folder)
        place = _place(folder, _since(document, seconds))
        super().__init__(folder, cursor={"archive": place, "events": _size(document, EVENTS)})

    def _take_one(self, source: Any, taken: Any) -> None:
        known = self._epochs
        self._epochs = _Noting(known, self.contexts, self._document.offset or 0)  # type: ignore[assignment]
        try:
            super()._take_one(source, taken)
        finally:
            self._epochs = known


class _Noting:
    """Notes each change of the context on its way to where epochs are kept."""

    def __init__(self, epochs: Any, noted: deque[Any], offset: int) -> None:
        self._epochs = epochs
        self._noted = noted
        self._offset = offset

    def add(self, time: int, word: int) -> None:
        step, epoch = (word >> STEP_SHIFT) - 1, (word & EPOCH_MASK) - 1
        known = step if step >= 0 else None, epoch if epoch >= 0 else None
        self._noted.append((time + self._offset, *known))
        self._epochs.add(time, word)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epochs, name)


def _since(document: FollowedDocument, seconds: float) -> int:
    """So many seconds ago on the clock of a process; before the end of one that has ended."""
    document.read()
    now = time.time_ns()
    heartbeat = document.about.get("heartbeat")
    if document.status != "running" and isinstance(heartbeat, int):
        now = heartbeat
    return now - int(seconds * 1e9) - (document.offset or 0)


def _size(document: FollowedDocument, name: str) -> int:
    sizes = [0]
    for folder in document.folders():
        with contextlib.suppress(OSError):
            sizes.append(os.stat(folder / name).st_size)
    return max(sizes)


def _place(folder: Path, since: int) -> list[int]:
    """Where in the archives of metrics the first segment is that goes on after this time."""
    place, later = [-1, 0], []
    for path in sorted(folder.glob("metrics-*.zst")):
        number = path.stem.rpartition("-")[2]
        if not number.isdecimal():
            continue
        place = [int(number), 0]
        for frame in read_frames(path):
            times = frame.header.get("time") if isinstance(frame.header, dict) else None
            last = times[-1] if isinstance(times, list) and times else None
            if not isinstance(last, int) or last >= since:
                later.append(place)
            place = [int(number), frame.end]
    return later[-MOST_SEGMENTS:][0] if later else place
