"""Methods of single objects, recorded from outside. Their classes are left alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stepwell.journal.span import Span
from stepwell.telemetry.live import NO_SPAN, find_open
from stepwell.training import calls
from stepwell.training.current import current
from stepwell.training.job import PHASES
from stepwell.training.standard_spans import WORDS
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

Around = Callable[..., Any]
"""Called with the method, and with what that is called with."""

LOADING = Span(Name.DATA_LOADING.value)
FORWARD = Span(Name.MODEL_FORWARD.value)
BACKWARD = Span(Name.MODEL_BACKWARD.value)
UPDATE = Span(Name.OPTIMIZER_UPDATE.value)
LOADING_TIME = PHASES[Name.DATA_LOADING]
FORWARD_TIME = PHASES[Name.MODEL_FORWARD]
BACKWARD_TIME = PHASES[Name.MODEL_BACKWARD]


@contextmanager
def standard_span(name: Name, **attributes: Any) -> Iterator[None]:
    """Record a part of the job, unless the user does so already."""
    if current.job is None or find_open(WORDS[name]) is not None:
        yield
        return
    span = calls.start(name)
    if attributes and span is not NO_SPAN:
        span.add_attributes(attributes)
    try:
        yield
    except BaseException as error:
        calls.end(name, None, error)
        raise
    if span.active:
        calls.end(name)


class Wrapped:
    """Stands in for a method of one object; a copy of that object has its own."""

    def __init__(self, original: Any, around: Around) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._around(self._original, *args, **kwargs)


class Wrappings:
    """Methods that were replaced on their objects; ``remove()`` puts all back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, owner: Any, name: str, around: Around) -> None:
        """Have ``around`` called in place of a method. What is not there, or is wrapped, stays."""
        original = getattr(owner, name, None)
        if callable(original) and not isinstance(original, Wrapped):
            self._put(owner, name, Wrapped(original, around))

    def replace(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Put what is made of a method in its place. What is not there stays away."""
        original = getattr(owner, name, None)
        if callable(original):
            self._put(owner, name, functools.wraps(original)(make(original)))

    def _put(self, owner: Any, name: str, made: Any) -> None:
        self._replaced.append((owner, name, made, vars(owner).get(name)))
        setattr(owner, name, made)

    def remove(self) -> None:
        """Leave every object as it was before; what others have replaced since is theirs."""
        while self._replaced:
            owner, name, made, before = self._replaced.pop()
            if vars(owner).get(name) is not made:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
