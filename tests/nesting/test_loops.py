"""Event loops beside plain code, in threads, and from one run to the next."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import polars as pl

import stepwell
from stepwell import Run
from tests.nesting.test_asyncio import turn
from tests.nesting.tree import edges, events, finished, read


def test_a_thread_of_a_task_has_a_tree_of_its_own(recorded: Run) -> None:
    """Spans in ``asyncio.to_thread`` are roots of their thread, and the task's stay its own."""

    def work() -> None:
        with stepwell.span("thread"), stepwell.span("thread inside"):
            pass

    async def main() -> None:
        with stepwell.span("task"):
            await asyncio.gather(*(asyncio.to_thread(work) for _ in range(20)))
            with stepwell.span("task inside"):
                pass

    asyncio.run(main())
    spans = finished(recorded)
    assert edges(spans) == {
        ("task", None): 1,
        ("thread", None): 20,
        ("thread inside", "thread"): 20,
        ("task inside", "task"): 1,
    }
    main_thread = spans.filter(pl.col("name") == "task")["thread"].item()
    assert main_thread not in spans.filter(pl.col("name") == "thread")["thread"].to_list()


def test_plain_code_between_two_turns_of_a_loop(recorded: Run) -> None:
    """While the loop is stopped with a task inside a span, plain spans are independent of it."""

    async def wait(go: asyncio.Event) -> None:
        with stepwell.span("wait"):
            await go.wait()

    loop = asyncio.new_event_loop()
    go = asyncio.Event()
    task = loop.create_task(wait(go))
    loop.run_until_complete(turn())
    with recorded.span("plain"):
        recorded.event("ping")
        loop.call_soon(go.set)
        loop.run_until_complete(task)
    loop.close()
    spans = finished(recorded)
    assert edges(spans) == {("wait", None): 1, ("plain", None): 1}
    assert [(name, span) for name, span, _ in events(recorded)] == [("ping", "plain")]


def test_the_next_run_in_the_same_task_starts_anew(recorded: Run) -> None:
    """A span open in one run is not a parent in the next run of the same task."""

    async def main() -> Run:
        with stepwell.span("first"):
            recorded.finish()
            second = stepwell.init("second", dir=recorded.path.parent)
            with stepwell.span("second"):
                await turn()
        with stepwell.span("third"):
            await turn()
        return second

    second = asyncio.run(main())
    assert edges(finished(second)) == {("second", None): 1, ("third", None): 1}
    assert edges(read(recorded)) == {("first", None): 1}


def test_a_loop_in_another_thread_continues_the_tree(recorded: Run) -> None:
    """With the context handed on its spans belong below the task's, which stays seen as open."""

    async def inside() -> None:
        with stepwell.span("inside"):
            await turn()

    loop = asyncio.new_event_loop()
    loop.set_default_executor(executor := ThreadPoolExecutor(1))

    async def watch() -> None:
        with stepwell.span("outer"), stepwell.span("task"):
            await asyncio.to_thread(lambda: asyncio.run(inside()))
            await loop.shutdown_default_executor()
            assert recorded.flush()
            opened = stepwell.open_run(recorded.path).open_spans().collect()
            assert opened["name"].to_list() == ["outer", "task"]

    loop.run_until_complete(watch())
    loop.close()
    executor.shutdown()
    spans = finished(recorded)
    assert edges(spans) == {("outer", None): 1, ("task", "outer"): 1, ("inside", "task"): 1}
    assert spans["thread"].n_unique() == 2
