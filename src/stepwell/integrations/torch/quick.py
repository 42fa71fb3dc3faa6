"""The usual call of a model, an optimizer or the autograd engine: the quick way to record it.

A training step comes to each of these once, with caches that the step itself has filled with something else.
There, every function that is called costs a microsecond or more, in Python or in C, and looking at what
belongs to a thread or task costs three. So what is known is kept here, and the thread is looked at once.

There is one call at a time that was begun in this way, the outermost one of the thread that trains. Whatever
is not usual (calls inside calls, other threads, nodes with arguments, a segment that is full) goes the way of
``recording``, which is told by ``settle`` of what is under way here.
"""

from __future__ import annotations

import os
from threading import get_ident
from threading import local as local_to_thread
from time import perf_counter_ns as _now
from typing import TYPE_CHECKING, Any

from stepwell.annotations.node import Node
from stepwell.journal import clock
from stepwell.journal.format import SLOT_MASK
from stepwell.journal.lane import Lane
from stepwell.journal.metrics import context
from stepwell.journal.state import local

if TYPE_CHECKING:
    from stepwell.integrations.torch.device_time import Timer


class Quick:
    """The call that is under way.

    Attributes:
        thread: the one that trains, 0 while none is known.
        lane: where it writes.
        others: calls that are under way the other way, in whatever thread.
        entry: the entry of the call in the lane's stack; 0: there is none.
        site: whose call it is.
        timer: of the time that it takes on a device.
    """

    __slots__ = ("entry", "lane", "others", "site", "thread", "timer")

    def __init__(self) -> None:
        self.thread = 0
        self.lane: Lane | None = None
        self.others: list[Any] = []
        self.entry = 0
        self.site: Any = None
        self.timer: Timer | None = None

    def learn(self) -> None:
        """Take the calling thread for the one that trains, unless another one is in a call."""
        lane: Lane | None = getattr(local, "lane", None)
        thread = 0 if lane is None else get_ident()
        if thread and not hasattr(_here, "end"):
            _here.end = _End(self, thread)
        # No call from here on, behind which another thread could do the same.
        if not self.entry and context.step is not None:
            self.lane = lane
            self.thread = thread

    def forget(self) -> None:
        """Know of no thread; in a forked process, which has no lane yet."""
        self.lane, self.thread, self.entry = None, 0, 0
        self.others.clear()

    @property
    def is_own(self) -> bool:
        """Whether a call is under way that the calling thread began."""
        return bool(self.entry) and self.thread == get_ident()

    def begin(self, site: Any, node: Node, thread: int = 0) -> bool:
        """Enter this node, if all is as usual; whether it is. ``thread`` is this one, if that is known."""
        if not thread:
            thread = get_ident()
        # No call from here to where the slot is ours: a signal handler may record in between, and
        # another thread may begin a call.
        lane = self.lane
        if (
            lane is None
            or self.entry
            or self.others
            or node.__class__ is not Node
            or lane.frames
            or self.thread != thread
        ):
            return False
        word = node._word
        slot = lane.next
        if slot >= lane.limit:
            # Also when the run has ended.
            return False
        lane.next = slot + 1
        stack = lane.stack
        lane.metas[slot] = word | stack[-1] & SLOT_MASK
        self.entry = entry = word | slot
        self.site = site
        stack.append(entry)
        lane.starts[slot] = _now()
        return True

    def end(self, site: Any) -> bool:
        """Leave the node that was entered for this call; whether it was so, and all is as usual."""
        entry = self.entry
        if not entry or self.site is not site or (self.others and self.thread != get_ident()):
            return False
        lane = self.lane
        if lane is None or lane.stack[-1] != entry:
            # Others are open inside of it, or it went on in another segment.
            return False
        self.entry = 0
        lane.stack.pop()
        lane.ends[entry & SLOT_MASK] = _now()
        if self.timer is not None:
            self.timer.stop()
            self.timer = None
        return True

    def drop(self, site: Any) -> None:
        """That call is left another way, if it is under way here."""
        if self.site is site and self.is_own:
            self.entry = 0


class _End:
    """Goes with the thread that it belongs to, whose number another one may have from then on."""

    __slots__ = ("_quick", "_thread")

    def __init__(self, quick: Quick, thread: int) -> None:
        self._quick = quick
        self._thread = thread

    def __del__(self) -> None:
        known = self._quick
        if known.thread == self._thread:
            known.lane, known.thread, known.entry = None, 0, 0


_here = local_to_thread()
quick = Quick()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=quick.forget)
clock.follow(globals())
