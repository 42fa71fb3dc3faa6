"""Open spans of asyncio code. Tasks interleave on one thread, so they cannot share its stack.

Each open span is a ``TaskSpan`` in a context variable: a task sees its own spans and those it was started
under, never those of other tasks. ``Lane.frames`` has all of them; rolling over renumbers their slots.
"""

from __future__ import annotations

from collections.abc import Container
from contextvars import ContextVar
from time import perf_counter_ns as _now
from typing import TYPE_CHECKING

from stepwell._core import clock
from stepwell.journal.format import ATTRIBUTE_SHIFT, SLOT_BITS, SPAN_SLOTS

if TYPE_CHECKING:
    from stepwell.journal.lane import Lane


class TaskSpan:
    """One open span of asyncio code.

    ``slot`` is its slot in the current segment of its lane (0: there was no space), valid while it is in
    ``lane.frames``. ``origin`` is the span id, ``outer`` the enclosing span of the task.
    """

    __slots__ = ("lane", "origin", "outer", "slot", "word")

    lane: Lane
    outer: TaskSpan | None
    word: int
    slot: int
    origin: int


_current: ContextVar[TaskSpan | None] = ContextVar("stepwell_frame", default=None)
get_current = _current.get
set_current = _current.set
clock.follow(globals())


def enter(lane: Lane, word: int, attributes: bytes, start: int = 0, parent_id: int = 0) -> TaskSpan:
    """Open a span of this name in the running task, under the parent with this id if one is given."""
    outer = get_current()
    if lane.next + 2 > lane.limit:
        lane.roll()
    offset = lane.put_attributes(attributes) if attributes else 0
    if parent_id:
        parent = lane.proxy_slot(parent_id)
    elif outer is not None and outer.slot and outer in lane.frames:
        parent = outer.slot
    else:
        parent = _distant_parent(lane, outer)
        _forget_ended(outer)
    slot = lane.next
    if slot < lane.limit:
        lane.next = slot + 1
    else:
        slot = lane.reserve()
    frame = TaskSpan()
    frame.lane = lane
    frame.outer = outer
    frame.word = word
    frame.slot = slot
    lane.frames[frame] = None
    set_current(frame)
    if slot:
        frame.origin = lane.seq_bits | slot
        lane.metas[slot] = parent | word | offset << ATTRIBUTE_SHIFT
        lane.starts[slot] = start or _now()
    else:
        frame.origin = 0
    return frame


def enter_unrecorded(lane: Lane, word: int) -> None:
    """Open a span that is not recorded, as if there were no space for it."""
    frame = TaskSpan()
    frame.lane = lane
    frame.outer = get_current()
    frame.word = word
    frame.slot = frame.origin = 0
    lane.frames[frame] = None
    set_current(frame)


def _distant_parent(lane: Lane, frame: TaskSpan | None) -> int:
    """Return the slot of the parent where it is not an open span of this task in this lane."""
    while frame is not None and (not frame.origin or frame.lane.journal is not lane.journal):
        frame = frame.outer
    if frame is None:
        return lane.plain_parent_slot()
    if frame in lane.frames:
        return frame.slot
    if frame.origin >> SLOT_BITS == lane.seq_bits >> SLOT_BITS:
        return frame.origin % SPAN_SLOTS
    # It ended in an earlier segment, or belongs to another thread: it needs a proxy here.
    return lane.proxy_slot(frame.origin)


def _forget_ended(frame: TaskSpan | None) -> None:
    """Unlink the ended spans around this one, or tasks that start their successors form an endless chain."""
    while frame is not None and frame.outer is not None:
        if frame.outer in frame.outer.lane.frames:
            return
        frame.outer = frame.outer.outer


def current_slot(lane: Lane) -> int:
    """Return the slot of the innermost open span of the running task."""
    frame = get_current()
    if frame is not None and frame.slot and frame in lane.frames:
        return frame.slot
    return _distant_parent(lane, frame)


def innermost(word: int) -> TaskSpan | None:
    """Return the innermost open span of this name in the running task."""
    frame = get_current()
    while frame is not None and not (frame.word == word and frame in frame.lane.frames):
        frame = frame.outer
    return frame


def innermost_of(words: Container[int]) -> TaskSpan | None:
    """Return the innermost open span with one of these names in the running task."""
    frame = get_current()
    while frame is not None and not (frame.word in words and frame in frame.lane.frames):
        frame = frame.outer
    return frame


def find(lane: Lane, word: int) -> int:
    """Return the slot of the innermost open span of this name in the running task, or 0."""
    frame = innermost(word)
    return frame.slot if frame is not None and frame.lane is lane else 0


def leave(word: int, flags: int) -> TaskSpan | None:
    """Close the innermost open span of this name in the running task, and return it."""
    inner, frame = None, get_current()
    while frame is not None and not (frame.word == word and frame in frame.lane.frames):
        inner, frame = frame, frame.outer
    if frame is None:
        return None
    _end(frame, inner, _now() | flags)
    return frame


def leave_one(frame: TaskSpan, end: int) -> None:
    """Close a span from any task or thread."""
    inner, match = None, get_current()
    while match is not None and match is not frame:
        inner, match = match, match.outer
    with frame.lane.lock:
        if frame not in frame.lane.frames:
            return
        if match is None:
            # The task that it is open in cannot be reached: `origin` 0 makes it skip this span.
            frame.origin = 0
            if frame.slot:
                frame.lane.ends[frame.slot] = end
            del frame.lane.frames[frame]
        else:
            _end(frame, inner, end)


def _end(frame: TaskSpan, inner: TaskSpan | None, end: int) -> None:
    lane = frame.lane
    if frame.slot:
        lane.ends[frame.slot] = end
    del lane.frames[frame]
    if inner is None:
        set_current(frame.outer)
    else:
        # Its child is still open: leaving the child must not lead back here.
        inner.outer = frame.outer
