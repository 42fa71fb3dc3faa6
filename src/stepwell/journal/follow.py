"""Following a journal: what one process records, piece by piece, from its files alone.

It works in a thread of the recording process, in another process while that one runs, and on what a
finished or killed one left. All that a look gives out was recorded before a *horizon*, an instant before
the look began. Whatever had been recorded by then is seen by it, so a span comes after its parent and
before its events, also when they are of different threads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell.journal.follow_document import ALWAYS, MAX_TIME, FollowedDocument
from stepwell.journal.follow_events import FollowedEvents
from stepwell.journal.follow_spans import FollowedSpans
from stepwell.journal.journal import EVENTS, NAMES
from stepwell.journal.kept_names import KeptNames
from stepwell.journal.records import EventRecord, SpanRecord
from stepwell.journal.segment_files import SegmentFiles


def everything(name: str) -> bool:
    """Keep spans of any name."""
    return True


class Follower:
    """Reads the journal of the process in ``folder``, and gives out what is new.

    Spans whose name ``keep`` refuses are left out. The parent of a span is then its nearest ancestor
    that is kept, and of the events inside of it only errors are given out, on that ancestor.

    Attributes:
        over: whether the process has ended, and all that it recorded was given out.
    """

    def __init__(self, folder: Path, keep: Callable[[str], bool] = everything) -> None:
        self.folder = folder
        self.over = False
        self._document = FollowedDocument(folder)
        self._files = SegmentFiles(folder)
        self._names = KeptNames(keep)
        self._spans = FollowedSpans(self._files, self._names)
        self._events = FollowedEvents(self._spans)

    @property
    def about(self) -> dict[str, Any]:
        """process.json as last read; empty before it was written."""
        return self._document.about

    @property
    def lost(self) -> int:
        """How many segments or archives were gone (the size cap), or damaged, before they were read."""
        return self._files.lost

    @property
    def status(self) -> str:
        """How the process is: running (also while nothing is known), finished, failed or killed."""
        return self._document.status

    def skip_older(self, seconds: float, most_spans: int, most_bytes: int) -> dict[str, int]:
        """Before the first ``poll``: leave out what ended longer than so many seconds ago.

        What was open then is given out all the same. Also left out is what exceeds ``most_spans`` in
        sealed segments, and what stands more than ``most_bytes`` before the end of the events.

        Returns:
            Until when (nanoseconds since the epoch) spans of a thread were left out, by thread.
        """
        document, files = self._document, self._files
        since, left_out = document.ago(seconds), dict[str, int]()
        files.live_folder = document.folders()[0]
        files.look()
        for segment in sorted(files.sealed.values(), key=lambda segment: -segment.last):
            most_spans -= segment.slots
            if segment.last < since or most_spans < 0:
                # As if it were lost: what was open at its end goes on in the next one, and is given out.
                files.done(segment.seq, False)
                until = segment.last + (document.offset or 0)
                left_out[segment.thread] = max(left_out.get(segment.thread, 0), until)
        self._events.skip_to(max(0, document.size_of(EVENTS) - most_bytes))
        return left_out

    def poll(self) -> list[SpanRecord | EventRecord]:
        """What is new, ordered by time. Where that is a lot it is a part: empty means all was given.

        A span is given out twice, as a start and as a stop, which has all that is known of it.
        """
        while True:
            before = self._events.offset, self._files.progress
            records, is_all = self._look()
            # What cannot be read just now is left to the next time.
            if records or is_all or before == (self._events.offset, self._files.progress):
                return records

    def _look(self) -> tuple[list[SpanRecord | EventRecord], bool]:
        """What is new, and whether that is all: there may be more than fits into one look."""
        document = self._document
        document.read()
        ended = document.status != "running"
        if document.offset is None and not ended:
            return [], True
        offset = document.offset or 0
        now, horizon = self._horizon(ended)
        folders = document.folders()
        self._files.live_folder = folders[0]
        self._files.look()
        self._spans.read_live(note_latest=horizon != now or ended)
        self._names.read(folder / NAMES for folder in folders)
        limit = self._spans.limit(self._events.read([f / EVENTS for f in folders], horizon))
        self._spans.read(limit, now)
        events = self._events.take(limit, offset)
        found = [*self._spans.take(limit, offset), *events]
        is_all = limit >= horizon
        if ended and is_all:
            found += self._spans.give_up(self._last_sign(offset), offset)
        self.over = ended and is_all and not self._files.sealed
        found.sort(key=lambda entry: entry[0])
        return [record for _, record in found], is_all

    def _horizon(self, ended: bool) -> tuple[int, int]:
        """The present on the clock of the process, and up to when to give out records."""
        now = self._document.now(ended)
        if ended or now != ALWAYS:
            return now, now
        # The clock of another machine: what the last look saw was recorded before this one.
        return ALWAYS, max(self._spans.latest, self._events.latest)

    def _last_sign(self, offset: int) -> int:
        """When the process was last known to live, on its clock."""
        heartbeat = self.about.get("heartbeat")
        known = heartbeat - offset if isinstance(heartbeat, int) else 0
        return max(min(known, MAX_TIME), self._spans.latest, self._events.latest)
