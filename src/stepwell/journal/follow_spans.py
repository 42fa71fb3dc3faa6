"""The spans of a process as a follower gives them out: starts, stops, and who is inside of whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stepwell.journal.ancestry import Ancestry
from stepwell.journal.follow_document import ALWAYS
from stepwell.journal.followed import Followed, Given, start_of, stop_of
from stepwell.journal.format import (
    ABANDONED,
    ATTRIBUTE_SHIFT,
    CARRIED,
    LINK_NAME,
    NAME_SHIFT,
    SLOT_BITS,
    SLOT_MASK,
    SPAN_SLOTS,
    TIME_MASK,
)
from stepwell.journal.kept_names import MARK, KeptNames, Name
from stepwell.journal.segment_files import SealedSegment, SegmentFiles
from stepwell.journal.segment_rows import LiveRows, Row, SealedRows
from stepwell.journal.tail import parse_object

MAX_SEGMENTS = 6
MAX_SPANS = 8192
"""About so much is given out at a time, so that a backlog of hours does not come at once."""


@dataclass(slots=True)
class Cursor:
    """How far a segment was read: ``slot`` is next; ``again`` are those that were not ready."""

    seq: int
    thread: str
    slot: int = 1
    again: list[int] = field(default_factory=list)
    open: dict[int, Followed] = field(default_factory=dict)


class FollowedSpans:
    """Reads segments; what lies behind the horizon waits."""

    def __init__(self, files: SegmentFiles, names: KeptNames) -> None:
        self.latest = 0
        self._files = files
        self._names = names
        self._cursors: dict[int, Cursor] = {}
        self._ancestry = Ancestry(files, names)
        self._open: dict[int, Followed] = {}
        self._ended: list[Followed] = []
        self._given: list[Followed] = []

    # Reading

    def limit(self, horizon: int) -> int:
        """Up to when to read so that it is not too much; the horizon when it is not."""
        room = MAX_SPANS
        waiting = sorted(self._files.sealed.values(), key=lambda segment: segment.last)
        for number, segment in enumerate(waiting, 1):
            if not self._is_known(segment):
                room -= self._count(segment)
            if number < len(waiting) and (room < 0 or number >= MAX_SEGMENTS):
                return min(horizon, segment.last)
        return horizon

    def _is_known(self, segment: SealedSegment) -> bool:
        """Whether all that is in a sealed segment was read while it was live."""
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
        """Take in what was recorded up to the horizon; ``now`` is the present."""
        # As it was when names were read: each row has its name then.
        sealed = dict(self._files.sealed)
        # A copy of an open span is in a later segment than what it was copied from.
        for seq in sorted({*self._ancestry.live, *sealed}):
            if seq in sealed:
                self._take_sealed(sealed[seq], horizon, now)
            else:
                self._take_rows(self._cursors[seq], self._ancestry.live[seq], horizon, now)
        self._ancestry.live = {}

    def read_live(self, note_latest: bool) -> None:
        """Read what is new in live segments; names have to be read after it, and before ``read``.

        ``latest`` is what was seen of spans that are given out; of all, when it is to be noted.
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

    def _new_cursor(self, seq: int, thread: str | None) -> Cursor | None:
        if thread is None:
            return None
        self._cursors[seq] = Cursor(seq, thread)
        return self._cursors[seq]

    def _take_sealed(self, segment: SealedSegment, horizon: int, now: int) -> None:
        seq = segment.seq
        if self._is_known(segment):
            del self._cursors[seq]
            self._files.done(seq, True)
            return
        if segment.first > horizon:
            return
        try:
            rows = self._files.sealed_rows(seq)
        except OSError:
            # Too many open files, or the like: it is still there the next time.
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
        self, cursor: Cursor, rows: LiveRows | SealedRows, horizon: int, now: int
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
        self, cursor: Cursor, rows: LiveRows | SealedRows, slot: int, horizon: int, now: int
    ) -> bool:
        """Take one row in; whether it lies before the horizon."""
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
            # A signal handler may come between reserving and writing, so later ones are there.
            cursor.again.append(slot)
            return True
        self._take_span(cursor, slot, row, name)
        return True

    def _take_span(self, cursor: Cursor, slot: int, row: Row, name: Name) -> None:
        identity = self._ancestry.identity(cursor.seq, slot)
        span = self._open.get(identity)
        if span is None:
            if not self._is_new(cursor.seq, identity):
                return
            span = self._begin(identity, cursor.seq, slot, row, name, cursor.thread)
        elif span.end or span.seq > cursor.seq:
            return
        # Its place before is looked at too until it says that this one is the copy: an interrupt may
        # have undone the copying.
        span.seq, span.slot = cursor.seq, slot
        if row[0]:
            self._see_end(span, cursor.seq, row)
        else:
            cursor.open[slot] = span

    def _is_new(self, seq: int, identity: int) -> bool:
        """Whether a span that is not open was not given out before."""
        origin = identity >> SLOT_BITS
        # A copy of an ended one, unless what it was copied from is lost.
        return origin == seq or not (origin in self._cursors or self._files.was_read(origin))

    def _begin(
        self, identity: int, seq: int, slot: int, row: Row, name: Name, thread: str
    ) -> Followed:
        _, start, meta = row
        above = meta & SLOT_MASK
        parent = self._ancestry.nearest(seq, above) if 0 < above < slot else None
        outer = None if parent is None else self._known(parent)
        order = start if outer is None else max(start, outer.order)
        span = Followed(identity, parent, name, thread, start, order, seq, slot)
        self._read_attributes(span, seq, meta)
        self._open[identity] = span
        self._given.append(span)
        self.latest = max(self.latest, start)
        return span

    def _see_end(self, span: Followed, seq: int, row: Row) -> None:
        end, _, meta = row
        if end & CARRIED or span.end:
            return
        span.end = end
        self._read_attributes(span, seq, meta)
        self._ended.append(span)
        self.latest = max(self.latest, end & TIME_MASK)

    def _read_attributes(self, span: Followed, seq: int, meta: int) -> None:
        """Attributes as they are now; what is added gets a new place."""
        place = seq, meta >> ATTRIBUTE_SHIFT
        if place[1] and place != span.text:
            found = parse_object(self._files.text(*place))
            if found is not None:
                span.text, span.attributes = place, found

    # What is outside of it

    def nearest_to(self, identity: int) -> int | None:
        """The span itself if it is kept, else its nearest ancestor that is."""
        if identity in self._open:
            return identity
        found = self._ancestry.nearest(identity >> SLOT_BITS, identity % SPAN_SLOTS)
        if found is not None:
            self._known(found)
        return found

    def _known(self, identity: int) -> Followed | None:
        """A span that was given out and has not been given out as ended.

        One with an earlier time than its parent may be read before it: then the parent is given out
        now, whatever its own time.
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

    # What events want

    def add_late(self, identity: int, attributes: dict[str, Any]) -> bool:
        """Add attributes to a span; False when it was given out with its end already."""
        span = self._open.get(identity)
        if span is not None:
            span.late.update(attributes)
        return span is not None

    def has_ended(self, identity: Any, horizon: int) -> bool:
        """Whether a span is about to be given out with its end."""
        span = self._open.get(identity)
        return span is not None and 0 < span.due <= horizon

    def order_event(self, identity: int, time: int) -> int:
        """Where an event of this span stands: not before its start or behind its end."""
        span = self._open.get(identity)
        if span is None:
            return time
        span.last = max(time, span.order, span.last)
        return max(time, span.order)

    # Giving out

    def take(self, horizon: int, offset: int) -> Iterator[Given]:
        """The starts and stops up to the horizon."""
        for span in self._given:
            yield start_of(span, offset)
        self._given = []
        due = [span for span in self._ended if span.due <= horizon]
        self._ended = [span for span in self._ended if span.due > horizon]
        for span in due:
            yield self._stop(span, offset)

    def give_up(self, end: int, offset: int) -> list[Given]:
        """Stops for all that is open, because nobody will see its end."""
        for span in self._open.values():
            row = self._ancestry.row(span.seq, span.slot)
            if row is not None:
                self._read_attributes(span, span.seq, row[2])
            span.end = max(end, span.start) | ABANDONED
        for cursor in self._cursors.values():
            cursor.open.clear()
        return [self._stop(span, offset) for span in list(self._open.values())]

    def _stop(self, span: Followed, offset: int) -> Given:
        del self._open[span.id]
        return stop_of(span, offset)
