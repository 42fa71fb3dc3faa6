"""Batches: iterators over an annotated loader record each ``next()``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from threading import get_ident
from typing import Any

from stepwell._core.errors import StepwellError, report
from stepwell.annotations.tree import ai
from stepwell.integrations.torch.fast_path import fast_path
from stepwell.integrations.torch.instrumentation import Instrumentation, InstrumentedObjects
from stepwell.integrations.torch.observer import TrainingObserver, active
from stepwell.integrations.torch.patches import Patch, Patches
from stepwell.integrations.torch.recording import WHERE, abandon_interrupted, enter, leave
from stepwell.journal.span import withdraw
from stepwell.journal.state import state

FETCH = ai.dataloader.fetch
FETCH_KIND = "fetch"
START = ai.dataloader
LOADERS = InstrumentedObjects()
_classes: dict[type, Patches] = {}
"""The patches of each class that has an ``__iter__`` of its own."""


def annotate_loader(loader: Any) -> Callable[[], None]:
    """Record the batches of this loader. Return a function that stops it."""
    patches = _patches_of(loader)
    return LOADERS.add(loader, lambda _: _installed(patches))


def _installed(patches: Patches) -> Callable[[Any], None]:
    remove = patches.install()
    return lambda _: remove()


def can_be_followed(loader: Any) -> bool:
    """Return whether the class of this loader can be patched to record its batches."""
    return _owner_of(loader) is not None


def _owner_of(loader: Any) -> type | None:
    """Return the class that defines ``__iter__`` of this loader, None if it cannot be patched."""
    for owner in type(loader).__mro__:
        if "__iter__" in vars(owner):
            # Bit 9 of the flags is set for classes written in Python.
            can_be_replaced = owner.__flags__ & 1 << 9 and _can_be_marked(loader)
            return owner if can_be_replaced else None
    return None


def _patches_of(loader: Any) -> Patches:
    """Return the patches of the class that defines ``__iter__`` of this loader."""
    owner = _owner_of(loader)
    if owner is not None:
        return _classes.setdefault(owner, Patches(lambda: [Patch(owner, "__iter__", _around)]))
    raise StepwellError(
        f"annotate(loader=…) cannot record a {type(loader).__name__}. "
        "Write `for batch in ai.dataloader.fetch.iter(loader)` instead."
    )


def _can_be_marked(loader: Any) -> bool:
    try:
        weakref.ref(loader)
    except TypeError:
        return False
    return True


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __iter__(self: Any) -> Any:
        mark = LOADERS.find(self)
        observer = active.observer
        is_evaluated = False
        if mark is None and observer is not None and state.enabled:
            # Must come before its workers are started.
            is_evaluated = observer.other_loader_begins()
        # Worker processes start here, which may take seconds.
        entered = mark is not None and state.enabled and _has_workers(self) and enter(START)
        try:
            items = original(self)
        finally:
            if entered:
                leave(START)
        # A subclass may have called __iter__ of its base class, which is patched as well.
        if isinstance(items, RecordedIterator):
            return items
        if mark is None:
            return EvaluationIterator(items) if is_evaluated else items
        if observer is not None and observer.follows(self):
            return UndecidedIterator(self, items, mark)
        return RecordedIterator(self, items, mark)

    return __iter__


def _has_workers(loader: Any) -> bool:
    """Return whether this loader starts worker processes when it is iterated over."""
    return bool(getattr(loader, "num_workers", 0))


def _keeps_workers(loader: Any) -> bool:
    """Return whether the worker processes keep running after an epoch."""
    return bool(getattr(loader, "persistent_workers", False))


class EvaluationIterator:
    """An iterator of batches that are not trained on. All other attributes are those of the original."""

    __slots__ = ("__weakref__", "_items", "_next")

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self._next = items.__next__

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._next()
        finally:
            observer = active.observer
            if observer is not None:
                observer.evaluation_continues()

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name in RecordedIterator.__slots__ or name in EvaluationIterator.__slots__:
            raise AttributeError(name)
        return getattr(self._items, name)


class RecordedIterator(EvaluationIterator):
    """An iterator that records each batch.

    Attributes:
        epoch: the epoch of its batches, if they are trained on.
        inspected_in: the iteration in which one of its batches was last inspected, 0 for none.
    """

    __slots__ = ("_loader", "_mark", "_observer", "epoch", "inspected_in")

    def __init__(self, loader: Any, items: Iterator[Any], mark: Instrumentation) -> None:
        super().__init__(items)
        self._mark = mark
        # No cycle: a loader with persistent workers keeps its own iterator, not this object.
        self._loader = loader
        self._observer: TrainingObserver | None = None
        self.epoch: int | None = None
        self.inspected_in: int | None = None

    @property
    def is_followed(self) -> bool:
        """Whether its batches are trained on and it is not exhausted."""
        return self._observer is not None

    def stand_down(self) -> None:
        """Stop being the iterator that is trained on, until its next batch decides again."""
        if self._observer is not None:
            self._observer = None
            self.__class__ = UndecidedIterator

    def __next__(self) -> Any:
        if not state.enabled or not (self._mark.users or self._loader in LOADERS):
            return self._next()
        observer = self._observer
        thread = get_ident()
        if observer is not None:
            observer.batch_requested(thread)
        if fast_path.entry or fast_path.slow_calls:
            abandon_interrupted()
        is_quick = fast_path.begin(FETCH_KIND, FETCH, thread)
        entered = is_quick or _enter(observer)
        try:
            item = self._next()
        except StopIteration:
            fast_path.drop(FETCH_KIND)
            if entered and _has_workers(self._loader) and not _keeps_workers(self._loader):
                # The worker processes have exited here, which takes as long as any exit of Python.
                leave(FETCH)
            elif entered:
                try:
                    withdraw(FETCH)
                except Exception as error:
                    report(WHERE, error)
            if observer is not None:
                self._observer = None
                observer.epoch_ends()
            raise
        except BaseException as error:
            fast_path.drop(FETCH_KIND)
            if entered:
                leave(FETCH, error)
            raise
        # The call that is open on the fast path may belong to another thread.
        if entered and not (is_quick and fast_path.end(FETCH_KIND)):
            fast_path.drop(FETCH_KIND)
            leave(FETCH)
        if observer is not None:
            observer.batch_ready(item, thread)
        return item

    def __del__(self) -> None:
        try:
            if self._observer is not None:
                # ``_num_yielded`` is an attribute of a DataLoader's iterator.
                self._observer.epoch_is_left(getattr(self._items, "_num_yielded", None))
        except Exception:
            # __init__ failed, or the interpreter shuts down.
            pass


class UndecidedIterator(RecordedIterator):
    """An iterator that may not be the one that is trained on: it asks the observer before each batch.

    Once it is trained on, it changes its class to ``RecordedIterator``, which asks no more.
    """

    __slots__ = ()

    def __next__(self) -> Any:
        observer = active.observer
        if observer is not None and state.enabled and observer.follows(self._loader):
            if observer.is_led_by(self):
                self._observer = observer
                self.__class__ = RecordedIterator  # type: ignore[assignment]
            elif observer.is_evaluating():
                return EvaluationIterator.__next__(self)
        return RecordedIterator.__next__(self)


def _enter(observer: TrainingObserver | None) -> bool:
    try:
        if observer is not None:
            observer.is_in_another_task()
    except Exception as error:
        report(WHERE, error)
    return enter(FETCH)
