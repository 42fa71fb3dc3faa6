"""Going through an iterable, with a span around getting each item and one around what is done with it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from operator import length_hint
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stepwell.journal.span import enter_with, leave, withdraw
from stepwell.journal.state import state
from stepwell.journal.values import encode

if TYPE_CHECKING:
    from typing import TypeAlias

    from stepwell.annotations.node import Node, UseInLoop

    Part: TypeAlias = Node | UseInLoop | None

T = TypeVar("T")


def annotated(
    iterable: Iterable[T], around: Part, inside: Part, counter: str = "count"
) -> Iterable[T]:
    """The iterable with getting an item recorded as ``around``, the loop's body as ``inside``.

    Both have the number of the item, from 1 on, as the argument ``counter``.
    """
    kind: type[AnnotatedIterable[T]] = AnnotatedIterable
    sized = hasattr(iterable, "__len__")
    if hasattr(iterable, "__next__"):
        kind = SizedIterator if sized else AnnotatedIterator
    elif sized:
        kind = SizedIterable
    return kind(iterable, around, inside, counter)


class AnnotatedIterable(Generic[T]):
    """An iterable whose items are recorded as they are asked for; it can be gone through again."""

    def __init__(self, iterable: Iterable[T], around: Part, inside: Part, counter: str) -> None:
        self._iterable = iterable
        self._around = around
        self._inside = inside
        self._counter = counter

    def __iter__(self) -> Iterator[T]:
        parts = (self._around, self._inside)
        if state.enabled and any(part is not None and part._is_enabled for part in parts):
            return _items(self._iterable, *parts, self._counter)
        # Nothing is added to a loop that is not recorded.
        return iter(self._iterable)

    def __getattr__(self, name: str) -> Any:
        # Whatever else the iterable can do, such as `loader.dataset`.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._iterable, name)


class SizedIterable(AnnotatedIterable[T]):
    """The same for what has a length."""

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        return self._iterable[key]  # type: ignore[index]

    def __contains__(self, item: object) -> bool:
        return item in self._iterable  # type: ignore[operator]


class AnnotatedIterator(AnnotatedIterable[T]):
    """The same for an iterator, whose items may also be asked for one by one."""

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
    """The same for what is both."""


def _items(
    iterable: Iterable[T], around: Part, inside: Part, counter: str
) -> Generator[T, None, None]:
    items = iter(iterable)
    numbered = encode({counter: 0})[:-2].replace(b"%", b"%%") + b"%d}"
    count = 0
    while True:
        count += 1
        data = numbered % count
        if around is not None and around._is_enabled and state.enabled:
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
        if inside is not None and inside._is_enabled and state.enabled:
            enter_with(inside, _with_arguments(inside, data) if inside.attributes else data)
            try:
                yield item
            finally:
                # Also when the loop was left by break or by an exception.
                leave(inside, None, None, None)
        else:
            yield item


def _with_arguments(part: Node | UseInLoop, count: bytes) -> bytes:
    return part._encoded()[:-1] + b"," + count[1:]
