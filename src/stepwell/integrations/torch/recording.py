"""Enter and leave nodes from hooks and patched functions, without ever raising into training.

This is the slow path: it works for nested calls, any thread and interrupted calls. ``fast_path`` covers the
usual case. Activation checkpointing (``torch.utils.checkpoint``), which repeats forward passes in backward,
is recognised at the end of this file.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import PurePath
from sys import exc_info as _exc_info
from types import FrameType
from typing import Any

import torch

from stepwell._core import clock
from stepwell._core.errors import report
from stepwell.annotations.node import Node
from stepwell.diagnostics.hooks import CALLING, calls_around
from stepwell.integrations.torch import instrumentation
from stepwell.integrations.torch.device_time import Timer
from stepwell.integrations.torch.fast_path import fast_path
from stepwell.journal.format import ABANDONED
from stepwell.journal.metrics import context
from stepwell.journal.span import NamedSpan
from stepwell.journal.state import local, state

WHERE = "torch annotations"


class _Thread(threading.local):
    """The open calls of this thread."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.inside: set[str] = set()
        self.end = _CallsEnd(self.calls)


class _CallsEnd:
    """Removes the calls of a thread that ends inside them."""

    __slots__ = ("_calls",)

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls

    def __del__(self) -> None:
        for call in self._calls:
            _is_over(call)


here = _Thread()


def enter(node: Node, args: Mapping[str, Any] | None = None) -> bool:
    """Enter a node, with these arguments. Return whether ``leave`` must follow."""
    if not state.enabled:
        return False
    try:
        if context.step is None:
            instrumentation.begin_steps()
        if not node.is_enabled:
            return False
        if args:
            node(args=args).__enter__()
        else:
            node.__enter__()
    except Exception as error:
        report(WHERE, error)
        return False
    return True


def leave(node: Node, error: BaseException | None = None) -> None:
    """Leave a node that was entered, even if it has been disabled since."""
    try:
        NamedSpan.__exit__(node, None if error is None else type(error), error, None)
    except Exception as problem:
        report(WHERE, problem)


def record(
    node: Node,
    node_args: Mapping[str, Any] | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a function inside a node that has the arguments ``node_args``. Return its result."""
    entered = enter(node, node_args)
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        if entered:
            leave(node, error)
        raise
    if entered:
        leave(node)
    return result


def record_outermost(
    kind: str,
    node: Node,
    node_args: Mapping[str, Any] | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Like ``record``, but a call inside another one of this kind is not recorded."""
    inside = here.inside
    if kind in inside:
        return function(*args, **kwargs)
    inside.add(kind)
    try:
        return record(node, node_args, function, args, kwargs)
    finally:
        inside.discard(kind)


class Site:
    """One annotated object: the node, kind and owner that all its calls share."""

    __slots__ = ("kind", "node", "owner", "spare")

    def __init__(self, kind: str, node: Node, owner: Any) -> None:
        self.kind = kind
        self.node = node
        self.owner = weakref.ref(owner)
        # The last ended call, reused for the next one.
        self.spare: Call | None = None


class Call:
    """An open call of an annotated object, between the two hooks."""

    __slots__ = ("entered", "handled", "site", "timer")

    def __init__(self, site: Site) -> None:
        self.site = site
        self.entered = False
        self.timer: Timer | None = None
        self.handled = 0

    def abandon(self) -> None:
        """Close a call whose end is unknown: after an interrupt no hook is called."""
        lane = getattr(local, "lane", None)
        if self.entered and lane is not None:
            lane.leave(self.site.node.name_word, clock.now() | ABANDONED)


def begin_call(site: Site, device: bool) -> bool:
    """Begin a call, in the hook before it. Return whether its node was entered.

    A call inside another one of the same kind is not entered.
    """
    fall_back()
    calls = here.calls
    if calls:
        abandon_interrupted(site.owner())
    entered = not any(call.site.kind == site.kind for call in calls) and enter(site.node)
    call, site.spare = site.spare, None
    if call is None:
        call = Call(site)
    call.entered = entered
    # The address only: a reference would keep the objects in the frames of the exception alive.
    call.handled = id(_exc_info()[1])
    calls.append(call)
    fast_path.slow_calls.append(call)
    if device and entered:
        call.timer = Timer.start(site.kind)
    return entered


def end_call(site: Site) -> bool:
    """End a call, in the hook after it. Return False if the hook before it was not called.

    An exception that passes through the caller at this moment is recorded with the call.
    """
    fall_back()
    calls = here.calls
    call = calls.pop() if calls and calls[-1].site is site else _take(site)
    if call is None:
        return False
    _is_over(call)
    if call.entered:
        if call.timer is not None:
            call.timer.stop()
            call.timer = None
        error = _exc_info()[1]
        if error is None or id(error) == call.handled or is_enough(error):
            NamedSpan.__exit__(site.node, None, None, None)
        else:
            leave(site.node, error)
    site.spare = call
    if not calls:
        fast_path.adopt_thread()
    return True


def fall_back() -> None:
    """Convert the open fast-path call of this thread into a slow-path one."""
    site = fast_path.site
    # Fetches and backward passes are functions, not pairs of hooks: they end by themselves.
    if not isinstance(site, Site) or not fast_path.is_own:
        return
    call = Call(site)
    call.entered = True
    error = _exc_info()[1]
    call.handled = 0 if error is None or _passes_through_call(error) else id(error)
    call.timer, fast_path.timer = fast_path.timer, None
    fast_path.entry = 0
    here.calls.append(call)
    fast_path.slow_calls.append(call)


def _passes_through_call(error: BaseException) -> bool:
    """Return whether an exception was caught by the code that calls a model, not farther out."""
    trace = error.__traceback__
    return trace is not None and trace.tb_frame.f_code.co_filename in CALLING


def _take(site: Site) -> Call | None:
    """Remove and return the innermost call of this object. Calls inside it were interrupted."""
    calls = here.calls
    for i in range(len(calls) - 1, -1, -1):
        call = calls[i]
        if call.site is site:
            for lost in reversed(calls[i + 1 :]):
                _is_over(lost)
                lost.abandon()
            del calls[i:]
            return call
    return None


def abandon_interrupted(begun: Any = None) -> None:
    """Abandon calls that were ended without a hook, by an interrupt or an exception of an optimizer.

    ``begun``: the owner of a call that has begun but is not on the list yet.
    """
    fall_back()
    calls = here.calls
    if not calls:
        return
    running = _running()
    running[id(begun)] -= 1
    while calls and _count(calls, calls[-1].site.owner()) > running[id(calls[-1].site.owner())]:
        call = calls.pop()
        _is_over(call)
        call.abandon()


def _count(calls: list[Call], owner: Any) -> int:
    return sum(call.site.owner() is owner for call in calls)


def _is_over(call: Call) -> None:
    try:
        fast_path.slow_calls.remove(call)
    except ValueError:
        # In a process that was forked inside the call, the list is empty.
        pass


def is_running(owner: Any) -> bool:
    """Return whether this thread is in a call of this model or optimizer."""
    return _running()[id(owner)] > 0


def _running() -> Counter[int]:
    """Count the open calls of models and optimizers in this thread, by the address of the owner."""
    frames: Counter[tuple[int, str]] = Counter()
    for call, _ in calls_around(sys._getframe(1)):
        frames[id(call.f_locals.get("self")), call.f_code.co_name] += 1
    # One call usually passes through one frame of each function.
    calls: Counter[int] = Counter()
    for (address, _), count in frames.items():
        calls[address] = max(calls[address], count)
    return calls


# Activation checkpointing


NO_PASS = -1
_pass: Any = getattr(torch._C, "_current_graph_task_id", lambda: NO_PASS)
FILE = str(PurePath(torch.__file__).with_name("utils") / "checkpoint.py")
FUNCTION = "forward"
ENOUGH = "_StopRecomputationError"
NEAR = 12
"""Largest distance, in stack frames, from a checkpointed model to the function that calls it."""


def is_recomputing() -> bool:
    """Return whether this thread is in a backward pass, where calls of a model only recompute it."""
    return bool(_pass() != NO_PASS)


def is_checkpointed() -> bool:
    """Return whether gradients are off only because the pass is repeated with them in backward."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name == FUNCTION and frame.f_code.co_filename == FILE:
            return True
        frame = frame.f_back
    return False


def is_enough(error: BaseException) -> bool:
    """Return whether this exception only ends a recomputation that needs no more results."""
    return type(error).__name__ == ENOUGH
