"""Follow the spans and events of one process, from its files only.

This works in a thread of the recording process, in another process at the same time, and on the files of a
finished or killed process. All records of one look were written before a *horizon*, a time before the look
began, and the look sees everything written by then. So a span follows its parent and precedes its events,
also across threads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell.follower.document import (
    ALWAYS,
    MAX_TIME,
    ProcessDocumentWatcher,
    is_time,
)
from stepwell.follower.names import SpanNameFilter
from stepwell.follower.records import EventRecord, SpanRecord
from stepwell.follower.span_segments import SegmentFiles
from stepwell.follower.spans import EVENT, FollowedSpans, OrderedRecord
from stepwell.journal.format import ERROR_EVENT, EVENTS, LATE_ATTRIBUTES, NAMES
from stepwell.journal.tail import Tail, parse_object


def everything(name: str) -> bool:
    """Accept any name."""
    return True


class Follower:
    """Returns new spans and events of the process in ``folder``.

    Spans whose name ``keep`` rejects are left out. Their children get the nearest ancestor that is kept as
    parent. Of their events only errors are returned, on that ancestor.

    Attributes:
        over: whether the process has ended and all of its records were returned.
    """

    def __init__(self, folder: Path, keep: Callable[[str], bool] = everything) -> None:
        self.folder = folder
        self.over = False
        self._document = ProcessDocumentWatcher(folder)
        self._files = SegmentFiles(folder)
        self._names = SpanNameFilter(keep)
        self._spans = FollowedSpans(self._files, self._names)
        self._events = FollowedEvents(self._spans)

    @property
    def document(self) -> dict[str, Any]:
        """The latest content of process.json; empty until it is written."""
        return self._document.content

    @property
    def lost(self) -> int:
        """The number of segments or archives removed (size cap) or damaged before they were read."""
        return self._files.lost

    @property
    def status(self) -> str:
        """``running`` (also before process.json exists), or how the process ended."""
        return self._document.status

    def skip_older(self, seconds: float, most_spans: int, most_bytes: int) -> dict[str, int]:
        """Before the first ``poll``: skip spans that ended more than this many seconds ago.

        Spans that were open then are returned. Also skipped are older sealed segments beyond ``most_spans``
        spans, and events more than ``most_bytes`` before the end of their file.

        Returns:
            By thread, until when (nanoseconds since the epoch) its spans were skipped.
        """
        document, files = self._document, self._files
        since, left_out = document.ago(seconds), dict[str, int]()
        files.live_folder = document.folders()[0]
        files.look()
        for segment in sorted(files.sealed.values(), key=lambda segment: -segment.last):
            most_spans -= segment.slots
            if segment.last < since or most_spans < 0:
                # Treated as lost: spans that were open at its end continue in the next one, and are returned.
                files.done(segment.seq, False)
                until = segment.last + (document.offset or 0)
                left_out[segment.thread] = max(left_out.get(segment.thread, 0), until)
        self._events.skip_to(max(0, document.size_of(EVENTS) - most_bytes))
        return left_out

    def poll(self) -> list[SpanRecord | EventRecord]:
        """Return new records ordered by time, a part of them if there are many; an empty list means no more.

        A span is returned twice: as a start, and as a stop with all of its data.
        """
        while True:
            before = self._events.offset, self._files.progress
            records, is_all = self._look()
            # Without progress, the rest cannot be read at the moment: try again at the next poll.
            if records or is_all or before == (self._events.offset, self._files.progress):
                return records

    def _look(self) -> tuple[list[SpanRecord | EventRecord], bool]:
        """Return new records, and whether these are all: one look reads a limited amount."""
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
        records = [*self._spans.take(limit, offset), *events]
        is_all = limit >= horizon
        if ended and is_all:
            records += self._spans.abandon_open(self._last_sign(offset), offset)
        self.over = ended and is_all and not self._files.sealed
        records.sort(key=lambda entry: entry[0])
        return [record for _, record in records], is_all

    def _horizon(self, ended: bool) -> tuple[int, int]:
        """Return the present on the clock of the process, and the horizon."""
        now = self._document.now(ended)
        if ended or now != ALWAYS:
            return now, now
        # The clock of another machine is unknown: records that the last look saw are before this look.
        return ALWAYS, max(self._spans.latest, self._events.latest)

    def _last_sign(self, offset: int) -> int:
        """Return when the process was last known to be alive, on its clock."""
        heartbeat = self.document.get("heartbeat")
        last = heartbeat - offset if isinstance(heartbeat, int) else 0
        return max(min(last, MAX_TIME), self._spans.latest, self._events.latest)


KINDS = ("event", "value", "artifact", LATE_ATTRIBUTES)


class FollowedEvents:
    """Reads events.jsonl; events after the horizon wait."""

    def __init__(self, spans: FollowedSpans) -> None:
        self.latest = 0
        self._spans = spans
        self._tail = Tail()
        self._waiting: list[dict[str, Any]] = []

    @property
    def offset(self) -> int:
        """The number of bytes read."""
        return self._tail.offset

    def skip_to(self, offset: int) -> None:
        """Skip events before this offset of the file."""
        self._tail.skip_to(offset)

    def read(self, paths: list[Path], horizon: int) -> int:
        """Read more events. Return up to when all are read: the horizon, unless there are more."""
        for line in self._tail.read(paths):
            event = parse_object(line)
            if event is not None and event.get("kind") in KINDS and is_time(event.get("time")):
                self._waiting.append(event)
                self.latest = max(self.latest, event["time"])
        return min(horizon, self.latest) if self._tail.more else horizon

    def take(self, horizon: int, offset: int) -> list[OrderedRecord]:
        """Return the events up to the horizon."""
        due: list[dict[str, Any]] = []
        waiting: list[dict[str, Any]] = []
        for event in self._waiting:
            # An error precedes the stop of its span, even if it was written a moment later.
            is_due = event["time"] <= horizon or (
                event.get("name") == ERROR_EVENT
                and self._spans.has_ended(event.get("span"), horizon)
            )
            (due if is_due else waiting).append(event)
        self._waiting = waiting
        records = [
            self._record(event, offset)
            for event in sorted(due, key=lambda event: int(event["time"]))
        ]
        return [record for record in records if record is not None]

    def _record(self, event: dict[str, Any], offset: int) -> OrderedRecord | None:
        own = event.get("span") if is_time(event.get("span")) else None
        type, name, attributes = _content(event)
        span = None if own is None else self._spans.nearest_to(own)
        if own != span and type != "error":
            # An event of a span that is filtered out.
            return None
        if type == LATE_ATTRIBUTES and (span is None or self._spans.add_late(span, attributes)):
            return None
        time: int = event["time"]
        order = time if span is None else self._spans.order_event(span, time)
        thread = str(event.get("thread"))
        record = EventRecord(type, name, span, thread, time + offset, attributes)
        return (order, EVENT, 0), record


def _content(event: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return type, name and attributes of the record."""
    kind, name, attributes = event["kind"], str(event.get("name")), event.get("attributes")
    if not isinstance(attributes, dict):
        attributes = {}
    if kind == "artifact":
        file = {"name": name, "sha256": event.get("sha256"), "size": event.get("size")}
        return "event", "artifact", {**attributes, **file}
    if kind == LATE_ATTRIBUTES:
        return "attributes", name, attributes
    return "error" if name == ERROR_EVENT else "event", name, attributes
