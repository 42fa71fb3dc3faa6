"""Followers that begin a while ago, not at the beginning of a run that may have gone on for weeks."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from stepwell.journal.follow import Follower
from stepwell.journal.follow_log import LogFollower

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
        left_out = self.skip_older(seconds, MOST_SPANS, MOST_EVENTS)
        self.since_ns = left_out.get(thread, 0)


class RecentLog(LogFollower):
    """The metrics of a process since so many seconds ago.

    Attributes:
        contexts: since when it is which step and epoch, for who takes them away.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder)
        self.contexts: deque[tuple[int, int | None, int | None]] = deque()
        self.on_context = lambda *context: self.contexts.append(context)
        self.skip_older(seconds, MOST_SEGMENTS)
