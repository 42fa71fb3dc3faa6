"""Entering and leaving nodes from hooks and replaced functions, where nothing may go wrong."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from sys import exc_info as _exc_info
from typing import Any

from stepwell.annotations.node import Node
from stepwell.diagnostics.hooks import CALLING, calls_around
from stepwell.integrations.torch import steps
from stepwell.integrations.torch.device_time import Timer
from stepwell.integrations.torch.quick import quick
from stepwell.integrations.torch.recomputing import is_enough
from stepwell.journal import clock
from stepwell.journal.errors import report
from stepwell.journal.format import ABANDONED
from stepwell.journal.metrics import context
from stepwell.journal.span import Span
from stepwell.journal.state import local, state

WHERE = "torch annotations"


class _Thread(threading.local):
    """What this thread is inside of."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.inside: set[str] = set()
        self.end = _End(self.calls)


class _End:
    """Goes with its thread, which may have come to its end inside of calls."""

    __slots__ = ("_calls",)

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls

    def __del__(self) -> None:
        for call in self._calls:
            _is_over(call)


here = _Thread()


def enter(node: Node, about: Mapping[str, Any] | None = None) -> bool:
    """Enter a node; whether that is to be followed by leaving it."""
    if not state.enabled:
        return False
    try:
        if context.step is None:
            steps.begin()
        if not node._is_enabled:
            return False
        if about:
            node(args=about).__enter__()
        else:
            node.__enter__()
    except Exception as error:
        report(WHERE, error)
        return False
    return True


def leave(node: Node, error: BaseException | None = None) -> None:
    """Leave a node that was entered, also if it has been disabled meanwhile."""
    try:
        Span.__exit__(node, None if error is None else type(error), error, None)
    except Exception as problem:
        report(WHERE, problem)


def record(
    node: Node,
    about: Mapping[str, Any] | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a function inside a node."""
    entered = enter(node, about)
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
    what: str,
    node: Node,
    about: Mapping[str, Any] | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """As ``record``, unless this thread is inside such a call already."""
    inside = here.inside
    if what in inside:
        return function(*args, **kwargs)
    inside.add(what)
    try:
        return record(node, about, function, args, kwargs)
    finally:
        inside.discard(what)


class Site:
    """What all calls of one annotated object have in common; made once, for calls are many."""

    __slots__ = ("kind", "node", "owner", "spare")

    def __init__(self, kind: str, node: Node, owner: Any) -> None:
        self.kind = kind
        self.node = node
        self.owner = weakref.ref(owner)
        # The call that ended last, to be used for the next one.
        self.spare: Call | None = None


class Call:
    """A call of an annotated object that is under way, between two hooks."""

    __slots__ = ("entered", "handled", "site", "timer")

    def __init__(self, site: Site) -> None:
        self.site = site
        self.entered = False
        self.timer: Timer | None = None
        self.handled = 0

    def abandon(self) -> None:
        """Close it without knowing when it ended: an interrupt passes no hook."""
        lane = getattr(local, "lane", None)
        if self.entered and lane is not None:
            lane.leave(self.site.node._word, clock.now() | ABANDONED)


def begin_call(site: Site, device: bool) -> bool:
    """In a hook before a call: enter, unless this thread is inside a call of this kind already.

    Returns whether it was entered.
    """
    settle()
    calls = here.calls
    if calls:
        drop_interrupted(site.owner())
    entered = not any(call.site.kind == site.kind for call in calls) and enter(site.node)
    call, site.spare = site.spare, None
    if call is None:
        call = Call(site)
    call.entered = entered
    # Only its address: the exception itself would keep what its frames hold.
    call.handled = id(_exc_info()[1])
    calls.append(call)
    quick.others.append(call)
    if device and entered:
        call.timer = Timer.start(site.kind)
    return entered


def end_call(site: Site) -> bool:
    """In a hook after a call; whether the hook before it had been there.

    It ends with the exception that goes through the caller just now, if there is one.
    """
    settle()
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
            Span.__exit__(site.node, None, None, None)
        else:
            leave(site.node, error)
    site.spare = call
    if not calls:
        quick.learn()
    return True


def settle() -> None:
    """Make of a call that this thread began the quick way one like any other."""
    site = quick.site
    # The functions that fetch and go backward find their own ends.
    if not isinstance(site, Site) or not quick.is_own:
        return
    call = Call(site)
    call.entered = True
    error = _exc_info()[1]
    call.handled = 0 if error is None or _goes_through_a_call(error) else id(error)
    call.timer, quick.timer = quick.timer, None
    quick.entry = 0
    here.calls.append(call)
    quick.others.append(call)


def _goes_through_a_call(error: BaseException) -> bool:
    """Whether it was caught by who called a model, rather than by somebody farther out."""
    trace = error.__traceback__
    return trace is not None and trace.tb_frame.f_code.co_filename in CALLING


def _take(site: Site) -> Call | None:
    """The innermost call of this object; what is still in it was interrupted."""
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


def drop_interrupted(begun: Any = None) -> None:
    """Forget calls that an interrupt, or an optimizer's exception, ended without a hook.

    ``begun`` is whose call is just about to be noted.
    """
    settle()
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
        quick.others.remove(call)
    except ValueError:
        # In a process that was forked meanwhile it is not there.
        pass


def is_running(owner: Any) -> bool:
    """Whether this thread is in a call of this model or optimizer."""
    return _running()[id(owner)] > 0


def _running() -> Counter[int]:
    """How many calls of which models and optimizers this thread is in, by their address."""
    found: Counter[tuple[int, str]] = Counter()
    for call, _ in calls_around(sys._getframe(1)):
        found[id(call.f_locals.get("self")), call.f_code.co_name] += 1
    # Mostly a call goes through one of each.
    most: Counter[int] = Counter()
    for (address, _), count in found.items():
        most[address] = max(most[address], count)
    return most
