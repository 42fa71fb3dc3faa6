"""Following a run, and holding what came of it against what the run's tables say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl

import stepwell
from stepwell.follower.records import EventRecord, SpanRecord
from stepwell.follower.trace import Follower
from stepwell.journal.format import PROCESS

Record = SpanRecord | EventRecord


def process_folder(run: Path) -> Path:
    """The folder of the one process of a run."""
    (folder,) = (path.parent for path in run.glob(f"*/{PROCESS}"))
    return folder


class Following:
    """A follower and all records that it has returned."""

    def __init__(self, run: Path, keep: Callable[[str], bool] | None = None) -> None:
        self.run = run
        self.keep = keep or (lambda name: True)
        self.follower = Follower(process_folder(run), self.keep)
        self.records: list[Record] = []

    def poll(self) -> list[Record]:
        """One look."""
        new = self.follower.poll()
        self.records += new
        return new

    def to_end(self) -> None:
        """Poll until all records of an ended process were returned."""
        while not self.follower.over:
            before = len(self.records)
            self.poll()
            assert self.follower.over or len(self.records) > before, "it gives nothing more"

    def of(self, type: str, name: str | None = None) -> list[Any]:
        """The records of a type, and of a name."""
        return [r for r in self.records if r.type == type and name in (None, r.name)]

    def check(self) -> None:
        """Exactly the kept spans of the run were returned: once, in order, with the right content."""
        check_order(self.records)
        table = spans_of(self.run, self.follower.folder.name)
        wanted = {key: row for key, row in table.items() if self.keep(row["name"])}
        starts = {r.id: r for r in self.of("start")}
        stops = {r.id: r for r in self.of("stop")}
        assert len(self.of("start")) == len(starts)
        assert len(self.of("stop")) == len(stops)
        assert starts.keys() == wanted.keys()
        assert stops.keys() == {key for key in wanted if wanted[key]["status"] != "open"}
        shifts = {r.start_ns - wanted[r.id]["start_ns"] for r in starts.values()}
        assert len(shifts) <= 1
        assert all(abs(shift) < 1e9 for shift in shifts)
        for key, row in wanted.items():
            parent = nearest_kept(table, row["parent"], self.keep)
            expected = (row["name"], row["category"], parent, row["thread"])
            assert seen_as(starts[key]) == expected, (key, row, starts[key])
            if key in stops:
                self._check_stop(stops[key], row, parent)
        self._check_events(table)

    def _check_stop(self, stop: SpanRecord, row: dict[str, Any], parent: int | None) -> None:
        assert seen_as(stop) == (row["name"], row["category"], parent, row["thread"])
        assert stop.status == row["status"]
        assert stop.end_ns is not None
        if row["duration_ns"] is not None:
            assert stop.end_ns - stop.start_ns == row["duration_ns"]
        assert stop.attributes == json.loads(row["attributes"] or "{}")

    def _check_events(self, table: dict[int, dict[str, Any]]) -> None:
        recorded = stepwell.open_run(self.run)
        process = self.follower.folder.name
        rows = recorded.events().filter(pl.col("process") == process).collect().to_dicts()
        wanted = []
        for row in rows:
            own = None if row["span"] is None else row["span"] % (1 << 32)
            span = nearest_kept(table, own, self.keep)
            if span == own or row["name"] == "error":
                wanted.append((row["name"], span, json.loads(row["attributes"] or "{}")))
        given = [r for r in self.records if isinstance(r, EventRecord) and r.type != "attributes"]
        returned = [(r.name, r.span, r.attributes) for r in given if r.name != "artifact"]
        assert sorted(returned, key=str) == sorted(wanted, key=str)


def seen_as(record: SpanRecord) -> tuple[Any, ...]:
    """What a record says of a span besides its times."""
    return record.name, record.category, record.parent, record.thread


def spans_of(run: Path, process: str) -> dict[int, dict[str, Any]]:
    """The spans of a process by their ids, as ``open_run`` reads them."""
    table = stepwell.open_run(run).spans().filter(pl.col("process") == process).collect()
    return {row["id"] % (1 << 32): row for row in table.to_dicts()}


def nearest_kept(
    table: dict[int, dict[str, Any]], key: int | None, keep: Callable[[str], bool]
) -> int | None:
    """The first of a span and its ancestors that is kept."""
    while key is not None:
        key %= 1 << 32
        if keep(table[key]["name"]):
            return key
        key = table[key]["parent"]
    return None


def check_order(records: Iterable[Record]) -> None:
    """A span starts before its children and its events, and stops after its events."""
    begun: set[int] = set()
    ended: set[int] = set()
    for record in records:
        if isinstance(record, EventRecord):
            assert record.span is None or record.span in begun, record
            assert record.type != "event" or record.span not in ended, record
        elif record.type == "start":
            assert record.id not in begun, record
            assert record.parent is None or record.parent in begun, record
            begun.add(record.id)
        else:
            assert record.id in begun, record
            assert record.id not in ended, record
            ended.add(record.id)
