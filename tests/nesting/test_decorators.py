"""A decorated function behaves as before, and each of its calls is a span."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Generator, Iterator

import pytest

import stepwell
from stepwell import Run
from tests.nesting.tree import attributes, edges, events, finished, statuses

# Decorated before any run is active, as functions of a module are.


@stepwell.span("add")
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@stepwell.span("factorial", kind="recursive")
def factorial(n: int) -> int:
    return 1 if n == 0 else n * factorial(n - 1)


class Model:
    factor = 3

    @stepwell.span("method")
    def method(self, x: int) -> int:
        return self.factor * x

    @staticmethod
    @stepwell.span("static inside")
    def static_inside(x: int) -> int:
        return x

    @stepwell.span("static outside")
    @staticmethod
    def static_outside(x: int) -> int:
        return x

    @classmethod
    @stepwell.span("class inside")
    def class_inside(cls) -> int:
        return cls.factor

    @stepwell.span("class outside")
    @classmethod
    def class_outside(cls) -> int:
        return cls.factor


@stepwell.span("co")
async def co(x: int) -> int:
    with stepwell.span("inside"):
        await asyncio.sleep(0)
    return x


@stepwell.span("generate")
def generate(count: int) -> Generator[int, str, str]:
    said = ""
    for number in range(count):
        try:
            said += (yield number) or "-"
        except KeyError as error:
            said += f"[{error.args[0]}]"
    return said


@stepwell.span("async generate")
async def async_generate(count: int) -> AsyncIterator[object]:
    said: list[object] = []
    try:
        for number in range(count):
            with stepwell.span("make"):
                await asyncio.sleep(0)
            try:
                said.append((yield number))
            except KeyError as error:
                said.append(error.args[0])
        yield said
    finally:
        await asyncio.sleep(0)
        stepwell.event("cleaned up")


def test_functions(recorded: Run) -> None:
    """A decorated function takes and returns what it did, and keeps its name and text."""
    assert add(1) == 3
    assert add(1, b=5) == 6
    assert add.__name__ == "add"
    assert add.__doc__ == "Add two numbers."
    assert str(inspect.signature(add)) == "(a: 'int', b: 'int' = 2) -> 'int'"
    assert factorial(5) == 120
    spans = finished(recorded)
    assert edges(spans) == {
        ("add", None): 2,
        ("factorial", None): 1,
        ("factorial", "factorial"): 5,
    }
    assert attributes(spans, "factorial") == [{"kind": "recursive"}] * 6


def test_methods(recorded: Run) -> None:
    """Methods, static methods and class methods work with the decorator on either side."""
    model = Model()
    assert model.method(2) == 6
    assert Model.static_inside(1) == model.static_inside(1) == 1
    assert Model.static_outside(1) == model.static_outside(1) == 1
    assert Model.class_inside() == model.class_outside() == 3
    spans = finished(recorded)
    assert spans["name"].to_list() == [
        "method",
        "static inside",
        "static inside",
        "static outside",
        "static outside",
        "class inside",
        "class outside",
    ]


def test_coroutines(recorded: Run) -> None:
    """A decorated coroutine function is one still, and its span lasts until it has finished."""
    assert inspect.iscoroutinefunction(co)

    async def main() -> None:
        assert await asyncio.gather(*(co(x) for x in range(10))) == list(range(10))

    asyncio.run(main())
    assert edges(finished(recorded)) == {("co", None): 10, ("inside", "co"): 10}


def test_generators(recorded: Run) -> None:
    """A decorated generator supports send and throw, and returns its value."""
    assert inspect.isgeneratorfunction(generate)
    generator = generate(3)
    assert next(generator) == 0
    assert generator.send("a") == 1
    assert generator.throw(KeyError("b")) == 2
    with pytest.raises(StopIteration) as stopped:
        generator.send("c")
    assert stopped.value.value == "a[b]c"
    never_started = generate(1)
    never_started.close()
    spans = finished(recorded)
    assert statuses(spans) == {("generate", "ok"): 1}
    assert events(recorded) == []


def test_a_generator_is_timed_from_its_first_item_on(recorded: Run) -> None:
    """Calling a generator function opens no span, asking for the first item does."""
    generator = generate(2)
    with recorded.span("before"):
        pass
    next(generator)
    with recorded.span("between"):
        pass
    generator.close()
    spans = finished(recorded)
    assert edges(spans) == {("before", None): 1, ("generate", None): 1, ("between", "generate"): 1}


def test_async_generators(recorded: Run) -> None:
    """A decorated async generator supports send and throw, and cleans up when closed."""
    assert inspect.isasyncgenfunction(async_generate)

    async def main() -> None:
        generator = async_generate(3)
        assert await generator.__anext__() == 0
        assert await generator.asend("a") == 1
        assert await generator.athrow(KeyError("b")) == 2
        assert await generator.asend("c") == ["a", "b", "c"]
        with pytest.raises(StopAsyncIteration):
            await generator.__anext__()
        closed = async_generate(3)
        async for _ in closed:
            break
        await closed.aclose()

    asyncio.run(main())
    spans = finished(recorded)
    assert edges(spans) == {("async generate", None): 2, ("make", "async generate"): 4}
    assert statuses(spans)["async generate", "ok"] == 2
    assert [(name, span) for name, span, _ in events(recorded)] == [
        ("cleaned up", "async generate")
    ] * 2


def test_an_exception_leaves_a_decorated_function(recorded: Run) -> None:
    """It is recorded on the span of the call and passed on."""

    @recorded.span("outer")
    def outer() -> None:
        inner()

    @recorded.span("inner")
    def inner() -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        outer()
    spans = finished(recorded)
    assert statuses(spans) == {("outer", "error"): 1, ("inner", "error"): 1}
    assert [(name, span) for name, span, _ in events(recorded)] == [("error", "inner")]


def test_what_is_no_function_cannot_be_decorated() -> None:
    """A property is refused with what to write instead."""
    with pytest.raises(TypeError, match=r"decorates a function, not property: write @run\.span"):
        stepwell.span("size")(property(lambda self: 1))


def test_a_decorated_function_records_into_the_run_of_the_moment(recorded: Run) -> None:
    """Before, between and after two runs it just works; in each run it is a span."""

    def numbers() -> Iterator[int]:
        yield from (add(1), factorial(1))

    assert list(numbers()) == [3, 1]
    first = finished(recorded)
    assert list(numbers()) == [3, 1]
    with stepwell.init("second", dir=recorded.path.parent) as second:
        assert list(numbers()) == [3, 1]
        assert list(numbers()) == [3, 1]
    assert list(numbers()) == [3, 1]
    expected = {("add", None): 1, ("factorial", None): 1, ("factorial", "factorial"): 1}
    assert edges(first) == expected
    assert edges(finished(second)) == {edge: 2 * count for edge, count in expected.items()}
