"""Checkpoint saves: calls of ``trainer.save_checkpoint``, and when their files are complete.

A save in the background has succeeded when its writer returns, or when the futures that it created are done.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stepwell._core.errors import report
from stepwell.integrations.wrappers import Wrappings, as_futures, is_saving, settle_when_done
from stepwell.telemetry.span_handle import NO_SPAN, Span
from stepwell.training import calls
from stepwell.training.calls import current_job

WHERE = "lightning checkpoint"
REMEMBERED = 1000
"""Number of recorded saves that are remembered, in case the user reports them again."""


@dataclass
class PendingSave:
    """A save that was passed to a background writer."""

    path: Any
    span: Span

    def conclude(self, error: BaseException | None) -> None:
        """Record its success, or its failure with this error."""
        calls.settle_save(self.span, error, self.path)


class Saves:
    """The recorded saves of all trainers that share a callback."""

    def __init__(self) -> None:
        self._steps: deque[int] = deque(maxlen=REMEMBERED)
        self._background: weakref.WeakSet[Any] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return Saves, ()

    def has_seen(self, step: Any) -> bool:
        """Return whether a save of this step was recorded automatically."""
        return step in self._steps

    @property
    def has_seen_any(self) -> bool:
        """Whether any save was recorded automatically."""
        return bool(self._steps)

    def save(self, trainer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``original`` and record the save, unless the user records it."""
        begun = self._begin(trainer, args[0] if args else kwargs.get("filepath"))
        if begun is None:
            return original(*args, **kwargs)
        writers = list(_writers(trainer))
        before = set(map(id, _futures(writers)))
        watched = _watch_writers(writers, begun)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            self._end_failed(begun, watched, error)
            raise
        left = [f for f in _futures([result, *writers]) if id(f) not in before]
        self._end(begun, watched, writers, left)
        return result

    def _begin(self, trainer: Any, path: Any) -> PendingSave | None:
        try:
            if current_job() is None or is_saving():
                return None
            step = int(trainer.global_step)
            place = os.fspath(path) if isinstance(path, os.PathLike) else path
            span = calls.start_save(step, None, path, self._strategy(trainer))
            if span is NO_SPAN:
                return None
            span.add_attribute("checkpoint_path", str(place))
            self._steps.append(step)
            return PendingSave(path, span)
        except Exception as error:
            report(WHERE, error)
            return None

    def _strategy(self, trainer: Any) -> str | None:
        """Return ``"sync"`` or ``"async"``; None if it cannot be determined (the configuration decides)."""
        writers = list(_writers(trainer))
        for writer in writers:
            names = " ".join(cls.__name__ for cls in type(writer).__mro__)
            if writer in self._background or "async" in names.lower():
                return "async"
        is_sync = all(type(writer).__name__ == "TorchCheckpointIO" for writer in writers[1:])
        return "sync" if is_sync else None

    def _end(
        self, begun: PendingSave, watched: WriterWatch | None, writers: list[Any], left: list[Any]
    ) -> None:
        try:
            if left:
                self._background.update(
                    writer for writer in writers[1:] if type(writer).__hash__ is not None
                )
                calls.end_save(None, None, begun.span)
                settle_when_done(left, begun.span, begun.path)
            elif watched is not None:
                # Its writer reports the outcome. If another rank writes, the outcome is not recorded here.
                calls.end_save(None, None, begun.span)
            else:
                calls.conclude_save(None)
        except Exception as error:
            report(WHERE, error)

    def _end_failed(
        self, begun: PendingSave, watched: WriterWatch | None, error: BaseException
    ) -> None:
        try:
            if watched is not None and watched.is_of_earlier(error):
                # The error is that of an earlier save; this one was passed on before it was raised.
                calls.end_save(None, error, begun.span)
                return
            if watched is not None:
                watched.drop(begun)
            calls.conclude_save(error)
        except Exception as problem:
            report(WHERE, problem)


def _writers(trainer: Any) -> Iterator[Any]:
    """Yield the strategy and its checkpoint writers, the outermost first."""
    strategy = trainer.strategy
    yield strategy
    writer, seen = getattr(strategy, "checkpoint_io", None), []
    while writer is not None and writer not in seen:
        seen.append(writer)
        yield writer
        writer = getattr(writer, "checkpoint_io", None)


# Lightning's AsyncCheckpointIO


class WriterWatch:
    """Wraps the writer that Lightning's asynchronous plugin calls in its thread."""

    _lock = threading.Lock()

    def __init__(self, plugin: Any) -> None:
        self._plugin = weakref.ref(plugin)
        self._waiting: list[PendingSave] = []
        self._wrappings = Wrappings()
        self._wrappings.wrap(plugin.checkpoint_io, "save_checkpoint", self._save)
        vars(plugin.checkpoint_io)["save_checkpoint"].watch = self

    def _save(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        pending = self._take(args[1] if len(args) > 1 else kwargs.get("path"))
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            if pending is not None:
                pending.conclude(error)
            raise
        if pending is not None:
            pending.conclude(None)
        return result

    def add(self, pending: PendingSave) -> None:
        """Expect a save to be written."""
        with self._lock:
            self._waiting.append(pending)

    def _take(self, path: Any) -> PendingSave | None:
        with self._lock:
            pending = next((p for p in self._waiting if p.path == path), None)
            if pending is not None:
                self._waiting.remove(pending)
            if not self._waiting:
                # Nothing is being written: restore the writer. The next save wraps it again.
                self._wrappings.remove()
            return pending

    def drop(self, pending: PendingSave) -> None:
        """Forget a save that was never passed to the writer."""
        with self._lock:
            if pending in self._waiting:
                self._waiting.remove(pending)

    def is_of_earlier(self, error: BaseException) -> bool:
        """Return whether this is the error of an earlier save, which the plugin raises in the next call."""
        return getattr(self._plugin(), "_error", None) is error


def _watch_writers(writers: list[Any], pending: PendingSave) -> WriterWatch | None:
    for writer in writers[1:]:
        if any(cls.__name__ == "AsyncCheckpointIO" for cls in type(writer).__mro__):
            try:
                return _watch_writer(writer, pending)
            except Exception as error:
                report(WHERE, error)
    return None


def _watch_writer(plugin: Any, pending: PendingSave) -> WriterWatch | None:
    writer = getattr(plugin, "checkpoint_io", None)
    if writer is None:
        return None
    watch: WriterWatch | None = getattr(vars(writer).get("save_checkpoint"), "watch", None)
    if watch is None:
        watch = WriterWatch(plugin)
    watch.add(pending)
    return watch


# Futures, as returned by torch.distributed.checkpoint.async_save


def _futures(owners: Iterable[Any]) -> list[Any]:
    """Return the futures among these objects, and in their attributes (also in lists and dicts)."""
    futures: list[Any] = []
    for owner in owners:
        if owner is None:
            continue
        futures += as_futures(owner)
        for value in list(getattr(owner, "__dict__", {}).values()):
            values: Iterable[Any] = [value]
            if isinstance(value, (list, tuple, set, deque)):
                values = list(value)
            elif isinstance(value, Mapping):
                values = list(value.values())
            for each in values:
                futures += as_futures(each)
    return futures
