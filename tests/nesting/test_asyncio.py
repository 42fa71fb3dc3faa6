"""Spans of asyncio tasks, which interleave on one thread, have the parents of their own task."""

from __future__ import annotations

import asyncio

import polars as pl
import pytest

import stepwell
from stepwell import Run
from tests.nesting.tree import SLOTS, attributes, edges, events, finished, statuses


async def turn() -> None:
    """Let the other tasks have their turn."""
    await asyncio.sleep(0)


async def fetch(number: int, depth: int = 3) -> None:
    with stepwell.span(f"fetch {depth}", number=number):
        for _ in range(number % 4):
            await turn()
        if depth:
            await fetch(number, depth - 1)
        await turn()


def test_interleaved_tasks_do_not_see_each_other(recorded: Run) -> None:
    """Each of 400 tasks that take turns inside the same spans has its own chain."""

    async def main() -> None:
        await asyncio.gather(*(fetch(number) for number in range(400)))

    asyncio.run(main())
    spans = finished(recorded)
    assert edges(spans) == {
        ("fetch 3", None): 400,
        ("fetch 2", "fetch 3"): 400,
        ("fetch 1", "fetch 2"): 400,
        ("fetch 0", "fetch 1"): 400,
    }
    number = spans.select("id", text=pl.col("attributes"))
    inside = spans.join(number, left_on="parent", right_on="id", how="inner")
    assert inside.filter(pl.col("attributes") != pl.col("text")).height == 0
    assert set(spans["status"]) == {"ok"}


def test_nested_tasks_are_children_of_the_span_they_were_made_in(recorded: Run) -> None:
    """A task made inside a span, and a task made by that task, belong below it."""

    async def leaf() -> None:
        await turn()
        with stepwell.span("leaf"):
            await turn()

    async def branch() -> None:
        with stepwell.span("branch"):
            await asyncio.gather(leaf(), leaf(), leaf())

    async def main() -> None:
        with stepwell.span("root"):
            await asyncio.gather(*(branch() for _ in range(100)))
        with stepwell.span("after"):
            await turn()

    with recorded.span("plain"):
        asyncio.run(main())
        with recorded.span("plain inside"):
            pass
    spans = finished(recorded)
    assert edges(spans) == {
        ("plain", None): 1,
        ("root", "plain"): 1,
        ("branch", "root"): 100,
        ("leaf", "branch"): 300,
        ("after", "plain"): 1,
        ("plain inside", "plain"): 1,
    }


def test_a_task_may_outlive_the_span_it_was_made_in(recorded: Run) -> None:
    """Its later spans stay children of that span, also in a later segment, at the right depth."""

    async def late(go: asyncio.Event) -> None:
        with stepwell.span("early"):
            await turn()
        await go.wait()
        for _ in range(2):
            with stepwell.span("late"):
                await turn()
            for _ in range(SLOTS):
                with stepwell.span("noise"):
                    pass

    async def main() -> None:
        go = asyncio.Event()
        with stepwell.span("outer"), stepwell.span("maker"):
            task = asyncio.create_task(late(go))
            await turn()
        with stepwell.span("other"):
            go.set()
            await task

    asyncio.run(main())
    spans = finished(recorded)
    assert edges(spans) == {
        ("outer", None): 1,
        ("maker", "outer"): 1,
        ("early", "maker"): 1,
        ("other", None): 1,
        ("late", "maker"): 2,
        ("noise", "maker"): 2 * SLOTS,
    }
    assert set(spans.filter(pl.col("name") == "late")["depth"]) == {2}
    maker = spans.filter(pl.col("name") == "maker")
    late_start = spans.filter(pl.col("name") == "late")["start_ns"].min()
    assert maker["start_ns"].item() + maker["duration_ns"].item() < late_start


def test_async_spans_stay_open_over_roll_overs(recorded: Run) -> None:
    """Spans of many tasks, open while others fill three segments, are carried along."""

    async def wait(number: int, go: asyncio.Event) -> None:
        with stepwell.span("wait", number=number), stepwell.span("wait inside"):
            await go.wait()
            with stepwell.span("woken", number=number):
                await turn()

    async def main() -> None:
        go = asyncio.Event()
        with stepwell.span("main"):
            tasks = [asyncio.create_task(wait(number, go)) for number in range(50)]
            for i in range(3 * SLOTS):
                with stepwell.span("busy"):
                    if i % 1000 == 0:
                        await turn()
            opened = stepwell.open_run(recorded.path).open_spans().collect()
            assert sorted(opened["name"]) == ["main"] + ["wait"] * 50 + ["wait inside"] * 50
            go.set()
            await asyncio.gather(*tasks)

    asyncio.run(main())
    spans = finished(recorded)
    assert edges(spans) == {
        ("main", None): 1,
        ("wait", "main"): 50,
        ("wait inside", "wait"): 50,
        ("woken", "wait inside"): 50,
        ("busy", "main"): 3 * SLOTS,
    }
    assert sorted(entry["number"] for entry in attributes(spans, "wait")) == list(range(50))
    assert set(spans["status"]) == {"ok"}


def test_more_tasks_wait_inside_spans_than_a_segment_can_carry(recorded: Run) -> None:
    """With 9,000 async spans open at a roll-over some are abandoned, and recording continues."""

    async def wait(go: asyncio.Event) -> None:
        with stepwell.span("wait"):
            await go.wait()

    async def main() -> None:
        go = asyncio.Event()
        tasks = [asyncio.create_task(wait(go)) for _ in range(9000)]
        await turn()
        for _ in range(2 * SLOTS):
            with stepwell.span("busy"):
                pass
        go.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    spans = finished(recorded)
    assert edges(spans) == {("wait", None): 9000, ("busy", None): 2 * SLOTS}
    assert set(spans.filter(pl.col("name") == "busy")["status"]) == {"ok"}
    waited = spans.filter(pl.col("name") == "wait")["status"].value_counts()
    assert set(waited["status"]) == {"ok", "unfinished"}


def test_set_finds_the_span_of_its_own_task(recorded: Run) -> None:
    """``set`` on a shared span adds to the entry of the running task, over a roll-over too."""
    shared = stepwell.span("shared")

    async def work(number: int, go: asyncio.Event) -> None:
        with shared:
            shared.set(number=number)
            await go.wait()
            shared.set(twice=2 * number)

    async def main() -> None:
        go = asyncio.Event()
        tasks = [asyncio.create_task(work(number, go)) for number in range(100)]
        await turn()
        for _ in range(SLOTS):
            with stepwell.span("busy"):
                pass
        go.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    expected = [{"number": n, "twice": 2 * n} for n in range(100)]
    assert attributes(finished(recorded), "shared") == expected


def test_events_are_on_the_span_of_their_task(recorded: Run) -> None:
    """An event of a task is on its innermost span, whatever spans other tasks have open."""

    async def work(number: int) -> None:
        with stepwell.span(f"work {number}"):
            await turn()
            stepwell.event("ping", number=number)
            await turn()

    async def main() -> None:
        stepwell.event("start")
        await asyncio.gather(*(work(number) for number in range(20)))

    with recorded.span("plain"):
        asyncio.run(main())
    recorded.finish()
    assert events(recorded) == [
        ("start", "plain", {}),
        *(("ping", f"work {n}", {"number": n}) for n in range(20)),
    ]


def test_an_exception_in_a_task_is_recorded_once(recorded: Run) -> None:
    """Failing tasks have one event each, on their innermost span, though gather passes them on."""

    async def fail(number: int) -> None:
        with stepwell.span("outer"), stepwell.span(f"inner {number}"):
            await turn()
            raise ValueError(number)

    async def main() -> None:
        with stepwell.span("main"):
            tasks = [asyncio.create_task(fail(number)) for number in range(5)]
            await asyncio.wait(tasks)
            await tasks[0]

    with pytest.raises(ValueError, match="0"):
        asyncio.run(main())
    spans = finished(recorded)
    assert set(spans["status"]) == {"error"}
    assert events(recorded) == [
        ("error", f"inner {n}", {"exception_type": "ValueError", "exception_message": str(n)})
        for n in range(5)
    ]


def test_cancelled_tasks_close_their_spans(recorded: Run) -> None:
    """Cancelling tasks ends their spans, and what comes afterwards is at the root again."""

    async def wait() -> None:
        with stepwell.span("wait"):
            await asyncio.sleep(3600)

    async def main() -> None:
        tasks = [asyncio.create_task(wait()) for _ in range(10)]
        await turn()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with stepwell.span("after"):
            pass

    asyncio.run(main())
    spans = finished(recorded)
    assert edges(spans) == {("wait", None): 10, ("after", None): 1}
    assert statuses(spans)["after", "ok"] == 1
    assert "open" not in set(spans["status"])
