"""Open spans of asyncio code, which interleaves on one thread and so cannot share its stack.

Each open span is a frame in a context variable: a task sees the spans it was started under and its own,
never those of its neighbours. Frames are found again when the lane rolls over, and renumbered.
"""

from __future__ import annotations

from collections.abc import Container
from contextvars import ContextVar
from time import perf_counter_ns as _now
from typing import TYPE_CHECKING

from stepwell.journal import clock
from stepwell.journal.format import ATTRIBUTE_SHIFT, SLOT_BITS, SPAN_SLOTS

if TYPE_CHECKING:
    from stepwell.journal.lane import Lane


class Frame:
    """One open span of asyncio code.

    ``slot`` is where it is in its lane's current segment, 0 when it found no space; it is valid
    while the frame is one of its lane's frames. ``origin`` is the span's identity.
    """

    __slots__ = ("lane", "origin", "outer", "slot", "word")

    lane: Lane
    outer: Frame | None
    word: int
    slot: int
    origin: int


_current: ContextVar[Frame | None] = ContextVar("stepwell_frame", default=None)
_get = _current.get
_set = _current.set
clock.follow(globals())


def enter(lane: Lane, word: int, attributes: bytes, start: int = 0, parent_id: int = 0) -> Frame:
    """Open a span of this name inside the running task, under a certain parent if one is given."""
    outer = _get()
    if lane.next + 2 > lane.limit:
        lane.roll()
    offset = lane.put_attributes(attributes) if attributes else 0
    if parent_id:
        parent = lane.stand_in(parent_id)
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
    frame = Frame()
    frame.lane = lane
    frame.outer = outer
    frame.word = word
    frame.slot = slot
    lane.frames[frame] = None
    _set(frame)
    if slot:
        frame.origin = lane.seq_bits | slot
        lane.metas[slot] = parent | word | offset << ATTRIBUTE_SHIFT
        lane.starts[slot] = start or _now()
    else:
        frame.origin = 0
    return frame


def enter_unrecorded(lane: Lane, word: int) -> None:
    """Open a span that is not recorded, as if it had found no space."""
    frame = Frame()
    frame.lane = lane
    frame.outer = _get()
    frame.word = word
    frame.slot = frame.origin = 0
    lane.frames[frame] = None
    _set(frame)


def _distant_parent(lane: Lane, frame: Frame | None) -> int:
    """The parent's slot when it is not simply an open span of this task in this lane."""
    while frame is not None and (not frame.origin or frame.lane.journal is not lane.journal):
        frame = frame.outer
    if frame is None:
        return lane.plain_parent_slot()
    if frame in lane.frames:
        return frame.slot
    if frame.origin >> SLOT_BITS == lane.seq_bits >> SLOT_BITS:
        return frame.origin % SPAN_SLOTS
    # It began elsewhere and ended, or belongs to another thread: something must stand for it.
    return lane.stand_in(frame.origin)


def _forget_ended(frame: Frame | None) -> None:
    """Cut ended frames out behind this one: a task may start its successor for ever."""
    while frame is not None and frame.outer is not None:
        if frame.outer in frame.outer.lane.frames:
            return
        frame.outer = frame.outer.outer


def current_slot(lane: Lane) -> int:
    """Slot of the innermost open span of the running task."""
    frame = _get()
    if frame is not None and frame.slot and frame in lane.frames:
        return frame.slot
    return _distant_parent(lane, frame)


def innermost(word: int) -> Frame | None:
    """The innermost open span of this name in the running task."""
    frame = _get()
    while frame is not None and not (frame.word == word and frame in frame.lane.frames):
        frame = frame.outer
    return frame


def innermost_of(words: Container[int]) -> Frame | None:
    """The innermost open span of one of these names in the running task."""
    frame = _get()
    while frame is not None and not (frame.word in words and frame in frame.lane.frames):
        frame = frame.outer
    return frame


def find(lane: Lane, word: int) -> int:
    """Slot of the innermost open span of this name in the running task, or 0."""
    frame = innermost(word)
    return frame.slot if frame is not None and frame.lane is lane else 0


def leave(word: int, flags: int) -> Frame | None:
    """Close the innermost open span of this name in the running task."""
    inner, frame = None, _get()
    while frame is not None and not (frame.word == word and frame in frame.lane.frames):
        inner, frame = frame, frame.outer
    if frame is None:
        return None
    _end(frame, inner, _now() | flags)
    return frame


def leave_one(frame: Frame, end: int) -> None:
    """Close one certain span, from whatever task or thread."""
    inner, found = None, _get()
    while found is not None and found is not frame:
        inner, found = found, found.outer
    with frame.lane.lock:
        if frame not in frame.lane.frames:
            return
        if found is None:
            # Whose innermost span this is, is out of sight: they are to pass it over.
            frame.origin = 0
            if frame.slot:
                frame.lane.ends[frame.slot] = end
            del frame.lane.frames[frame]
        else:
            _end(frame, inner, end)


def _end(frame: Frame, inner: Frame | None, end: int) -> None:
    lane = frame.lane
    if frame.slot:
        lane.ends[frame.slot] = end
    del lane.frames[frame]
    if inner is None:
        _set(frame.outer)
    else:
        # Left before what is inside of it: that must not lead back here when it is left.
        inner.outer = frame.outer
