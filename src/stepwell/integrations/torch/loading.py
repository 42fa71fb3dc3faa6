"""Batches: what goes through an annotated loader has each ``next()`` recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

from stepwell.annotations.tree import ai
from stepwell.integrations.torch.following import Follower, following
from stepwell.integrations.torch.marks import Mark, Marks
from stepwell.integrations.torch.patches import Patch, Patches, looks_like
from stepwell.integrations.torch.quick import quick
from stepwell.integrations.torch.recording import WHERE, drop_interrupted, enter, leave
from stepwell.journal.errors import StepwellError, report
from stepwell.journal.span import withdraw
from stepwell.journal.state import state

FETCH = ai.dataloader.fetch
FETCH_KIND = "fetch"
START = ai.dataloader
LOADERS = Marks()
_classes: dict[type, Patches] = {}
"""The patches of each class that has an ``__iter__`` of its own."""


def annotate_loader(loader: Any) -> Callable[[], None]:
    """Record the batches of this loader; what is returned ends that."""
    patches = _patches_of(loader)
    return LOADERS.add(loader, lambda _: _installed(patches))


def _installed(patches: Patches) -> Callable[[Any], None]:
    remove = patches.install()
    return lambda _: remove()


def can_be_followed(loader: Any) -> bool:
    """Whether the batches of this loader can be recorded where it is."""
    return _owner_of(loader) is not None


def _owner_of(loader: Any) -> type | None:
    """The class that says how this loader is gone through, if that can be replaced."""
    for owner in type(loader).__mro__:
        if "__iter__" in vars(owner):
            # Bit 9 of the flags tells classes written in Python from built-in ones.
            can_be_replaced = owner.__flags__ & 1 << 9 and _can_be_marked(loader)
            return owner if can_be_replaced else None
    return None


def _patches_of(loader: Any) -> Patches:
    """The patch of the class that says how this loader is gone through."""
    owner = _owner_of(loader)
    if owner is not None:
        return _classes.setdefault(owner, Patches(_finder(owner)))
    raise StepwellError(
        f"annotate(loader=…) is given {type(loader).__name__}, which cannot be followed: "
        "write `for batch in ai.dataloader.fetch.iter(loader)`"
    )


def _can_be_marked(loader: Any) -> bool:
    try:
        weakref.ref(loader)
    except TypeError:
        return False
    return True


def _finder(owner: type) -> Callable[[Patches], Iterator[Patch]]:
    def find(patches: Patches) -> Iterator[Patch]:
        yield Patch(owner, "__iter__", _around)

    return find


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    @looks_like(original)
    def __iter__(self: Any) -> Any:
        mark = LOADERS.find(self)
        follower = following.follower
        is_evaluated = False
        if mark is None and follower is not None and state.enabled:
            # Before its workers are started.
            is_evaluated = follower.other_loader_begins()
        # Workers start here, which may take seconds.
        entered = mark is not None and state.enabled and _has_workers(self) and enter(START)
        try:
            items = original(self)
        finally:
            if entered:
                leave(START)
        # A subclass may have asked its base class, whose __iter__ is replaced as well.
        if isinstance(items, Batches):
            return items
        if mark is None:
            return Items(items) if is_evaluated else items
        if follower is not None and follower.follows(self):
            return Candidate(self, items, mark)
        return Batches(self, items, mark)

    return __iter__


def _has_workers(loader: Any) -> bool:
    """Whether this loader starts worker processes when it is iterated over."""
    return bool(getattr(loader, "num_workers", 0))


def _keeps_workers(loader: Any) -> bool:
    """Whether its worker processes keep running after an epoch."""
    return bool(getattr(loader, "persistent_workers", False))


class Items:
    """An iterator of batches that are not trained on; in all else it is the iterator below."""

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
            follower = following.follower
            if follower is not None:
                follower.evaluation_goes_on()

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name in Batches.__slots__ or name in Items.__slots__:
            raise AttributeError(name)
        return getattr(self._items, name)


class Batches(Items):
    """An iterator with each batch recorded.

    Attributes:
        _epoch: the epoch that its batches are of, where they are trained on.
        _beside: the iteration in which a batch of it was looked at last, 0 for none.
    """

    __slots__ = ("_beside", "_epoch", "_follower", "_loader", "_mark")

    def __init__(self, loader: Any, items: Iterator[Any], mark: Mark) -> None:
        super().__init__(items)
        self._mark = mark
        # A loader with persistent workers keeps its iterator, not this one: no cycle.
        self._loader = loader
        self._follower: Follower | None = None
        self._epoch: int | None = None
        self._beside: int | None = None

    @property
    def _is_followed(self) -> bool:
        """Whether its batches are those that are trained on, and there may be more."""
        return self._follower is not None

    def _stand_down(self) -> None:
        """Others are trained on from now on, unless this one is gone on with."""
        if self._follower is not None:
            self._follower = None
            self.__class__ = Candidate

    def __next__(self) -> Any:
        if not state.enabled or not (self._mark.users or self._loader in LOADERS):
            return self._next()
        follower = self._follower
        thread = get_ident()
        if follower is not None:
            follower.batch_is_asked_for(thread)
        if quick.entry or quick.others:
            drop_interrupted()
        is_quick = quick.begin(FETCH_KIND, FETCH, thread)
        entered = is_quick or _enter(follower)
        try:
            item = self._next()
        except StopIteration:
            quick.drop(FETCH_KIND)
            if entered and _has_workers(self._loader) and not _keeps_workers(self._loader):
                # The workers have exited here, which takes as long as any exit of Python.
                leave(FETCH)
            elif entered:
                try:
                    withdraw(FETCH)
                except Exception as error:
                    report(WHERE, error)
            if follower is not None:
                self._follower = None
                follower.epoch_ends()
            raise
        except BaseException as error:
            quick.drop(FETCH_KIND)
            if entered:
                leave(FETCH, error)
            raise
        # The one that is under way there may be of another thread.
        if entered and not (is_quick and quick.end(FETCH_KIND)):
            quick.drop(FETCH_KIND)
            leave(FETCH)
        if follower is not None:
            follower.batch_is_there(item, thread)
        return item

    def __del__(self) -> None:
        try:
            if self._follower is not None:
                # Of a DataLoader's iterator.
                self._follower.epoch_is_left(getattr(self._items, "_num_yielded", None))
        except Exception:
            # Never begun, or the interpreter ends.
            pass


class Candidate(Batches):
    """One that may be gone through beside the one that is trained on, so that it asks before each batch.

    When it is the one that is trained on it becomes one like any other, which asks nobody.
    """

    __slots__ = ()

    def __next__(self) -> Any:
        follower = following.follower
        if follower is not None and state.enabled and follower.follows(self._loader):
            if follower.is_led_by(self):
                self._follower = follower
                self.__class__ = Batches  # type: ignore[assignment]
            elif follower.is_evaluating():
                return Items.__next__(self)
        return Batches.__next__(self)


def _enter(follower: Follower | None) -> bool:
    try:
        if follower is not None:
            follower.is_in_another_task()
    except Exception as error:
        report(WHERE, error)
    return enter(FETCH)
