"""Spans inside async generators, which a task, or the loop for it, may close."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import stepwell
from stepwell import Run
from tests.nesting.test_asyncio import turn
from tests.nesting.tree import edges, finished


async def numbers(name: str, count: int) -> AsyncIterator[int]:
    with stepwell.span(name):
        for number in range(count):
            with stepwell.span("make"):
                await turn()
            yield number


def test_async_generators(recorded: Run) -> None:
    """A span in an async generator lasts until it is exhausted or closed, ok both times."""

    async def main() -> None:
        assert [number async for number in numbers("all", 3)] == [0, 1, 2]
        generator = numbers("closed", 3)
        async for _ in generator:
            break
        await generator.aclose()
        with stepwell.span("after"):
            pass

    asyncio.run(main())
    spans = finished(recorded)
    assert edges(spans) == {
        ("all", None): 1,
        ("make", "all"): 3,
        ("closed", None): 1,
        ("make", "closed"): 1,
        ("after", None): 1,
    }
    assert set(spans["status"]) == {"ok"}


def test_an_async_generator_that_is_dropped(recorded: Run) -> None:
    """When the loop closes a forgotten async generator, its span ends and gets no more children."""

    async def main() -> None:
        with stepwell.span("user"):
            async for _ in numbers("dropped", 3):
                break
            gc.collect()
            for _ in range(5):
                await turn()
            with stepwell.span("after"):
                pass
        with stepwell.span("last"):
            pass

    asyncio.run(main())
    spans = finished(recorded)
    assert edges(spans) == {
        ("user", None): 1,
        ("dropped", "user"): 1,
        ("make", "dropped"): 1,
        ("after", "user"): 1,
        ("last", None): 1,
    }
    assert set(spans["status"]) == {"ok"}


def test_an_async_generator_outlives_the_span_of_its_user(recorded: Run) -> None:
    """When it is closed later, what comes next is at the root, not in the span that ended."""

    async def main() -> None:
        with stepwell.span("user"):
            generator = numbers("numbers", 3)
            await generator.__anext__()
        await generator.aclose()
        with stepwell.span("after"):
            pass

    asyncio.run(main())
    assert edges(finished(recorded)) == {
        ("user", None): 1,
        ("numbers", "user"): 1,
        ("make", "numbers"): 1,
        ("after", None): 1,
    }
