"""A reader that polls a run at full speed while it is written, and checks all that it sees.

As a program: ``watcher.py <folder of runs>``; it polls until its standard input ends, and prints after
each poll how many records it saw. Anything wrong is an exception, and so a non-zero exit.
"""

from __future__ import annotations

import json
import select
import sys
from collections import Counter
from typing import Any

import polars as pl

import stepwell
from tests.durability.workload import item_attributes


def watch(root: str) -> None:
    """Poll until standard input ends."""
    before: dict[str, Counter[str]] = {}
    checked: set[int] = set()
    while not select.select([sys.stdin], [], [], 0)[0]:
        for run in stepwell.list_runs(root):
            print(poll(run, before, checked), flush=True)


def poll(run: Any, before: dict[str, Counter[str]], checked: set[int]) -> int:
    """Read all tables once; returns the number of rows."""
    tables = {
        "spans": run.spans().collect(),
        "open": run.open_spans().collect(),
        "metrics": run.metrics().collect(),
        "events": run.events().collect(),
    }
    assert run.processes().collect().height > 0
    check_spans(tables["spans"])
    check_tree(tables["spans"])
    check_spans(tables["open"])
    check_attributes(tables["spans"], checked)
    check_metrics(tables["metrics"])
    for text in tables["events"]["attributes"]:
        content = json.loads(text)
        assert content == item_attributes(content["who"], content["i"])
    for kind in ("spans", "metrics", "events"):
        check_growth(kind, tables[kind], before)
    return sum(table.height for table in tables.values())


def check_growth(kind: str, table: pl.DataFrame, before: dict[str, Counter[str]]) -> None:
    """Rows that were read once remain."""
    now = Counter(table["name"].to_list())
    less = {
        name: (n, now[name]) for name, n in before.get(kind, Counter()).items() if now[name] < n
    }
    assert not less, f"{kind} became fewer: {less}"
    before[kind] = now


def check_spans(spans: pl.DataFrame) -> None:
    """No name is unknown, no attribute set is missing, no depth is wrong."""
    kind = pl.col("name").str.split("-").list.first()
    strange = spans.filter(~kind.is_in(["root", "block", "item", "leaf", "new", "epoch"]))
    assert strange.is_empty(), strange
    assert spans["id"].is_unique().all()
    torn = spans.filter(kind.is_in(["root", "item"]) != pl.col("attributes").is_not_null())
    assert torn.is_empty(), torn
    level = kind.replace_strict({"root": 0, "block": 1, "item": 2, "epoch": 0}, default=3)
    in_worker = pl.col("process").str.contains("worker")
    wrong = spans.filter(pl.col("depth") != level - pl.when(in_worker).then(2).otherwise(0))
    assert wrong.is_empty(), wrong
    assert (spans["parent"].is_null() == (spans["depth"] == 0)).all()


def check_tree(spans: pl.DataFrame) -> None:
    """Every parent is there; ended spans have a duration, and all others are open."""
    child = spans.filter(pl.col("parent").is_not_null())
    orphans = child.join(spans, left_on="parent", right_on="id", how="anti")
    assert orphans.is_empty(), orphans
    assert set(spans["status"].unique()) <= {"ok", "open"}, spans["status"].value_counts()
    assert (spans["duration_ns"].drop_nulls() >= 0).all()
    assert (spans["duration_ns"].is_not_null() == (spans["status"] == "ok")).all()


def check_attributes(spans: pl.DataFrame, checked: set[int]) -> None:
    """New rows are complete."""
    items = spans.filter(pl.col("name").str.starts_with("item-"))
    for number, name, text in items.select("id", "name", "attributes").iter_rows():
        if number not in checked:
            content = json.loads(text)
            assert content == item_attributes(name[5:], content["i"]), text
            checked.add(number)


def check_metrics(metrics: pl.DataFrame) -> None:
    """Value, step and time belong together."""
    sign = pl.when(pl.col("name").str.starts_with("a-")).then(1).otherwise(-1)
    torn = metrics.filter(pl.col("value") != sign * pl.col("step"))
    assert torn.is_empty(), torn
    assert (metrics["time_ns"] > 1_600_000_000_000_000_000).all()


if __name__ == "__main__":
    watch(sys.argv[1])
