"""Methods of single objects, recorded from outside. Their classes are left alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from time import perf_counter_ns as _now
from typing import Any

from stepwell.journal import clock
from stepwell.journal.span import Span, withdraw
from stepwell.training.current import current
from stepwell.training.job import PHASES
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
        self._wrapped: list[tuple[Any, str, Wrapped, Any]] = []

    def wrap(self, owner: Any, name: str, around: Around) -> None:
        """Have ``around`` called in place of a method. What is not there, or is wrapped, stays."""
        original = getattr(owner, name, None)
        if not callable(original) or isinstance(original, Wrapped):
            return
        made = Wrapped(original, around)
        self._wrapped.append((owner, name, made, vars(owner).get(name)))
        setattr(owner, name, made)

    def remove(self) -> None:
        """Leave every object as it was before."""
        while self._wrapped:
            owner, name, made, before = self._wrapped.pop()
            if vars(owner).get(name) is not made:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def forward(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a call as forward."""
    return _timed(FORWARD, FORWARD_TIME, original, args, kwargs)


def backward(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a call as backward."""
    return _timed(BACKWARD, BACKWARD_TIME, original, args, kwargs)


def _timed(span: Span, attribute: str, original: Any, args: Any, kwargs: Any) -> Any:
    job = current.job
    if job is None:
        return original(*args, **kwargs)
    start = _now()
    with span:
        result = original(*args, **kwargs)
    job.count_time(attribute, _now() - start)
    return result


class Batches:
    """An iterator with the fetch of each batch recorded."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        job = current.job
        if job is None:
            return next(self._items)
        start = _now()
        LOADING.__enter__()
        try:
            item = next(self._items)
        except StopIteration:
            # There was no further batch.
            withdraw(LOADING)
            raise
        except BaseException as error:
            LOADING.__exit__(type(error), error, None)
            raise
        LOADING.__exit__(None, None, None)
        job.count_time(LOADING_TIME, _now() - start)
        return item


clock.follow(globals())
