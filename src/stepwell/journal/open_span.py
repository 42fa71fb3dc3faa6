"""Spans that are objects: one per entry, opened at any time and closed by identity, from any thread.

``Span`` of the next module is a name to enter, which is cheaper; this is for those who hold on to the one
span that they opened: callbacks, and whoever adds attributes and events to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns as _now
from typing import Any

from stepwell.journal import clock, frames
from stepwell.journal import span as spans
from stepwell.journal.errors import quietly
from stepwell.journal.format import (
    ATTRIBUTE_SHIFT,
    CONTEXT_NAME,
    MAX_STEP,
    NAME_MASK,
    NAME_SHIFT,
    ROW_BYTES,
    SLOT_MASK,
    SPAN_SLOTS,
    STEP_BIAS,
    STEP_SHIFT,
    WHOLE_ROW,
)
from stepwell.journal.frames import Frame
from stepwell.journal.journal import Journal
from stepwell.journal.lane import DROPPED, Lane
from stepwell.journal.metrics import context, set_context
from stepwell.journal.names import names
from stepwell.journal.state import current_lane, local

_pack = WHOLE_ROW.pack_into
ATTRIBUTES = "attributes"
"""Kind of the event line that adds attributes to a span when its own place is out of reach."""
UNRECORDED = Frame()
"""In place of a frame: the span found no space, so no slot and no id tell which one it is."""


class OpenSpan:
    """One span. Its ``id`` is unique within its process; 0 when it was not recorded.

    ``start`` and ``end`` are clock values; ``end`` is 0 while it is open.
    """

    __slots__ = ("_frame", "_lane", "_word", "end", "id", "parent_id", "start")

    _lane: Lane | None
    _frame: Frame | None
    _word: int
    id: int
    parent_id: int
    start: int
    end: int

    def _begin(self, word: int, under: int = 0) -> None:
        """Open it now, inside what this thread has open, else under that. The quick way."""
        try:
            lane: Lane = local.lane
        except AttributeError:
            self._begin_slowly(word, under=under)
            return
        if spans._running_loop() is not None:
            self._begin_slowly(word, under=under)
            return
        stack = lane.stack
        parent = stack[-1] & SLOT_MASK
        # No call from here to where the slot is ours: a signal handler may record in between.
        slot = lane.next
        if slot >= lane.limit or (under and not parent):
            self._begin_slowly(word, under=under)
            return
        lane.next = slot + 1
        lane.metas[slot] = word | parent
        stack.append(word | slot)
        lane.starts[slot] = self.start = _now()
        self._lane = lane
        self._frame = None
        self._word = word
        self.end = 0
        bits = lane.seq_bits
        self.id = bits | slot
        if parent:
            self.parent_id = lane.origins.get(parent) or bits | parent
        else:
            self.parent_id = 0

    def _begin_step(self, word: int, under: int, step: int, known: Lane | None = None) -> None:
        """As ``_begin``, and say that this step begins. One call for what happens a million times.

        ``known`` is the lane of this thread, from who knows that no task runs in it.
        """
        try:
            lane: Lane = known or local.lane
        except AttributeError:
            # It belongs to the step that is known when it begins.
            set_context(step, None)
            self._begin_slowly(word, under=under)
            return
        stack = lane.stack
        parent = stack[-1] & SLOT_MASK
        # No call from here to where slot and row are ours: a signal handler may record in between.
        slot = lane.next
        row = lane.row_next
        after = row + ROW_BYTES
        if slot >= lane.limit or after > lane.row_limit or not parent or step > MAX_STEP:
            set_context(step, None)
            self._begin_slowly(word, under=under)
            return
        lane.next = slot + 1
        lane.row_next = after
        if known is None and spans._running_loop() is not None:
            # What was reserved stays a hole.
            set_context(step, None)
            self._begin_slowly(word, under=under)
            return
        lane.metas[slot] = word | parent
        stack.append(word | slot)
        lane.starts[slot] = self.start = now = _now()
        self._lane = lane
        self._frame = None
        self._word = word
        self.end = 0
        bits = lane.seq_bits
        self.id = bits | slot
        self.parent_id = lane.origins.get(parent) or bits | parent
        context.step = step
        context.step_word = step + STEP_BIAS
        place = step + 1 << STEP_SHIFT
        if context.epoch is not None:
            place |= context.epoch + 1
        _pack(lane.rows, row, now, place, 0.0, CONTEXT_NAME)

    def _begin_slowly(
        self, word: int, attributes: bytes = b"", start: int = 0, parent: int = 0, under: int = 0
    ) -> None:
        """Open it at a given time; ``parent`` is its parent, ``under`` only where nothing is open."""
        self._lane = self._frame = None
        self._word = word
        self.id = self.parent_id = self.end = 0
        self.start = start or clock.now()
        self._open(word, attributes, self.start, parent, under)

    @quietly
    def _open(self, word: int, attributes: bytes, start: int, parent: int, under: int) -> None:
        lane = current_lane()
        if lane is None:
            return
        self._lane = lane
        if spans._running_loop() is not None:
            inside = parent or (under if not lane.current_span() else 0)
            self._frame = frames.enter(lane, word, attributes, start, inside)
            slot = self._frame.slot
        else:
            # Room for a stand-in of the parent too, which must not roll the lane over.
            if lane.next + 3 > lane.limit:
                lane.roll()
            offset = lane.put_attributes(attributes) if attributes else 0
            above = lane.plain_parent_slot()
            if parent or (under and not above):
                above = lane.slot_of(parent or under) or lane.stand_in(parent or under)
            slot = lane.reserve()
            if slot:
                lane.metas[slot] = word | above | offset << ATTRIBUTE_SHIFT
                lane.stack.append(word | slot)
                lane.starts[slot] = start
            else:
                self._frame = UNRECORDED
                lane.stack.append(word | DROPPED)
        if slot:
            self.id = lane.origin(slot)
            above = lane.metas[slot] & SLOT_MASK
            self.parent_id = lane.origin(above) if above else 0

    def _finish_now(self, known: Lane | None = None) -> bool:
        """Close it now; whether it was the innermost one here. The quick way.

        ``known`` is the lane of this thread, from who knows it.
        """
        lane = self._lane
        try:
            if self._frame is None and lane is (known or local.lane):
                entry = lane.stack.pop()
                slot = entry & SLOT_MASK
                if lane.seq_bits | slot == self.id:
                    lane.ends[slot] = self.end = _now()
                    return True
                lane.stack.append(entry)
        except AttributeError:
            # This thread has not recorded anything.
            pass
        return self._finish(_now())

    def _finish(self, end: int, flags: int = 0) -> bool:
        """Close it at this time, which becomes its end; whether it was the innermost one here."""
        if self.end:
            return False
        self.end = end
        lane = self._lane
        if lane is None:
            return True
        try:
            if self._frame is None and lane is local.lane:
                entry = lane.stack.pop()
                slot = entry & SLOT_MASK
                if lane.seq_bits | slot == self.id:
                    lane.ends[slot] = end | flags
                    return True
                lane.stack.append(entry)
        except AttributeError:
            # This thread has not recorded anything.
            pass
        self._finish_slowly(lane, end | flags)
        return False

    @quietly
    def _withdraw(self) -> None:
        """Remove the span as if it had never been opened: the spans in it belong to its parent.

        A span that began in an earlier segment stays.
        """
        lane = self._lane
        slot = self.id % SPAN_SLOTS
        if lane is not None and slot and lane.seq_bits | slot == self.id:
            # Readers skip rows without a start.
            lane.starts[slot] = 0
        self._finish(_now())

    @quietly
    def _set_aside(self, aside: bool) -> None:
        """Leave it open without taking in what this thread opens next; or take that in again."""
        lane = self._lane
        if lane is not None and self._frame is None and self.id and not self.end and _is_own(lane):
            lane.set_aside(self.id, aside)

    @property
    def is_of_this_thread(self) -> bool:
        """Whether the calling thread opened it."""
        return self._lane is None or _is_own(self._lane)

    @quietly
    def _finish_slowly(self, lane: Lane, word: int) -> None:
        """Close it out of order, or from elsewhere."""
        if lane.journal.closed or lane not in lane.journal.lanes:
            # It was given an end when the journal was closed, or its thread ended.
            return
        if self._frame is UNRECORDED:
            lane.leave_dropped(self._word)
        elif self._frame is not None:
            frames.leave_one(self._frame, word)
        else:
            lane.leave_by_id(self.id, word)

    @quietly
    def _annotate(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes: in its own place while it is open here, else by a line that names it."""
        lane = self._lane
        if lane is None or not self.id:
            return
        slot = self._own_slot(lane)
        if slot:
            data = spans._merge(lane.attributes_of(slot), dict(attributes))
            offset = lane.put_attributes(data)
            slot = self._own_slot(lane)
            if offset:
                kept = lane.metas[slot] & (SLOT_MASK | NAME_MASK)
                lane.metas[slot] = kept | offset << ATTRIBUTE_SHIFT
                return
        lane.journal.write_event(ATTRIBUTES, "", dict(attributes), span=self.id)

    def _own_slot(self, lane: Lane) -> int:
        if self.end or not _is_own(lane):
            return 0
        if self._frame is not None:
            return self._frame.slot if self._frame in lane.frames else 0
        return lane.slot_of(self.id)

    @property
    def _journal(self) -> Journal | None:
        return None if self._lane is None else self._lane.journal

    @property
    def name(self) -> str:
        """What it is called."""
        return names.key(self._word >> NAME_SHIFT)[2]

    @property
    def category(self) -> str:
        """The group of names it belongs to, "" for none."""
        return names.key(self._word >> NAME_SHIFT)[1]


def _is_own(lane: Lane) -> bool:
    """Whether it is the lane of the calling thread."""
    return lane is getattr(local, "lane", None)


clock.follow(globals())
