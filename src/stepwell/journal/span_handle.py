"""Span handles: objects for one open span each, which any thread can close.

A ``NamedSpan`` is cheaper. A handle is for callers that keep the span that they opened: callbacks, and code
that adds attributes and events to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns as _now
from typing import Any

from stepwell._core import clock
from stepwell._core.errors import never_raises
from stepwell.journal import span as spans
from stepwell.journal import task_spans
from stepwell.journal.format import (
    ATTRIBUTE_SHIFT,
    CONTEXT_NAME,
    LATE_ATTRIBUTES,
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
from stepwell.journal.journal import Journal
from stepwell.journal.lane import DROPPED, Lane
from stepwell.journal.metrics import context, set_context
from stepwell.journal.names import names
from stepwell.journal.state import current_lane, local
from stepwell.journal.task_spans import TaskSpan

_pack = WHOLE_ROW.pack_into
UNRECORDED = TaskSpan()
"""In place of a TaskSpan: there was no space for the span, so it has no slot and no id."""


class SpanHandle:
    """One span.

    Attributes:
        id: unique within its process; 0 if the span was not recorded.
        parent_id: the id of its parent, 0 for none.
        start: when it began, on the monotonic clock.
        end: when it ended, 0 while it is open.
    """

    __slots__ = ("_frame", "_lane", "end", "id", "name_word", "parent_id", "start")

    _lane: Lane | None
    _frame: TaskSpan | None
    name_word: int
    id: int
    parent_id: int
    start: int
    end: int

    def _begin(self, word: int, under: int = 0) -> None:
        """Open it now (fast path) in the innermost open span of this thread, else under the id ``under``."""
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
        # No call until the slot is reserved: a signal handler may record in between.
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
        self.name_word = word
        self.end = 0
        bits = lane.seq_bits
        self.id = bits | slot
        if parent:
            self.parent_id = lane.origins.get(parent) or bits | parent
        else:
            self.parent_id = 0

    def _begin_step(self, word: int, under: int, step: int, own_lane: Lane | None = None) -> None:
        """Like ``_begin``, and set the step, in one call for the sake of speed.

        ``own_lane``: the lane of this thread, if the caller knows that no asyncio task is running.
        """
        try:
            lane: Lane = own_lane or local.lane
        except AttributeError:
            # The step is set first: the span belongs to the step at its start.
            set_context(step, None)
            self._begin_slowly(word, under=under)
            return
        stack = lane.stack
        parent = stack[-1] & SLOT_MASK
        # No call until slot and row are reserved: a signal handler may record in between.
        slot = lane.next
        row = lane.row_next
        after = row + ROW_BYTES
        if slot >= lane.limit or after > lane.row_limit or not parent or step > MAX_STEP:
            set_context(step, None)
            self._begin_slowly(word, under=under)
            return
        lane.next = slot + 1
        lane.row_next = after
        if own_lane is None and spans._running_loop() is not None:
            # The reserved slot and row stay empty.
            set_context(step, None)
            self._begin_slowly(word, under=under)
            return
        lane.metas[slot] = word | parent
        stack.append(word | slot)
        lane.starts[slot] = self.start = now = _now()
        self._lane = lane
        self._frame = None
        self.name_word = word
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
        """Open it at a given time. ``parent`` is the id of its parent; ``under`` the one if none is open."""
        self._lane = self._frame = None
        self.name_word = word
        self.id = self.parent_id = self.end = 0
        self.start = start or clock.now()
        self._open(word, attributes, self.start, parent, under)

    @never_raises
    def _open(self, word: int, attributes: bytes, start: int, parent: int, under: int) -> None:
        lane = current_lane()
        if lane is None:
            return
        self._lane = lane
        if spans._running_loop() is not None:
            inside = parent or (under if not lane.current_span() else 0)
            self._frame = task_spans.enter(lane, word, attributes, start, inside)
            slot = self._frame.slot
        else:
            # With room for a proxy of the parent, which must not roll over.
            if lane.next + 3 > lane.limit:
                lane.roll()
            offset = lane.put_attributes(attributes) if attributes else 0
            above = lane.plain_parent_slot()
            if parent or (under and not above):
                above = lane.slot_of(parent or under) or lane.proxy_slot(parent or under)
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

    def _finish_now(self, own_lane: Lane | None = None) -> bool:
        """Close it now (fast path). Return whether it was the innermost open span of this thread.

        ``own_lane``: the lane of this thread, if the caller has it.
        """
        lane = self._lane
        try:
            if self._frame is None and lane is (own_lane or local.lane):
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
        """Close it at this time. Return whether it was the innermost open span of this thread."""
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

    @never_raises
    def _withdraw(self) -> None:
        """Remove the span as if it had never been opened; its children get its parent.

        A span that began in an earlier segment stays.
        """
        lane = self._lane
        slot = self.id % SPAN_SLOTS
        if lane is not None and slot and lane.seq_bits | slot == self.id:
            # Readers skip rows without a start.
            lane.starts[slot] = 0
        self._finish(_now())

    @never_raises
    def _set_aside(self, aside: bool) -> None:
        """Keep it open without being the parent of further spans of this thread; or be their parent again."""
        lane = self._lane
        if lane is not None and self._frame is None and self.id and not self.end and _is_own(lane):
            lane.set_aside(self.id, aside)

    @property
    def is_of_this_thread(self) -> bool:
        """Whether the calling thread opened the span."""
        return self._lane is None or _is_own(self._lane)

    @never_raises
    def _finish_slowly(self, lane: Lane, word: int) -> None:
        """Close it out of order, or from another thread or task."""
        if lane.journal.closed or lane not in lane.journal.lanes:
            # It got its end when the journal was closed or its thread ended.
            return
        if self._frame is UNRECORDED:
            lane.leave_dropped(self.name_word)
        elif self._frame is not None:
            task_spans.leave_one(self._frame, word)
        else:
            lane.leave_by_id(self.id, word)

    @never_raises
    def _annotate(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes: in its own row while it is open in this thread, else by an event line."""
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
        lane.journal.write_event(LATE_ATTRIBUTES, "", dict(attributes), span=self.id)

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
        """The name of the span."""
        return names.key(self.name_word >> NAME_SHIFT)[2]

    @property
    def category(self) -> str:
        """The category of the name, "" for none."""
        return names.key(self.name_word >> NAME_SHIFT)[1]


def _is_own(lane: Lane) -> bool:
    return lane is getattr(local, "lane", None)


clock.follow(globals())
