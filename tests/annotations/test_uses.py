"""Every use × every callable × how it is switched × where it runs: exact counts, names, parents, args."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

from stepwell import Run, ai
from stepwell.annotations.node import Node
from tests.annotations.callables import USES, Call, Use
from tests.nesting.tree import finished

AT_ONCE = 3


@dataclass(frozen=True)
class Switch:
    """How a node is switched, before and after a use of it is written down, and what comes of it."""

    before: Callable[[Node], None] = lambda node: None
    after: Callable[[Node], None] = lambda node: None
    force: bool | None = None
    is_recorded: bool = True


SWITCHES: dict[str, Switch] = {
    "enabled": Switch(),
    "disabled": Switch(before=Node.disable, is_recorded=False),
    "disabled afterwards": Switch(after=Node.disable, is_recorded=False),
    "enabled afterwards": Switch(before=Node.disable, after=Node.enable),
    "disabled from above": Switch(after=lambda node: ai.compute.disable(), is_recorded=False),
    "all enabled again": Switch(before=Node.disable, after=lambda node: ai.enable()),
    "forced on": Switch(before=Node.disable, force=True),
    "forced off": Switch(force=False, is_recorded=False),
    "forced on, all disabled": Switch(after=lambda node: ai.compute.disable(), force=True),
}


def finish(result: Any) -> None:
    if inspect.iscoroutine(result):
        asyncio.run(result)


def plainly(call: Call, node: Node) -> None:
    finish(call())


def nested(call: Call, node: Node) -> None:
    """Inside another node, and inside itself."""
    with ai.pipeline.train, node(enable=True):
        finish(call())


def in_threads(call: Call, node: Node) -> None:
    meet = threading.Barrier(AT_ONCE)

    def work() -> None:
        with ai.pipeline.train:
            meet.wait()
            finish(call())

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_tasks(call: Call, node: Node) -> None:
    async def work() -> None:
        with ai.pipeline.train:
            await asyncio.sleep(0)
            result = call()
            if inspect.iscoroutine(result):
                await result

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    asyncio.run(main())


PLACES: dict[str, tuple[Callable[[Call, Node], None], int, list[str]]] = {
    "plain": (plainly, 1, []),
    "nested": (nested, 1, ["train", "itself"]),
    "threaded": (in_threads, AT_ONCE, ["train"]),
    "async": (in_tasks, AT_ONCE, ["train"]),
}
"""What runs a use, how often that is, and the names of what is around it."""


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Nodes that a test derives are gone after it."""
    before = dict(ai.compute.forward._children)
    yield
    ai.compute.forward._children = before
    ai.enable()


CASES = [
    # A thread brings files of its own, so most of these are slow.
    pytest.param(switch, place, marks=[pytest.mark.full] if place == "threaded" and number else [])
    for place in PLACES
    for number, switch in enumerate(SWITCHES)
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("switch", "place"), CASES)
def test_every_use(recorded: Run, switch: str, place: str) -> None:
    """All uses in one run, each on its own node."""
    chosen = SWITCHES[switch]
    run_in, times, around = PLACES[place]
    expected: Counter[tuple[Any, ...]] = Counter()
    cases = [use for use in USES if chosen.force is None or use.is_called]
    assert len(cases) >= 55
    for number, use in enumerate(cases):
        node = ai.compute.forward.derive(f"case {number}")
        chosen.before(node)
        force = {} if chosen.force is None else {"enable": chosen.force}
        call = use.build(node, force)
        chosen.after(node)
        run_in(call, node)
        ai.enable()
        above = tuple(node.name if name == "itself" else name for name in around)
        expected += records_of(use, node.name, above, chosen.is_recorded, times)
    assert found_in(finished(recorded)) == expected


def records_of(
    use: Use, name: str, above: tuple[str, ...], is_recorded: bool, times: int
) -> Counter[tuple[Any, ...]]:
    """The records of one use, with their arguments and the names of their ancestors."""
    found: Counter[tuple[Any, ...]] = Counter()
    for depth in range(len(above)):
        found[(*above[: depth + 1], None)] += times
    if is_recorded:
        for ending, args in use.records:
            found[(*above, name + ending, text(args))] += times
        above = (*above, name + use.records[-1][0])
    found[(*above, "item", None)] += times
    return found


def text(args: Any) -> str | None:
    return None if not args else json.dumps(args, sort_keys=True)


def found_in(spans: pl.DataFrame) -> Counter[tuple[Any, ...]]:
    """The same from the tables: the path of names of each span, and its arguments."""
    assert set(spans["status"]) == {"ok"}
    rows = {
        row[0]: row[1:] for row in spans.select("id", "parent", "name", "attributes").iter_rows()
    }

    def path(id: int) -> tuple[str, ...]:
        parent, name, _ = rows[id]
        return (*(path(parent) if parent is not None else ()), name)

    return Counter(
        (*path(id), text(json.loads(attributes) if attributes else None))
        for id, (_, _, attributes) in rows.items()
    )


def test_the_table_is_whole() -> None:
    """As many cases as there are spellings and kinds."""
    assert len(USES) == 8 * 14 + 13
    assert len({use.name for use in USES}) == len(USES)


@pytest.mark.parametrize("switch", ["enabled", "disabled"])
def test_streaming_records(recorded: Run, switch: str) -> None:
    """``metadata=True`` leaves an event at once, with the node's arguments, and no span."""
    node = ai.pipeline.epoch
    if switch == "disabled":
        node.disable()
    node.update(number=1)
    with ai.pipeline.train:
        node.start(metadata=True)
        node.stop(metadata=True)
    node.update(number=None)
    from tests.nesting.tree import events

    spans = finished(recorded)
    assert spans["name"].to_list() == ["train"]
    about = {"number": 1, "category": "pipeline"}
    told = [("epoch.start", "train", about), ("epoch.end", "train", about)]
    assert events(recorded) == (told if switch == "enabled" else [])


def test_recursion_is_as_deep_as_it_is(recorded: Run) -> None:
    """Each call of a recursive decorated function is inside the previous one."""

    @ai.compute.forward(depth="any")
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + down(n - 1)

    assert down(4) == 4
    found = found_in(finished(recorded))
    assert found == {(*(["forward"] * n), '{"depth": "any"}'): 1 for n in range(1, 6)}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_closes_every_use(
    recorded: Run, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The exception is raised, the spans that it passed through have failed, and nothing stays open."""

    def fail() -> int:
        raise error("of the user")

    monkeypatch.setattr("tests.annotations.callables.body", fail)
    expected = []
    for number, use in enumerate(USES):
        node = ai.compute.forward.derive(f"failing {number}")
        call = use.build(node, {})
        with pytest.raises(error, match="of the user"):
            plainly(call, node)
        if use.name.startswith("start and stop"):
            node.stop()
        with ai.data:
            pass
        # The body of a loop is left by its iterator being closed, which is no failure of its own.
        is_failure = "iter" not in use.name and not use.name.startswith("start and stop")
        name = node.name + use.records[-1][0]
        expected.append([(name, "error" if is_failure else "ok"), ("data", "ok", None)])
    rows = finished(recorded).select("name", "status", "parent").rows()
    ends = [number for number, row in enumerate(rows) if row[0] == "data"]
    assert ends[-1] == len(rows) - 1
    assert [[rows[end - 1][:2], rows[end]] for end in ends] == expected
