"""Annotated iterables: a span for fetching each item, and one for the loop's body."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from operator import length_hint
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stepwell._core.values import encode
from stepwell.journal.span import enter_with, leave, withdraw
from stepwell.journal.state import state

if TYPE_CHECKING:
    from typing import TypeAlias

    from stepwell.annotations.node import Node, UseInLoop

    Part: TypeAlias = Node | UseInLoop | None

T = TypeVar("T")


def annotated(
    iterable: Iterable[T], around: Part, inside: Part, counter: str = "count"
) -> Iterable[T]:
    """Return an iterable that records fetching an item as ``around`` and the loop's body as ``inside``.

    Both spans have the number of the item, from 1, as the argument ``counter``.
    """
    kind: type[AnnotatedIterable[T]] = AnnotatedIterable
    sized = hasattr(iterable, "__len__")
    if hasattr(iterable, "__next__"):
        kind = SizedIterator if sized else AnnotatedIterator
    elif sized:
        kind = SizedIterable
    return kind(iterable, around, inside, counter)


class AnnotatedIterable(Generic[T]):
    """An iterable that records its items as they are fetched. It can be iterated over again."""

    def __init__(self, iterable: Iterable[T], around: Part, inside: Part, counter: str) -> None:
        self._iterable = iterable
        self._around = around
        self._inside = inside
        self._counter = counter

    def __iter__(self) -> Iterator[T]:
        parts = (self._around, self._inside)
        if state.enabled and any(part is not None and part.is_enabled for part in parts):
            return _items(self._iterable, *parts, self._counter)
        # No overhead in a loop that is not recorded.
        return iter(self._iterable)

    def __getattr__(self, name: str) -> Any:
        # All other attributes are those of the iterable, such as `loader.dataset`.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._iterable, name)


class SizedIterable(AnnotatedIterable[T]):
    """An annotated iterable with a length."""

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        return self._iterable[key]  # type: ignore[index]

    def __contains__(self, item: object) -> bool:
        return item in self._iterable  # type: ignore[operator]


class AnnotatedIterator(AnnotatedIterable[T]):
    """An annotated iterator, which also supports ``next()``."""

    _begun: Iterator[T] | None = None

    def __iter__(self) -> Iterator[T]:
        return super().__iter__() if self._begun is None else self._begun

    def __next__(self) -> T:
        if self._begun is None:
            self._begun = super().__iter__()
        return next(self._begun)

    def __length_hint__(self) -> int:
        return length_hint(self._iterable)


class SizedIterator(AnnotatedIterator[T], SizedIterable[T]):
    """An annotated iterator with a length."""


def _items(
    iterable: Iterable[T], around: Part, inside: Part, counter: str
) -> Generator[T, None, None]:
    items = iter(iterable)
    numbered = encode({counter: 0})[:-2].replace(b"%", b"%%") + b"%d}"
    count = 0
    while True:
        count += 1
        data = numbered % count
        if around is not None and around.is_enabled and state.enabled:
            enter_with(around, _with_arguments(around, data) if around.attributes else data)
            try:
                item = next(items)
            except StopIteration:
                withdraw(around)
                return
            except BaseException as error:
                leave(around, type(error), error, None)
                raise
            leave(around, None, None, None)
        else:
            try:
                item = next(items)
            except StopIteration:
                return
        if inside is not None and inside.is_enabled and state.enabled:
            enter_with(inside, _with_arguments(inside, data) if inside.attributes else data)
            try:
                yield item
            finally:
                # Also when the loop is left by break or an exception.
                leave(inside, None, None, None)
        else:
            yield item


def _with_arguments(part: Node | UseInLoop, count: bytes) -> bytes:
    return part._encoded()[:-1] + b"," + count[1:]
