"""Looking at the spans of a run as a tree."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import polars as pl

import stepwell
from stepwell import Run

SLOTS = 16383
"""Spans that fit into one segment: slot 0 is none."""


def finished(run: Run) -> pl.DataFrame:
    """The spans of a run, which is finished for it, in the order in which they began."""
    run.finish()
    return read(run)


def read(run: Run) -> pl.DataFrame:
    """The spans of a run as they are now, checked to be a tree."""
    spans = stepwell.open_run(run.path).spans().collect().sort("start_ns", "id")
    check_tree(spans)
    return spans


def check_tree(spans: pl.DataFrame) -> None:
    """Every id is there once; every parent exists, began earlier and is one level up."""
    assert spans["id"].n_unique() == spans.height
    above = spans.select(parent="id", above_start="start_ns", above_depth="depth")
    inner = spans.filter(pl.col("parent").is_not_null()).join(above, on="parent", how="left")
    assert inner.filter(pl.col("above_start").is_null())["name"].to_list() == []
    assert inner.filter(pl.col("above_start") > pl.col("start_ns"))["name"].to_list() == []
    assert inner.filter(pl.col("above_depth") + 1 != pl.col("depth"))["name"].to_list() == []
    roots = spans.filter(pl.col("parent").is_null())
    assert roots.filter(pl.col("depth") != 0)["name"].to_list() == []


def edges(spans: pl.DataFrame) -> Counter[tuple[str, str | None]]:
    """How often a span of a name is inside a span of another name (None: in none)."""
    above = spans.select(parent="id", above="name")
    pairs = spans.join(above, on="parent", how="left").select("name", "above")
    return Counter(pairs.iter_rows())


def attributes(spans: pl.DataFrame, name: str) -> list[Any]:
    """The attribute sets of the spans of a name, as Python values."""
    texts = spans.filter(pl.col("name") == name)["attributes"]
    return [None if text is None else json.loads(text) for text in texts]


def statuses(spans: pl.DataFrame) -> Counter[tuple[str, str]]:
    """How often a span of a name has a status."""
    return Counter(spans.select("name", "status").iter_rows())


def events(run: Run) -> list[tuple[str, str | None, Any]]:
    """The events of a run: name, the span they are on, attributes."""
    recorded = stepwell.open_run(run.path)
    names = dict(recorded.spans().select("id", "name").collect().iter_rows())
    table = recorded.events().collect().sort("time_ns")
    return [
        (name, None if span is None else names[span], json.loads(text) if text else {})
        for name, span, text in table.select("name", "span", "attributes").iter_rows()
    ]
