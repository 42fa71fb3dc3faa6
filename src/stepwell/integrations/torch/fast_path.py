"""The fast path for recording a call of a model, an optimizer or the autograd engine.

Each of these is called once per training step, with CPU caches that the step itself has filled. There, every
function call costs a microsecond or more, in Python or in C, and looking up data of a thread or task costs
three. So the state is kept in one object, and the thread is looked up once.

At most one call is open on the fast path: the outermost one of the training thread. Everything else (nested
calls, other threads, nodes with arguments, a full segment) takes the slow path in ``recording``, whose
``fall_back`` first converts the call that is open here.
"""

from __future__ import annotations

import os
from threading import get_ident
from threading import local as local_to_thread
from time import perf_counter_ns as _now
from typing import TYPE_CHECKING, Any

from stepwell._core import clock
from stepwell.annotations.node import Node
from stepwell.journal.format import SLOT_MASK
from stepwell.journal.lane import Lane
from stepwell.journal.metrics import context
from stepwell.journal.state import local

if TYPE_CHECKING:
    from stepwell.integrations.torch.device_time import Timer


class FastPath:
    """The call that is open on the fast path.

    Attributes:
        thread: ident of the training thread, 0 while unknown.
        lane: the lane of that thread.
        slow_calls: open calls on the slow path, of any thread.
        entry: the entry of the call in the lane's stack, 0 without a call.
        site: the caller of ``begin``.
        timer: measures the time of the call on a device.
    """

    __slots__ = ("entry", "lane", "site", "slow_calls", "thread", "timer")

    def __init__(self) -> None:
        self.thread = 0
        self.lane: Lane | None = None
        self.slow_calls: list[Any] = []
        self.entry = 0
        self.site: Any = None
        self.timer: Timer | None = None

    def adopt_thread(self) -> None:
        """Make the calling thread the training thread, unless another one is in a call."""
        lane: Lane | None = getattr(local, "lane", None)
        thread = 0 if lane is None else get_ident()
        if thread and not hasattr(_here, "end"):
            _here.end = _ThreadEnd(self, thread)
        # No function call from here on: another thread could run in between and do the same.
        if not self.entry and context.step is not None:
            self.lane = lane
            self.thread = thread

    def forget(self) -> None:
        """Reset in a forked process, which has no lane yet."""
        self.lane, self.thread, self.entry = None, 0, 0
        self.slow_calls.clear()

    @property
    def is_own(self) -> bool:
        """Whether the calling thread has a call open on the fast path."""
        return bool(self.entry) and self.thread == get_ident()

    def begin(self, site: Any, node: Node, thread: int = 0) -> bool:
        """Enter a node and return True, or return False if the slow path is needed.

        ``thread``: the ident of the calling thread, if the caller has it.
        """
        if not thread:
            thread = get_ident()
        # No function call until the slot is reserved: a signal handler may record in between, and
        # another thread may begin a call.
        lane = self.lane
        if (
            lane is None
            or self.entry
            or self.slow_calls
            or node.__class__ is not Node
            or lane.frames
            or self.thread != thread
        ):
            return False
        word = node.name_word
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
        """Leave the node that ``begin`` entered for this site. Return False if the slow path is needed."""
        entry = self.entry
        if not entry or self.site is not site or (self.slow_calls and self.thread != get_ident()):
            return False
        lane = self.lane
        if lane is None or lane.stack[-1] != entry:
            # Spans inside it are still open, or it continues in another segment.
            return False
        self.entry = 0
        lane.stack.pop()
        lane.ends[entry & SLOT_MASK] = _now()
        if self.timer is not None:
            self.timer.stop()
            self.timer = None
        return True

    def drop(self, site: Any) -> None:
        """Forget the call of this site: the slow path leaves it."""
        if self.site is site and self.is_own:
            self.entry = 0


class _ThreadEnd:
    """Resets the fast path when its thread ends: a later thread may get the same ident."""

    __slots__ = ("_path", "_thread")

    def __init__(self, fast_path: FastPath, thread: int) -> None:
        self._path = fast_path
        self._thread = thread

    def __del__(self) -> None:
        path = self._path
        if path.thread == self._thread:
            path.lane, path.thread, path.entry = None, 0, 0


_here = local_to_thread()
fast_path = FastPath()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=fast_path.forget)
clock.follow(globals())
