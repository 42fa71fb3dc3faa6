"""The records that exporters should get, from a run's tables, and those that a file exporter wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

import stepwell
from stepwell import Run
from stepwell.exporters import EventRecord, Exporter, Record, Source, SpanRecord
from stepwell.reading.tables import PROCESS_BITS

OWN = (1 << PROCESS_BITS) - 1
"""The part of a table's span ids that tells the spans of one process apart."""


class Keeps(Exporter):
    """An exporter that keeps what it is given."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.records: list[Record] = []
        self.calls: list[str] = []

    def open(self, source: Source) -> None:
        self.sources.append(source)
        self.calls.append("open")

    def export(self, records: Sequence[Record]) -> None:
        self.records += records
        self.calls.append("export")

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


def _parse_strictly(text: str) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, every one of them strict JSON."""
    return [_parse_strictly(line) for line in path.read_text().split("\n") if line]


Span = tuple[str, int | None, str, int, int, str, str]
"""name, parent, thread, start, duration, status, attributes as JSON text.

The start is counted from that of the first span: an exporter knows the wall clock by what it showed when
the run began, the tables by all that it showed.
"""


def recorded_spans(run: Run, process: str | None = None) -> dict[int, Span]:
    """The spans of this process by id, from the run's tables."""
    frame = stepwell.open_run(run.path).spans()
    if process is not None:
        frame = frame.filter(pl.col("process") == process)
    rows = frame.collect().to_dicts()
    first = min((row["start_ns"] for row in rows), default=0)
    return {
        row["id"] & OWN: (
            row["name"],
            None if row["parent"] is None else row["parent"] & OWN,
            row["thread"],
            row["start_ns"] - first,
            row["duration_ns"],
            row["status"],
            _text(json.loads(row["attributes"] or "{}")),
        )
        for row in rows
    }


def _text(attributes: dict[str, Any]) -> str:
    return json.dumps(attributes, separators=(",", ":"), ensure_ascii=False)


def exported_spans(records: Iterable[Record]) -> dict[int, Span]:
    """The same from the records that ended a span; each one must have been given once."""
    found: dict[int, Span] = {}
    spans = [record for record in records if isinstance(record, SpanRecord)]
    first = min((span.start_ns for span in spans), default=0)
    for record in spans:
        if record.type != "start":
            assert record.id not in found
            assert record.end_ns is not None
            found[record.id] = (
                record.name,
                record.parent,
                record.thread,
                record.start_ns - first,
                record.end_ns - record.start_ns,
                record.status,
                _text(record.attributes),
            )
    return found


def spans_in_lines(lines: Iterable[dict[str, Any]]) -> dict[int, Span]:
    """The same from the lines of a file."""
    found: dict[int, Span] = {}
    lines = list(lines)
    first = min((line["start_ns"] for line in lines if "start_ns" in line), default=0)
    for line in lines:
        if line["type"] in ("stop", "complete"):
            assert line["id"] not in found
            assert line["end_ns"] == line["start_ns"] + line["duration_ns"]
            found[line["id"]] = (
                line["name"],
                line["parent"],
                line["thread"],
                line["start_ns"] - first,
                line["duration_ns"],
                line["status"],
                _text(line["attributes"]),
            )
    return found


def recorded_events(run: Run) -> list[tuple[str, int | None, int, str]]:
    """(name, span, time, attributes) of the events, from the run's tables; times as of spans."""
    rows = stepwell.open_run(run.path).events().collect().to_dicts()
    first = min((row["time_ns"] for row in rows), default=0)
    return sorted(
        (
            row["name"],
            None if row["span"] is None else row["span"] & OWN,
            row["time_ns"] - first,
            _text(json.loads(row["attributes"] or "{}")),
        )
        for row in rows
    )


def exported_events(records: Iterable[Record]) -> list[tuple[str, int | None, int, str]]:
    """The same from records."""
    events = [r for r in records if isinstance(r, EventRecord) and r.type != "attributes"]
    first = min((event.time_ns for event in events), default=0)
    return sorted((r.name, r.span, r.time_ns - first, _text(r.attributes)) for r in events)


def numbers(records: Iterable[Record], name: str = "item") -> list[int]:
    """The attribute ``i`` of the spans of a name that were given to their end, in their order."""
    ended = [r for r in records if r.name == name and r.type in ("stop", "complete")]
    return [r.attributes["i"] for r in ended]


def train(begin: int, count: int, pause: Callable[[], None] = lambda: None) -> None:
    """Record something of every kind."""
    for i in range(begin, begin + count):
        with stepwell.span("outer", i=i):
            with stepwell.span("item", i=i, note="größer\n"):
                stepwell.event("tick", i=i, nothing=float("nan"))
            with stepwell.span("plain"):
                pass
        pause()
