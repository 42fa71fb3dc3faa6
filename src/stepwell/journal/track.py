"""A lane that belongs to no thread: for spans whose beginning and end are known when they are written.

Whoever writes it does so from one thread, usually the pump's.
"""

from __future__ import annotations

import threading

from stepwell.journal.format import NAME_SHIFT
from stepwell.journal.journal import Journal
from stepwell.journal.lane import Lane
from stepwell.journal.names import SPAN, names


class Track:
    """Finished spans, shown by readers as if a thread of this name had recorded them."""

    def __init__(self, journal: Journal, name: str) -> None:
        self.journal = journal
        self.name = name
        self._lane: Lane | None = None

    def write(self, name: str, category: str, start: int, end: int, attributes: bytes) -> bool:
        """Write one span, its times by the monotonic clock; whether there was space for it."""
        lane = self._lane or self._open()
        word = names.intern(SPAN, name, category) << NAME_SHIFT
        return lane.write_finished(word, start, end, attributes)

    def _open(self) -> Lane:
        lane = self.journal.open_lane()
        # A thread that has not ended keeps its lane from being taken over.
        lane.thread = threading.main_thread()
        lane.title = {**lane.title, "thread": self.name, "native": 0}
        self._lane = lane
        return lane
