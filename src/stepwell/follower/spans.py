"""The spans of a process for a follower: starts, stops and parents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stepwell.follower.document import ALWAYS
from stepwell.follower.names import MARK, SpanName, SpanNameFilter
from stepwell.follower.records import EventRecord, SpanRecord
from stepwell.follower.rows import LiveRows, SealedRows, SpanRow
from stepwell.follower.span_segments import Ancestry, SealedSegment, SegmentFiles
from stepwell.journal.format import (
    ABANDONED,
    ATTRIBUTE_SHIFT,
    CARRIED,
    ERROR,
    LINK_NAME,
    NAME_SHIFT,
    SLOT_BITS,
    SLOT_MASK,
    SPAN_SLOTS,
    TIME_MASK,
)
from stepwell.journal.tail import parse_object

MAX_SEGMENTS = 6
MAX_SPANS = 8192
"""Approximate limits of one look, so that hours of backlog are not read at once."""


@dataclass(slots=True)
class SegmentCursor:
    """How far a segment was read: ``slot`` is next; the slots in ``again`` were not ready."""

    seq: int
    thread: str
    slot: int = 1
    again: list[int] = field(default_factory=list)
    open: dict[int, PendingSpan] = field(default_factory=dict)


class FollowedSpans:
    """Reads span segments; spans after the horizon wait."""

    def __init__(self, files: SegmentFiles, names: SpanNameFilter) -> None:
        self.latest = 0
        self._files = files
        self._names = names
        self._cursors: dict[int, SegmentCursor] = {}
        self._ancestry = Ancestry(files, names)
        self._open: dict[int, PendingSpan] = {}
        self._ended: list[PendingSpan] = []
        self._given: list[PendingSpan] = []

    # Reading

    def limit(self, horizon: int) -> int:
        """Return up to when to read: the horizon, or an earlier time if there is too much to read."""
        room = MAX_SPANS
        waiting = sorted(self._files.sealed.values(), key=lambda segment: segment.last)
        for number, segment in enumerate(waiting, 1):
            if not self._was_read_live(segment):
                room -= self._count(segment)
            if number < len(waiting) and (room < 0 or number >= MAX_SEGMENTS):
                return min(horizon, segment.last)
        return horizon

    def _was_read_live(self, segment: SealedSegment) -> bool:
        """Return whether all of a sealed segment was read while it was live."""
        cursor = self._cursors.get(segment.seq)
        if cursor is None or cursor.again or cursor.open:
            return False
        return 0 < segment.slots <= cursor.slot

    def _count(self, segment: SealedSegment) -> int:
        try:
            rows = self._files.sealed_rows(segment.seq)
        except OSError:
            return 0
        cursor = self._cursors.get(segment.seq)
        first = 1 if cursor is None else cursor.slot
        return 0 if rows is None else self._marks(rows, first).count(MARK)

    def read(self, horizon: int, now: int) -> None:
        """Read spans up to the horizon; ``now`` is the present."""
        # A copy from the time when names were read: later rows may not have their names yet.
        sealed = dict(self._files.sealed)
        # In order: the copy of an open span is in a later segment than its original.
        for seq in sorted({*self._ancestry.live, *sealed}):
            if seq in sealed:
                self._take_sealed(sealed[seq], horizon, now)
            else:
                self._take_rows(self._cursors[seq], self._ancestry.live[seq], horizon, now)
        self._ancestry.live = {}

    def read_live(self, note_latest: bool) -> None:
        """Read new rows of live segments. Names must be read after this, and before ``read``.

        With ``note_latest``, ``latest`` includes the times of spans that are not returned yet.
        """
        files = self._files
        gone = False
        for seq in sorted(files.live):
            if seq in files.sealed:
                continue
            try:
                cursor = self._cursors.get(seq) or self._new_cursor(seq, files.thread_of(seq))
                if cursor is None:
                    continue
                rows = files.live_rows(seq, cursor.slot, [*cursor.again, *cursor.open])
            except OSError:
                gone = True
                continue
            self._ancestry.live[seq] = rows
            if note_latest:
                self.latest = max(self.latest, rows.latest)
        if gone:
            files.look_at_archives()

    def _new_cursor(self, seq: int, thread: str | None) -> SegmentCursor | None:
        if thread is None:
            return None
        self._cursors[seq] = SegmentCursor(seq, thread)
        return self._cursors[seq]

    def _take_sealed(self, segment: SealedSegment, horizon: int, now: int) -> None:
        seq = segment.seq
        if self._was_read_live(segment):
            del self._cursors[seq]
            self._files.done(seq, True)
            return
        if segment.first > horizon:
            return
        try:
            rows = self._files.sealed_rows(seq)
        except OSError:
            # A temporary problem, such as too many open files: try again at the next poll.
            return
        cursor = self._cursors.get(seq) or self._new_cursor(seq, segment.thread)
        assert cursor is not None
        is_whole = segment.last <= horizon
        if rows is not None:
            self.latest = max(self.latest, segment.last)
            limits = (ALWAYS, ALWAYS) if is_whole else (horizon, now)
            self._take_rows(cursor, rows, *limits)
            if is_whole:
                for span in cursor.open.values():
                    row = rows.row(span.slot) if span.seq == seq else None
                    if row is not None:
                        self._read_attributes(span, seq, row[2])
        if is_whole or rows is None:
            del self._cursors[seq]
            self._files.done(seq, rows is not None)

    def _take_rows(
        self, cursor: SegmentCursor, rows: LiveRows | SealedRows, horizon: int, now: int
    ) -> None:
        for slot, span in list(cursor.open.items()):
            row = rows.row(slot)
            if row is not None and row[0]:
                del cursor.open[slot]
                self._see_end(span, cursor.seq, row)
        again, cursor.again = cursor.again, []
        for slot in again:
            if not self._take_row(cursor, rows, slot, horizon, now):
                cursor.again.append(slot)
        first = cursor.slot
        marks = self._marks(rows, first)
        at = marks.find(MARK)
        while at >= 0:
            if not self._take_row(cursor, rows, first + at, horizon, now):
                cursor.slot = first + at
                return
            at = marks.find(MARK, at + 1)
        cursor.slot = max(first, rows.end)

    def _marks(self, rows: LiveRows | SealedRows, first: int) -> bytes:
        return rows.low_bytes(first).translate(self._names.marks)

    def _take_row(
        self, cursor: SegmentCursor, rows: LiveRows | SealedRows, slot: int, horizon: int, now: int
    ) -> bool:
        """Read one row. Return False if it is after the horizon."""
        row = rows.row(slot)
        if row is None:
            return True
        _, start, meta = row
        number = meta >> NAME_SHIFT & LINK_NAME
        if number == LINK_NAME:
            return True
        name = self._names.find(number) if number else ("", "")
        if name is None:
            return True
        if horizon < start <= now:
            return False
        if not start or not number or start > now:
            # Reserved but not written: a signal handler wrote later rows in between.
            cursor.again.append(slot)
            return True
        self._take_span(cursor, slot, row, name)
        return True

    def _take_span(self, cursor: SegmentCursor, slot: int, row: SpanRow, name: SpanName) -> None:
        identity = self._ancestry.identity(cursor.seq, slot)
        span = self._open.get(identity)
        if span is None:
            if not self._is_new(cursor.seq, identity):
                return
            span = self._begin(identity, cursor.seq, slot, row, name, cursor.thread)
        elif span.end or span.seq > cursor.seq:
            return
        # The original is read too until it is marked as copied: an interrupt may have undone the copy.
        span.seq, span.slot = cursor.seq, slot
        if row[0]:
            self._see_end(span, cursor.seq, row)
        else:
            cursor.open[slot] = span

    def _is_new(self, seq: int, identity: int) -> bool:
        """Return whether a span that is not open was never returned."""
        origin = identity >> SLOT_BITS
        # In another segment than its own it is the copy of a returned span, unless the original was lost.
        return origin == seq or not (origin in self._cursors or self._files.was_read(origin))

    def _begin(
        self, identity: int, seq: int, slot: int, row: SpanRow, name: SpanName, thread: str
    ) -> PendingSpan:
        _, start, meta = row
        above = meta & SLOT_MASK
        parent = self._ancestry.nearest(seq, above) if 0 < above < slot else None
        outer = None if parent is None else self._open_span(parent)
        order = start if outer is None else max(start, outer.order)
        span = PendingSpan(identity, parent, name, thread, start, order, seq, slot)
        self._read_attributes(span, seq, meta)
        self._open[identity] = span
        self._given.append(span)
        self.latest = max(self.latest, start)
        return span

    def _see_end(self, span: PendingSpan, seq: int, row: SpanRow) -> None:
        end, _, meta = row
        if end & CARRIED or span.end:
            return
        span.end = end
        self._read_attributes(span, seq, meta)
        self._ended.append(span)
        self.latest = max(self.latest, end & TIME_MASK)

    def _read_attributes(self, span: PendingSpan, seq: int, meta: int) -> None:
        """Read the present attributes. Added attributes change the offset."""
        place = seq, meta >> ATTRIBUTE_SHIFT
        if place[1] and place != span.text:
            attributes = parse_object(self._files.text(*place))
            if attributes is not None:
                span.text, span.attributes = place, attributes

    # Parents

    def nearest_to(self, identity: int) -> int | None:
        """Return the id of the span if it is kept, else of its nearest ancestor that is."""
        if identity in self._open:
            return identity
        nearest = self._ancestry.nearest(identity >> SLOT_BITS, identity % SPAN_SLOTS)
        if nearest is not None:
            self._open_span(nearest)
        return nearest

    def _open_span(self, identity: int) -> PendingSpan | None:
        """Return a span that was returned as started and not as stopped.

        A span with an earlier time than its parent may be read before it. Then the parent is returned now,
        whatever its time.
        """
        span = self._open.get(identity)
        seq, slot = identity >> SLOT_BITS, identity % SPAN_SLOTS
        if span is not None or self._was_passed(seq, slot):
            return span
        row = self._ancestry.row(seq, slot)
        name = None if row is None else self._names.find(row[2] >> NAME_SHIFT & LINK_NAME)
        thread = self._thread(seq)
        if row is None or name is None or thread is None:
            return None
        return self._begin(identity, seq, slot, row, name, thread)

    def _was_passed(self, seq: int, slot: int) -> bool:
        cursor = self._cursors.get(seq)
        if cursor is None:
            return self._files.was_read(seq) is not None
        return slot < cursor.slot and slot not in cursor.again

    def _thread(self, seq: int) -> str | None:
        if seq in self._cursors:
            return self._cursors[seq].thread
        segment = self._files.sealed.get(seq)
        if segment is not None:
            return segment.thread
        try:
            return self._files.thread_of(seq) if seq in self._files.live else None
        except OSError:
            return None

    # For events

    def add_late(self, identity: int, attributes: dict[str, Any]) -> bool:
        """Add attributes to a span. Return False if its stop was returned already."""
        span = self._open.get(identity)
        if span is not None:
            span.late.update(attributes)
        return span is not None

    def has_ended(self, identity: Any, horizon: int) -> bool:
        """Return whether the stop of a span is about to be returned."""
        span = self._open.get(identity)
        return span is not None and 0 < span.due <= horizon

    def order_event(self, identity: int, time: int) -> int:
        """Return the position of an event of this span: not before its start or after its end."""
        span = self._open.get(identity)
        if span is None:
            return time
        span.last = max(time, span.order, span.last)
        return max(time, span.order)

    # Records

    def take(self, horizon: int, offset: int) -> Iterator[OrderedRecord]:
        """Return the starts and stops up to the horizon."""
        for span in self._given:
            yield start_of(span, offset)
        self._given = []
        due = [span for span in self._ended if span.due <= horizon]
        self._ended = [span for span in self._ended if span.due > horizon]
        for span in due:
            yield self._stop(span, offset)

    def abandon_open(self, end: int, offset: int) -> list[OrderedRecord]:
        """Return stops at ``end`` for all open spans, because their process has ended."""
        for span in self._open.values():
            row = self._ancestry.row(span.seq, span.slot)
            if row is not None:
                self._read_attributes(span, span.seq, row[2])
            span.end = max(end, span.start) | ABANDONED
        for cursor in self._cursors.values():
            cursor.open.clear()
        return [self._stop(span, offset) for span in list(self._open.values())]

    def _stop(self, span: PendingSpan, offset: int) -> OrderedRecord:
        del self._open[span.id]
        return stop_of(span, offset)


START, EVENT, STOP = range(3)
"""The order of records with equal times."""

OrderedRecord = tuple[tuple[int, int, int], SpanRecord | EventRecord]
"""(sort key, record)"""


@dataclass(slots=True)
class PendingSpan:
    """A span whose start was returned, and its present location.

    Attributes:
        end: its end word, 0 until it was read.
        order: the sort key of its start; ``last``: that of its latest event.
        text: the segment and offset from which its attributes were read.
        late: attributes added by events.
    """

    id: int
    parent: int | None
    name: SpanName
    thread: str
    start: int
    order: int
    seq: int
    slot: int
    end: int = 0
    last: int = 0
    text: tuple[int, int] = (0, 0)
    attributes: dict[str, Any] = field(default_factory=dict)
    late: dict[str, Any] = field(default_factory=dict)

    @property
    def due(self) -> int:
        """The horizon from which its stop is returned."""
        return self.end & TIME_MASK


def start_of(span: PendingSpan, offset: int) -> OrderedRecord:
    """Return the start record of a span. ``offset`` converts clock values to times since the epoch."""
    record = _record(span, "start", None, "open", offset, dict(span.attributes))
    return (span.order, START, span.id), record


def stop_of(span: PendingSpan, offset: int) -> OrderedRecord:
    """Return the stop record of a span, ordered after its events."""
    end = max(span.end & TIME_MASK, span.start)
    status = "ok"
    if span.end & (ERROR | ABANDONED):
        status = "unfinished" if span.end & ABANDONED else "error"
    attributes = {**span.attributes, **span.late}
    record = _record(span, "stop", end + offset, status, offset, attributes)
    return (max(end, span.order, span.last), STOP, -span.id), record


def _record(
    span: PendingSpan,
    type: str,
    end: int | None,
    status: str,
    offset: int,
    attributes: dict[str, Any],
) -> SpanRecord:
    name, category = span.name
    start = span.start + offset
    return SpanRecord(
        type, span.id, span.parent, name, category, span.thread, start, end, status, attributes
    )
