"""What the goodput of a run is worked out from, read in one pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepwell.analysis.goodput.rates import Joules, joules_of
from stepwell.analysis.ranks.grid import Grid, GridRow, make_grids, make_row
from stepwell.analysis.ranks.stretches import stretches_of
from stepwell.analysis.time.account import Liveness, RankTime, Threads, account_threads
from stepwell.analysis.time.words import OTHER
from stepwell.reading import RecordedRun


@dataclass
class Evidence:
    """The attempts of a run, and the energy that each of its processes tells of.

    Attributes:
        uncovered_ns: by attempt, how long code in no span took on the rank with the most of it.
    """

    grids: list[Grid]
    joules: list[Joules] = field(default_factory=list)
    uncovered_ns: dict[int, int] = field(default_factory=dict)


def read_evidence(run: RecordedRun) -> Evidence:
    """Read a run once."""
    rows: list[GridRow | None] = []
    joules, times = [], []
    for tables in run.by_process():
        joules.append(joules_of(tables))
        if tables.process.about["role"] != "worker":
            threads = Threads(tables)
            times.append(account_threads(threads, [], Liveness.now(tables.process.about)))
            rows.append(make_row(stretches_of(tables, threads.main)) if threads.lanes else None)
    return Evidence(make_grids(rows), joules, uncovered_by_attempt(times))


def uncovered_by_attempt(times: Iterable[RankTime]) -> dict[int, int]:
    """Return the nanoseconds in no span, by attempt, of the rank with the most of them."""
    found: dict[int, int] = {}
    for time in times:
        ns = int(time.cells[OTHER].sum())
        found[time.attempt] = max(ns, found.get(time.attempt, 0))
    return found
