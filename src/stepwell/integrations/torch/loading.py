"""Batches: what goes through an annotated loader has each ``next()`` recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from stepwell.annotations.tree import ai
from stepwell.integrations.torch.marks import Marks
from stepwell.integrations.torch.patches import Patch, Patches, looks_like
from stepwell.integrations.torch.recording import WHERE, drop_interrupted, enter, here, leave
from stepwell.journal.errors import StepwellError, report
from stepwell.journal.span import withdraw
from stepwell.journal.state import state

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


def _patches_of(loader: Any) -> Patches:
    """The patch of the class that says how this loader is gone through."""
    for owner in type(loader).__mro__:
        if "__iter__" in vars(owner):
            # Bit 9 of the flags tells classes written in Python from built-in ones.
            if not owner.__flags__ & 1 << 9 or not _can_be_marked(loader):
                break
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
        items = original(self)
        # A subclass may have asked its base class, whose __iter__ is replaced as well.
        if self not in LOADERS or isinstance(items, Batches):
            return items
        return Batches(self, items)

    return __iter__


class Batches:
    """An iterator with each batch recorded; in all else it is the iterator below."""

    __slots__ = ("_items", "_loader")

    def __init__(self, loader: Any, items: Iterator[Any]) -> None:
        self._items = items
        # A loader with persistent workers keeps its iterator, not this one: no cycle.
        self._loader = loader

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if not state.enabled or self._loader not in LOADERS:
            return next(self._items)
        node = ai.dataloader.fetch
        if here.calls:
            drop_interrupted()
        if not enter(node):
            return next(self._items)
        try:
            item = next(self._items)
        except StopIteration:
            try:
                withdraw(node)
            except Exception as error:
                report(WHERE, error)
            raise
        except BaseException as error:
            leave(node, error)
            raise
        leave(node)
        return item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name in ("_items", "_loader"):
            raise AttributeError(name)
        return getattr(self._items, name)
