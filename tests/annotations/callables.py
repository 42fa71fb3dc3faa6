"""Every way to use a node, around a body that is recorded as an item: the rows of the table of uses."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from stepwell import ai
from stepwell.annotations.node import Node

Decorate = Callable[[Any], Any]
Call = Callable[[], Any]
"""Does it once; gives something to await where the body is asynchronous."""


def body() -> int:
    with ai.data.item:
        return 7


# Kinds of callables: each is decorated and then called as its users do.


def plain_function(decorate: Decorate) -> Call:
    @decorate
    def function(a: int, *, b: int) -> int:
        assert (a, b) == (1, 2)
        return body()

    assert function.__name__ == "function"
    return lambda: check(function(1, b=2))


def method(decorate: Decorate) -> Call:
    class Thing:
        @decorate
        def run(self, a: int) -> int:
            assert isinstance(self, Thing)
            return body()

    return lambda: check(Thing().run(1))


def static_below(decorate: Decorate) -> Call:
    class Thing:
        @decorate
        @staticmethod
        def run(a: int) -> int:
            return body()

    return lambda: check(Thing().run(1))


def static_above(decorate: Decorate) -> Call:
    class Thing:
        @staticmethod
        @decorate
        def run(a: int) -> int:
            return body()

    return lambda: check(Thing.run(1))


def class_below(decorate: Decorate) -> Call:
    class Thing:
        @decorate
        @classmethod
        def run(cls) -> int:
            assert cls is Thing
            return body()

    return lambda: check(Thing.run())


def class_above(decorate: Decorate) -> Call:
    class Thing:
        @classmethod
        @decorate
        def run(cls) -> int:
            assert cls is Thing
            return body()

    return lambda: check(Thing().run())


def of_a_class(decorate: Decorate) -> Call:
    @decorate
    class Thing:
        def __init__(self, a: int) -> None:
            self.value = body()

    assert isinstance(Thing, type)
    return lambda: check(Thing(1).value)


def of_a_class_without_init(decorate: Decorate) -> Call:
    """Made by ``__new__`` alone, as named tuples are."""

    @decorate
    class Thing(tuple[int, ...]):
        def __new__(cls, a: int) -> Any:
            return super().__new__(cls, (a, body()))

    return lambda: check(Thing(1)[1])


def partial(decorate: Decorate) -> Call:
    called = decorate(functools.partial(lambda a, b: body(), 1))
    return lambda: check(called(2))


def callable_object(decorate: Decorate) -> Call:
    class Thing:
        def __call__(self) -> int:
            return body()

    called = decorate(Thing())
    return lambda: check(called())


def property_getter(decorate: Decorate) -> Call:
    class Thing:
        @property
        @decorate
        def value(self) -> int:
            return body()

    return lambda: check(Thing().value)


def generator(decorate: Decorate) -> Call:
    @decorate
    def items() -> Iterator[int]:
        yield 1
        yield body()

    return lambda: check(list(items())[-1])


def coroutine(decorate: Decorate) -> Call:
    @decorate
    async def run(a: int) -> int:
        await asyncio.sleep(0)
        found = body()
        await asyncio.sleep(0)
        return found

    assert asyncio.iscoroutinefunction(run)

    async def call() -> None:
        check(await run(1))

    return call


def async_generator(decorate: Decorate) -> Call:
    @decorate
    async def items() -> AsyncIterator[int]:
        await asyncio.sleep(0)
        yield 1
        yield body()

    async def call() -> None:
        check([item async for item in items()][-1])

    return call


def check(result: int) -> None:
    assert result == 7


KINDS: list[Callable[[Decorate], Call]] = [
    plain_function,
    method,
    static_below,
    static_above,
    class_below,
    class_above,
    of_a_class,
    of_a_class_without_init,
    partial,
    callable_object,
    property_getter,
    generator,
    coroutine,
    async_generator,
]


# Uses of a node. Those that are called can be forced on and off.

ARGS = {"size": 4, "split": "train"}


@dataclass(frozen=True)
class Use:
    """A way to use a node; ``records`` says what one use of it leaves, and the last one has the body."""

    name: str
    build: Callable[[Node, dict[str, bool]], Call]
    records: tuple[tuple[str, Any], ...] = (("", None),)
    is_called: bool = False
    args: dict[str, Any] = field(default_factory=dict)


DECORATORS: dict[str, tuple[Callable[[Node, dict[str, bool]], Decorate], bool, Any, str]] = {
    "@node": (lambda node, force: node, False, None, ""),
    "@node()": (lambda node, force: node(**force), True, None, ""),
    "@node(args)": (lambda node, force: node(args=dict(ARGS), **force), True, ARGS, ""),
    "@node(keywords)": (lambda node, force: node(**ARGS, **force), True, ARGS, ""),
    "@node.init": (lambda node, force: node.init, False, None, ".init"),
    "@node.init()": (lambda node, force: node.init(**force), True, None, ".init"),
    "@node.derive()": (lambda node, force: node.derive(name="part"), False, None, ".part"),
    "@node.derive()()": (lambda node, force: node.derive("part")(**force), True, None, ".part"),
}
"""What is written above a function; whether it is called; the arguments and the end of the name."""


def _with(node: Any) -> Call:
    def call() -> None:
        with node:
            check(body())

    return call


def _start_and_stop(node: Node, force: dict[str, bool]) -> Call:
    def call() -> None:
        node.start()
        check(body())
        node.stop()

    return call


def _iter(node: Node, force: dict[str, bool]) -> Call:
    def call() -> None:
        for item in node.iter([1, 2]):
            if item == 2:
                check(body())

    return call


def _start_and_stop_of_use(node: Node, force: dict[str, bool]) -> Call:
    return _start_and_stop(node(args=dict(ARGS), **force), {})  # type: ignore[arg-type]


def _iter_of_use(node: Node, force: dict[str, bool]) -> Call:
    return _iter(node(args=dict(ARGS), **force), {})  # type: ignore[arg-type]


def _iter_made_before(node: Node, force: dict[str, bool]) -> Call:
    items = node.iter([1])

    def call() -> None:
        for _ in items:
            check(body())

    return call


def _one_by_one(node: Node, force: dict[str, bool]) -> Call:
    def call() -> None:
        items: Any = node.iter(iter([1]))
        assert next(items) == 1
        check(body())
        with pytest.raises(StopIteration):
            next(items)

    return call


def _broken_off(node: Node, force: dict[str, bool]) -> Call:
    def call() -> None:
        for _ in node.iter(iter([1, 2])):
            check(body())
            break

    return call


def _pair(count: int, args: dict[str, Any] | None = None) -> tuple[tuple[str, Any], ...]:
    about = {**(args or {}), "count": count}
    return ((".iter", about), (".block", about))


BLOCKS: list[Use] = [
    Use("with node", lambda node, force: _with(node)),
    Use("with node()", lambda node, force: _with(node(**force)), is_called=True),
    Use(
        "with node(args)",
        lambda node, force: _with(node(args=dict(ARGS), **force)),
        (("", ARGS),),
        is_called=True,
    ),
    Use("with node.init", lambda node, force: _with(node.init), ((".init", None),)),
    Use(
        "with node.init()",
        lambda node, force: _with(node.init(**force)),
        ((".init", None),),
        is_called=True,
    ),
    Use("with node.derive()", lambda node, force: _with(node.derive("part")), ((".part", None),)),
    Use("start and stop", _start_and_stop),
    Use("iter", _iter, (*_pair(1), *_pair(2))),
    Use("iter and break", _broken_off, _pair(1)),
    Use("iter made before", _iter_made_before, _pair(1)),
    Use("iter one by one", _one_by_one, _pair(1)),
    Use("node(args).iter", _iter_of_use, (*_pair(1, ARGS), *_pair(2, ARGS)), is_called=True),
    Use("start and stop of node(args)", _start_and_stop_of_use, (("", ARGS),), is_called=True),
]


def _decorated(spelling: str, kind: Callable[[Decorate], Call]) -> Use:
    above, is_called, args, ending = DECORATORS[spelling]
    return Use(
        f"{spelling} {kind.__name__}",
        lambda node, force: kind(above(node, force)),
        ((ending, args),),
        is_called,
    )


USES: list[Use] = [_decorated(above, kind) for above in DECORATORS for kind in KINDS] + BLOCKS
