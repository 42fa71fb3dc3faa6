"""Spans in a lane that is known to be the calling thread's.

For code that comes to every training step, with caches full of something else: looking up what belongs to
a thread, and whether a task runs in it, then costs more than recording. Whoever knows can go without.
"""

from __future__ import annotations

from time import perf_counter_ns as _now

from stepwell.journal import clock
from stepwell.journal.format import SLOT_MASK
from stepwell.journal.lane import Lane


def enter(lane: Lane, word: int) -> int:
    """Enter a span, by its word, in the lane of this thread; when it began.

    0 if it has to be entered the usual way: the segment is full, the run has ended, or tasks are about.
    """
    # No call from here to where the slot is ours: a signal handler may record in between.
    slot = lane.next
    if slot >= lane.limit or lane.frames:
        return 0
    lane.next = slot + 1
    stack = lane.stack
    lane.metas[slot] = word | stack[-1] & SLOT_MASK
    stack.append(word | slot)
    lane.starts[slot] = start = _now()
    return start


def leave(lane: Lane, word: int) -> int:
    """Leave it; when it ended. 0 if it has to be left the usual way: it is not the innermost one."""
    stack = lane.stack
    entry = stack.pop()
    slot = entry ^ word
    # What is left of the entry is a slot only if it was this span's.
    if slot > SLOT_MASK or lane.frames:
        stack.append(entry)
        return 0
    lane.ends[slot] = end = _now()
    return end


clock.follow(globals())
