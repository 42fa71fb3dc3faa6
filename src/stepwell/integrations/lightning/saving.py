"""Checkpoint saves: what ``trainer.save_checkpoint`` does, and when the file is really complete.

A save that goes on in the background has succeeded when its writer returns, or when the futures that it left
behind are done.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stepwell.journal.errors import report
from stepwell.telemetry.live import NO_SPAN, Span, find_open
from stepwell.training import calls
from stepwell.training.checkpoints import SPANS
from stepwell.training.current import current_job
from stepwell.training.standard_spans import WORDS

WHERE = "lightning checkpoint"
REMEMBERED = 1000
"""So many steps of saves are known as recorded, for whoever tells of them again."""


@dataclass
class Pending:
    """A save that was handed to a writer in the background."""

    path: Any
    span: Span

    def tell(self, error: BaseException | None) -> None:
        """Say what became of it."""
        calls.settle_save(self.span, error, self.path)


class Saves:
    """The saves that were seen, of all trainers that share a callback."""

    def __init__(self) -> None:
        self._steps: deque[int] = deque(maxlen=REMEMBERED)
        self._background: weakref.WeakSet[Any] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return Saves, ()

    def has_seen(self, step: Any) -> bool:
        """Whether a save of this step was recorded without being told."""
        return step in self._steps

    @property
    def has_seen_any(self) -> bool:
        """Whether any save was recorded without being told."""
        return bool(self._steps)

    def save(self, trainer: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Save as ``original`` does, and record it; unless the user tells of this save."""
        begun = self._begin(trainer, args[0] if args else kwargs.get("filepath"))
        if begun is None:
            return original(*args, **kwargs)
        writers = list(_writers(trainer))
        before = set(map(id, _futures(writers)))
        watched = _watch_writer(writers, begun)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            self._end_failed(begun, watched, error)
            raise
        left = [f for f in _futures([result, *writers]) if id(f) not in before]
        self._end(begun, watched, writers, left)
        return result

    def _begin(self, trainer: Any, path: Any) -> Pending | None:
        try:
            if current_job() is None or any(find_open(WORDS[name]) for name in SPANS.values()):
                return None
            step = int(trainer.global_step)
            place = os.fspath(path) if isinstance(path, os.PathLike) else path
            span = calls.start_save(step, None, path, self._strategy(trainer))
            if span is NO_SPAN:
                return None
            span.add_attribute("checkpoint_path", str(place))
            self._steps.append(step)
            return Pending(path, span)
        except Exception as error:
            report(WHERE, error)
            return None

    def _strategy(self, trainer: Any) -> str | None:
        """How it is going to be saved; None when only the configuration can tell."""
        writers = list(_writers(trainer))
        for writer in writers:
            names = " ".join(cls.__name__ for cls in type(writer).__mro__)
            if writer in self._background or "async" in names.lower():
                return "async"
        known = all(type(writer).__name__ == "TorchCheckpointIO" for writer in writers[1:])
        return "sync" if known else None

    def _end(
        self, begun: Pending, watched: Watch | None, writers: list[Any], left: list[Any]
    ) -> None:
        try:
            if left:
                self._background.update(_hashable(writers[1:]))
                calls.end_save(None, None, begun.span)
                _follow(begun, left)
            elif watched is not None:
                # Its writer tells. Where another rank is the one that writes, nobody does.
                calls.end_save(None, None, begun.span)
            else:
                calls.conclude_save(None)
        except Exception as error:
            report(WHERE, error)

    def _end_failed(self, begun: Pending, watched: Watch | None, error: BaseException) -> None:
        try:
            if watched is not None and watched.is_of_earlier(error):
                # This one was handed over before the failure of another was raised.
                calls.end_save(None, error, begun.span)
                return
            if watched is not None:
                watched.drop(begun)
            calls.conclude_save(error)
        except Exception as problem:
            report(WHERE, problem)


def _writers(trainer: Any) -> Iterator[Any]:
    """The strategy and what writes its checkpoints, the outermost first."""
    strategy = trainer.strategy
    yield strategy
    writer, seen = getattr(strategy, "checkpoint_io", None), []
    while writer is not None and writer not in seen:
        seen.append(writer)
        yield writer
        writer = getattr(writer, "checkpoint_io", None)


def _hashable(writers: Iterable[Any]) -> list[Any]:
    return [writer for writer in writers if type(writer).__hash__ is not None]


# A thread of Lightning's that writes


class Watch:
    """Watches what Lightning's own asynchronous plugin calls in its thread to write a file."""

    _lock = threading.Lock()

    def __init__(self, plugin: Any) -> None:
        self._plugin = weakref.ref(plugin)
        self._writer = writer = plugin.checkpoint_io
        self._waiting: list[Pending] = []
        self._original = original = writer.save_checkpoint

        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            path = args[1] if len(args) > 1 else kwargs.get("path")
            pending = self._take(path)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                if pending is not None:
                    pending.tell(error)
                raise
            if pending is not None:
                pending.tell(None)
            return result

        self._made = save_checkpoint
        save_checkpoint.watch = self  # type: ignore[attr-defined]
        writer.save_checkpoint = save_checkpoint

    def add(self, pending: Pending) -> None:
        """Expect this one to be written."""
        with self._lock:
            self._waiting.append(pending)

    def _take(self, path: Any) -> Pending | None:
        with self._lock:
            found = next((p for p in self._waiting if p.path == path), None)
            if found is not None:
                self._waiting.remove(found)
            if not self._waiting and vars(self._writer).get("save_checkpoint") is self._made:
                # The next save watches again: what is not being written is left as it was.
                del self._writer.save_checkpoint
            return found

    def drop(self, pending: Pending) -> None:
        """It was never handed over."""
        with self._lock:
            if pending in self._waiting:
                self._waiting.remove(pending)

    def is_of_earlier(self, error: BaseException) -> bool:
        """Whether this is what became of an earlier write, raised as soon as there was an occasion."""
        return getattr(self._plugin(), "_error", None) is error


def _watch_writer(writers: list[Any], pending: Pending) -> Watch | None:
    for writer in writers[1:]:
        if any(cls.__name__ == "AsyncCheckpointIO" for cls in type(writer).__mro__):
            try:
                return _watch(writer, pending)
            except Exception as error:
                report(WHERE, error)
    return None


def _watch(plugin: Any, pending: Pending) -> Watch | None:
    writer = getattr(plugin, "checkpoint_io", None)
    if writer is None:
        return None
    watch: Watch | None = getattr(vars(writer).get("save_checkpoint"), "watch", None)
    if watch is None:
        watch = Watch(plugin)
    watch.add(pending)
    return watch


# Futures, as torch.distributed.checkpoint.async_save gives them


def _futures(owners: Iterable[Any]) -> list[Any]:
    """The futures that these are, or keep in an attribute, a list or a dict."""
    found: list[Any] = []
    for owner in owners:
        if owner is None:
            continue
        found += _as_futures(owner)
        for value in list(getattr(owner, "__dict__", {}).values()):
            values: Iterable[Any] = [value]
            if isinstance(value, (list, tuple, set, deque)):
                values = list(value)
            elif isinstance(value, Mapping):
                values = list(value.values())
            for one in values:
                found += _as_futures(one)
    return found


def _as_futures(value: Any) -> list[Any]:
    # What async_save gives when staging is asynchronous too.
    whole = getattr(value, "upload_completion", None)
    value = value if whole is None else whole
    is_future = callable(getattr(value, "add_done_callback", None)) and callable(
        getattr(value, "exception", None)
    )
    return [value] if is_future else []


def _follow(pending: Pending, futures: list[Any]) -> None:
    """Tell of a save when all of its futures are done, or the first has failed."""
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
            pending.tell(error)

    for future in unique:
        future.add_done_callback(done)


def _failure_of(future: Any) -> BaseException | None:
    try:
        error = future.exception()
        return error if error is None or isinstance(error, BaseException) else None
    except BaseException as error:
        # It was cancelled.
        return error
