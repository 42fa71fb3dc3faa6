"""The tables that ``make bench`` prints."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from statistics import median

from rich.table import Table

from benchmarks.floor import Measured
from benchmarks.row import Row
from benchmarks.runner import Outcome

Outcomes = dict[str, Outcome]


def own_table(rows: Iterable[Row], outcomes: Outcomes) -> Table:
    """Return the costs of stepwell next to their targets."""
    table = _table("Cost of recording (×: multiples of the floor)")
    for heading in ("measured", "quartiles", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row, outcome, got in _measured(rows, outcomes):
        target = "" if row.target is None else f"≤ {_number(row.target, row.unit)}"
        remark = f"{verdict(outcome)}  {got.note}".strip()
        table.add_row(row.title, _number(got.value, row.unit), _spread(got), target, remark)
    return table


def peer_table(peers: Iterable[Row], outcomes: Outcomes) -> Table:
    """Return the costs of other tools, and how many times cheaper stepwell is."""
    table = _table("Other tools (CPU time of the calling thread, ×: multiples of the floor)")
    for heading in ("measured", "quartiles", "stepwell", "cheaper by", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row, outcome, got in _measured(peers, outcomes):
        ours = outcomes.get(row.like)
        times = times_cheaper(outcome, ours)
        table.add_row(
            row.title,
            _number(got.value, "×"),
            _spread(got),
            "" if ours is None or ours.measured is None else _number(ours.measured.value, "×"),
            "" if times is None else _number(times, "×"),
            "" if row.target is None else f"≥ {_number(row.target, '×')}",
            verdict(outcome, ours),
        )
    return table


def missing(outcomes: Outcomes) -> list[str]:
    """Return a line for each row without a result."""
    return [f"{o.row.title}: {o.why}" for o in outcomes.values() if o.measured is None]


def times_cheaper(peer: Outcome, ours: Outcome | None) -> float | None:
    """Return how many times cheaper stepwell is than this tool."""
    if peer.measured is None or ours is None or ours.measured is None:
        return None
    return peer.measured.value / ours.measured.value


def verdict(outcome: Outcome, ours: Outcome | None = None) -> str:
    """Return "ok" if the target is met, otherwise "over" (for a peer: "under"); "" without a target."""
    target, measured = outcome.row.target, outcome.measured
    if target is None or measured is None:
        return ""
    if not outcome.row.like:
        return "ok" if measured.value <= target else "over"
    times = times_cheaper(outcome, ours)
    if times is None:
        return ""
    return "ok" if times >= target else "under"


def machine(outcomes: Iterable[Outcome]) -> str:
    """Return a description of the machine and of the noise."""
    floors = [o.measured.floor_ns for o in outcomes if o.measured and o.measured.floor_ns]
    where = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()}"
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    text = f"{where} {platform.machine()}, {os.cpu_count()} cores{load}."
    if floors:
        text += (
            f" The floor took {median(floors):.0f} ns per span, {min(floors):.0f} to"
            f" {max(floors):.0f} from row to row. The ratios remove most of that noise;"
            " about 10 % remain on a quiet machine, more on a busy one."
        )
    return text


def _measured(rows: Iterable[Row], outcomes: Outcomes) -> Iterable[tuple[Row, Outcome, Measured]]:
    for row in rows:
        outcome = outcomes.get(row.name)
        if outcome is not None and outcome.measured is not None:
            yield row, outcome, outcome.measured


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    return table


def _spread(measured: Measured) -> str:
    if measured.low == measured.high:
        return ""
    return f"{_digits(measured.low)} – {_digits(measured.high)}"


def _number(value: float, unit: str) -> str:
    return f"{_digits(value)} {unit}"


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
