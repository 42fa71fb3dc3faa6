"""For tests that compare all that a job left with what was worked out by hand.

A job is a list of rows, depth first: a span, its events, then the spans inside it. Times are seconds since
the fake clock began.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from stepwell.testing import BEGIN, FakeClock, TestRun, recorded
from stepwell.training import TrainingTelemetryConfig, TrainingTelemetryProvider


@dataclass(frozen=True)
class Row:
    """A span or an event; ``depth`` is the number of spans around it."""

    depth: int
    name: str
    time: float
    took: float | None
    status: str | None
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ends:
    """Stands for any text that ends so."""

    end: str


def span(
    depth: int,
    name: str,
    start: float,
    took: float,
    attributes: Mapping[str, Any] | None = None,
    status: str = "ok",
) -> Row:
    """A span that is expected."""
    return Row(depth, name, start, took, status, attributes or {})


def event(depth: int, name: str, time: float, attributes: Mapping[str, Any]) -> Row:
    """An event that is expected; its depth is one more than that of its span."""
    return Row(depth, name, time, None, None, attributes)


def columns(table: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The columns of a table whose rows are attributes; None is an attribute that is absent."""
    count = len(next(iter(table.values())))
    assert all(len(values) == count for values in table.values())
    return [
        {name: values[i] for name, values in table.items() if values[i] is not None}
        for i in range(count)
    ]


@contextmanager
def job(clock: FakeClock | None = None, **config: Any) -> Iterator[tuple[FakeClock, TestRun]]:
    """A run on a fake clock with this configuration, in which any misuse raises."""
    provider = TrainingTelemetryProvider.instance()
    with clock or FakeClock() as started, recorded() as run:
        provider.configure(TrainingTelemetryConfig(**config, strict=True))
        try:
            yield started, run
        finally:
            provider.reset()


def rows(run: TestRun) -> list[Row]:
    """All that a run has recorded."""
    events: dict[Any, list[Row]] = {}
    inside: dict[Any, list[dict[str, Any]]] = {}
    for it in run.events().sort("time_ns", maintain_order=True).to_dicts():
        found = events.setdefault(it["span"], [])
        found.append(Row(0, it["name"], _time(it["time_ns"]), None, None, _read(it)))
    for it in run.spans().sort("start_ns", "id").to_dicts():
        inside.setdefault(it["parent"], []).append(it)

    def walk(id: Any, depth: int) -> Iterator[Row]:
        for found in events.get(id, []):
            yield Row(depth, found.name, found.time, None, None, found.attributes)
        for it in inside.get(id, []):
            took = None if it["duration_ns"] is None else it["duration_ns"] / 1e9
            yield Row(depth, it["name"], _time(it["start_ns"]), took, it["status"], _read(it))
            yield from walk(it["id"], depth + 1)

    left = list(walk(None, 0))
    assert len(left) == len(run.spans()) + len(run.events())
    return left


def updates(run: TestRun, name: str = "training_metrics_update") -> list[Mapping[str, Any]]:
    """The attributes of all events of this name, in the order of time."""
    found = run.events().sort("time_ns", maintain_order=True).to_dicts()
    return [_read(it) for it in found if it["name"] == name]


def assert_rows(found: Sequence[Row], expected: Sequence[Row]) -> None:
    """The same spans and events in the same places, with the same attributes and no others."""
    shape = [(row.depth, row.name, row.status) for row in expected]
    assert [(row.depth, row.name, row.status) for row in found] == shape
    for left, right in zip(found, expected, strict=True):
        place = f"{right.name} at {right.time}"
        assert math.isclose(left.time, right.time, abs_tol=1e-6), f"{place}: {left.time}"
        assert left.took == right.took, f"{place}: {left.took}, not {right.took}"
        assert_attributes(left.attributes, right.attributes, place)


def assert_attributes(
    found: Mapping[str, Any], expected: Mapping[str, Any], place: str = ""
) -> None:
    """The same names, and values that are the same but for the last digit of a float."""
    assert sorted(found) == sorted(expected), place
    wrong = {
        name: (found[name], value)
        for name, value in expected.items()
        if not _is_same(found[name], value)
    }
    assert not wrong, f"{place}: found and expected: {wrong}"


def at(seconds: float) -> float:
    """A time since the start of the clock, as in attributes."""
    return float(BEGIN + seconds)


def _is_same(found: Any, expected: Any) -> bool:
    if isinstance(expected, Ends):
        return isinstance(found, str) and found.endswith(expected.end)
    if type(found) is not type(expected):
        return False
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-14)
    return bool(found == expected)


def _time(ns: int) -> float:
    return (ns - BEGIN * 1_000_000_000) / 1e9


def _read(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row["attributes"] or "{}")
    return found
