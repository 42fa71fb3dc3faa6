"""Compares what a killed process recorded with the book that it kept."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tests.durability.workload import (
    BLOCK_IN,
    BLOCK_OUT,
    EVENT,
    ITEM_IN,
    ITEM_LEAVING,
    ITEM_OUT,
    ITEMS_PER_BLOCK,
    ITEMS_PER_EVENT,
    ITEMS_PER_NAME,
    LEAF_IN,
    LEAF_OUT,
    LEAVES,
    METRIC,
    NAME,
    ROOT_IN,
    THREADS,
    WORKERS,
    Book,
    item_attributes,
)


@dataclass
class Tables:
    """The tables of one run, by name of the record."""

    run: Any
    spans: dict[str, pl.DataFrame] = field(default_factory=dict)
    opened: dict[str, pl.DataFrame] = field(default_factory=dict)
    metrics: dict[str, pl.DataFrame] = field(default_factory=dict)
    events: dict[str, pl.DataFrame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spans = _by_name(self.run.spans().sort("process", "id").collect())
        self.opened = _by_name(self.run.open_spans().collect())
        self.metrics = _by_name(self.run.metrics().sort("time_ns").collect())
        self.events = _by_name(self.run.events().sort("time_ns").collect())

    def height(self) -> int:
        return sum(frame.height for frame in self.spans.values())


def _by_name(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {key[0]: part for key, part in frame.partition_by("name", as_dict=True).items()}


EMPTY: dict[str, list[Any]] = {
    key: [] for key in ("id", "parent", "status", "attributes", "value", "step", "span", "thread")
}


def column(frames: dict[str, pl.DataFrame], name: str, key: str) -> list[Any]:
    """One column of the records of a name; empty when there are none."""
    return frames[name][key].to_list() if name in frames else EMPTY[key]


def verify(tables: Tables, book: Book) -> None:
    """Every record whose call had returned is there, whole, and under the right parent."""
    assert not [n for n in tables.spans if "lost" in n]
    for number in range(THREADS):
        _verify_thread(tables, book.thread(number), number)
    for epoch in range(10_000):
        rows = [book.worker(epoch, number) for number in range(WORKERS)]
        if not any(row[ITEM_IN] for row in rows):
            break
        for number, row in enumerate(rows):
            who = f"w{epoch}-{number}"
            ids = _verify_items(tables, row, who, 40)
            assert column(tables.spans, f"item-{who}", "parent") == [None] * len(ids)


def _verify_thread(tables: Tables, row: memoryview, number: int) -> None:
    who = str(number)
    items = _verify_items(tables, row, who, LEAVES[number])
    roots = column(tables.spans, f"root-{who}", "id")
    blocks = column(tables.spans, f"block-{who}", "id")
    assert row[ROOT_IN] <= len(roots) <= 1
    assert row[BLOCK_IN] <= len(blocks) <= row[BLOCK_IN] + 1
    assert column(tables.spans, f"block-{who}", "parent") == roots * len(blocks)
    parents = [blocks[i // ITEMS_PER_BLOCK] for i in range(len(items))]
    assert column(tables.spans, f"item-{who}", "parent") == parents
    assert column(tables.opened, f"root-{who}", "id") == roots
    inside = column(tables.opened, f"block-{who}", "id")
    # After its last item a block may end at any moment.
    leaving = row[ITEM_OUT] // ITEMS_PER_BLOCK
    _verify_open(inside, blocks, row[BLOCK_IN], leaving, row[BLOCK_OUT])
    for name in (f"root-{who}", f"block-{who}", f"item-{who}", f"leaf-{who}"):
        assert set(column(tables.spans, name, "thread")) <= {f"thread-{number}"}
        assert set(column(tables.opened, name, "thread")) <= {f"thread-{number}"}


def _verify_items(tables: Tables, row: memoryview, who: str, leaves: int) -> list[int]:
    name = f"item-{who}"
    ids = column(tables.spans, name, "id")
    count = len(ids)
    assert row[ITEM_IN] <= count <= row[ITEM_IN] + 1
    expected = [item_attributes(who, i) for i in range(count)]
    assert [json.loads(a) for a in column(tables.spans, name, "attributes")] == expected
    closed = [s == "ok" for s in column(tables.spans, name, "status")]
    assert all(closed[: row[ITEM_OUT]])
    inside = column(tables.opened, name, "id")
    _verify_open(inside, ids, row[ITEM_IN], row[ITEM_LEAVING], row[ITEM_OUT])
    _verify_leaves(tables, row, who, leaves, ids)
    _verify_metrics(tables, row, who)
    _verify_events(tables, row, who, ids)
    new = [n for n in tables.spans if n.startswith(f"new-{who}-")]
    wanted = {f"new-{who}-{ITEMS_PER_NAME * k}" for k in range(row[NAME])}
    assert wanted <= set(new)
    for n in new:
        assert column(tables.spans, n, "parent") == [ids[int(n.rpartition("-")[2])]]
    return ids


def _verify_open(inside: list[int], ids: list[int], entered: int, leaving: int, left: int) -> None:
    """The spans of a thread are open; during a call the innermost one may be open or not yet."""
    may = set(ids[left:])
    must = {ids[entered - 1]} if entered > max(leaving, left) else set()
    assert must <= set(inside) <= may, (inside, ids[-3:], entered, leaving, left)
    assert len(inside) <= 1


def _verify_leaves(
    tables: Tables, row: memoryview, who: str, leaves: int, items: list[int]
) -> None:
    name = f"leaf-{who}"
    parents = column(tables.spans, name, "parent")
    assert row[LEAF_IN] <= len(parents) <= row[LEAF_IN] + 1
    assert parents == [items[n // leaves] for n in range(len(parents))]
    status = column(tables.spans, name, "status")
    assert set(status[: row[LEAF_OUT]]) <= {"ok"}
    opened = column(tables.opened, name, "parent")
    assert len(opened) <= 1
    assert opened == parents[len(parents) - len(opened) :]
    assert len(opened) == status.count("open") == len(status) - status.count("ok")


def _verify_metrics(tables: Tables, row: memoryview, who: str) -> None:
    a, b = column(tables.metrics, f"a-{who}", "value"), column(tables.metrics, f"b-{who}", "value")
    for values, sign in ((a, 1), (b, -1)):
        assert row[METRIC] <= len(values) <= row[METRIC] + 1
        assert values == [sign * float(i) for i in range(len(values))]
    assert column(tables.metrics, f"a-{who}", "step") == list(range(len(a)))
    assert len(a) - len(b) in (0, 1)


def _verify_events(tables: Tables, row: memoryview, who: str, items: list[int]) -> None:
    attributes = [json.loads(a) for a in column(tables.events, f"event-{who}", "attributes")]
    assert row[EVENT] <= len(attributes) <= row[EVENT] + 1
    expected = [item_attributes(who, ITEMS_PER_EVENT * k) for k in range(len(attributes))]
    assert attributes == expected
    spans = column(tables.events, f"event-{who}", "span")
    assert spans == [items[ITEMS_PER_EVENT * k] for k in range(len(attributes))]
