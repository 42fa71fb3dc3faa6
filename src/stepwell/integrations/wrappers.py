"""Wrappers: record methods of single objects, without changing their classes.

Also the standard spans that several trainers record: parts of the job, and checkpoint saves.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from stepwell._core.errors import report
from stepwell.journal.span import NamedSpan
from stepwell.telemetry.span_handle import NO_SPAN, Span, find_open
from stepwell.training import calls
from stepwell.training.calls import current
from stepwell.training.checkpoints import SPANS
from stepwell.training.job import PHASES
from stepwell.training.standard_spans import WORDS
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

Around = Callable[..., Any]
"""Called in place of a method, with that method and its arguments."""

LOADING = NamedSpan(Name.DATA_LOADING.value)
FORWARD = NamedSpan(Name.MODEL_FORWARD.value)
BACKWARD = NamedSpan(Name.MODEL_BACKWARD.value)
UPDATE = NamedSpan(Name.OPTIMIZER_UPDATE.value)
LOADING_TIME = PHASES[Name.DATA_LOADING]
FORWARD_TIME = PHASES[Name.MODEL_FORWARD]
BACKWARD_TIME = PHASES[Name.MODEL_BACKWARD]


@contextmanager
def recorded_span(name: Name, **attributes: Any) -> Iterator[Span]:
    """Record a part of the job as a standard span."""
    span = calls.start(name)
    if attributes and span is not NO_SPAN:
        span.add_attributes(attributes)
    try:
        yield span
    except BaseException as error:
        calls.end(name, None, error)
        raise
    if span.active:
        calls.end(name)


def standard_span(name: Name, **attributes: Any) -> AbstractContextManager[object]:
    """Record a part of the job as a standard span, unless the user does so already."""
    if current.job is None or find_open(WORDS[name]) is not None:
        return nullcontext()
    return recorded_span(name, **attributes)


class Wrapped:
    """Replaces a method of one object; a copy of the object has its own."""

    def __init__(self, original: Any, around: Around) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._around(self._original, *args, **kwargs)


class Wrappings:
    """A set of replaced methods. ``remove()`` restores all of them."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, owner: Any, name: str, around: Around) -> None:
        """Call ``around`` in place of a method. Missing or wrapped methods are left as they are."""
        self.replace(owner, name, lambda original: Wrapped(original, around))

    def replace(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace a method by ``make(method)``. Missing or wrapped methods are left as they are."""
        original = getattr(owner, name, None)
        if not callable(original) or isinstance(original, Wrapped):
            return
        replacement = functools.wraps(original)(make(original))
        self._replaced.append((owner, name, replacement, vars(owner).get(name)))
        setattr(owner, name, replacement)

    def remove(self) -> None:
        """Restore every method, except those that other code has replaced since."""
        while self._replaced:
            owner, name, replacement, before = self._replaced.pop()
            if vars(owner).get(name) is not replacement:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def is_saving() -> bool:
    """Return whether a checkpoint save is open in this thread."""
    return any(find_open(WORDS[name]) for name in SPANS.values())


def record_save(
    save: Callable[..., Any],
    args: Any,
    kwargs: Any,
    *,
    step: int,
    path: Any,
    is_whole: bool = True,
    strategy: str = "sync",
) -> Any:
    """Call ``save`` and record it as a checkpoint, unless it is part of one. Return its result.

    Args:
        save: the function that saves.
        args: positional arguments of ``save``.
        kwargs: keyword arguments of ``save``.
        step: optimizer steps so far.
        path: file or folder that is written.
        is_whole: whether this process writes the whole checkpoint and the folder contains nothing else; only
            then is its size recorded.
        strategy: ``"async"`` if ``save`` returns a future, whose result is the outcome.
    """
    if current.job is None or is_saving():
        return save(*args, **kwargs)
    span = calls.start_save(step, None, path if is_whole else None, strategy)
    if span is NO_SPAN:
        return save(*args, **kwargs)
    if path is not None:
        span.add_attribute("checkpoint_path", str(path))
    try:
        result = save(*args, **kwargs)
    except BaseException as error:
        calls.conclude_save(error)
        raise
    calls.conclude_save(None)
    if strategy == "async":
        try:
            settle_when_done(as_futures(result), span)
        except Exception as error:
            report("checkpoint", error)
    return result


def as_futures(value: Any) -> list[Any]:
    """Return the future of a background save in a list, which is empty for any other object."""
    # The result of async_save if staging is asynchronous too.
    whole = getattr(value, "upload_completion", None)
    value = value if whole is None else whole
    is_future = callable(getattr(value, "add_done_callback", None)) and callable(
        getattr(value, "exception", None)
    )
    return [value] if is_future else []


def settle_when_done(futures: list[Any], span: Span, path: Any = None) -> None:
    """Record the outcome of a save when all of its futures are done, or the first one has failed."""
    unique = list({id(future): future for future in futures}.values())
    waiting = len(unique)
    lock = threading.Lock()

    def done(future: Any) -> None:
        nonlocal waiting
        error = _failure_of(future)
        with lock:
            if waiting <= 0:
                return
            waiting = 0 if error is not None else waiting - 1
            is_over = waiting == 0
        if is_over:
            calls.settle_save(span, error, path)

    for future in unique:
        future.add_done_callback(done)


def _failure_of(future: Any) -> BaseException | None:
    try:
        error = future.exception()
        return error if error is None or isinstance(error, BaseException) else None
    except BaseException as error:
        # The future was cancelled.
        return error
