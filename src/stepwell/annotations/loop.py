"""Going through an iterable, with a span around getting each item and one around what is done with it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stepwell.journal.span import enter_with, leave, withdraw
from stepwell.journal.state import state

if TYPE_CHECKING:
    from stepwell.annotations.node import Node

T = TypeVar("T")


class AnnotatedIterable(Generic[T]):
    """An iterable whose items are recorded as they are asked for; it can be gone through again."""

    def __init__(
        self, node: Node, iterable: Iterable[T], around: Node | None, inside: Node | None
    ) -> None:
        self._node = node
        self._iterable = iterable
        self._around = around
        self._inside = inside

    def __iter__(self) -> Iterator[T]:
        return _items(self._node, self._iterable, self._around, self._inside)

    def __getattr__(self, name: str) -> Any:
        # Whatever else the iterable can do, such as `loader.dataset`.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._iterable, name)


class SizedIterable(AnnotatedIterable[T]):
    """The same for what has a length."""

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]


def _items(
    node: Node, iterable: Iterable[T], around: Node | None, inside: Node | None
) -> Generator[T, None, None]:
    items = iter(iterable)
    count = 0
    while True:
        count += 1
        data = b'{"count":%d}' % count
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


def _with_arguments(node: Node, count: bytes) -> bytes:
    return node._encoded()[:-1] + b"," + count[1:]
