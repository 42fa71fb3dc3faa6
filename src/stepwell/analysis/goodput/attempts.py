"""The attempts of a run with their step grids, and the evidence for goodput that is read in one pass."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.goodput.rates import Joules, joules_of
from stepwell.analysis.ranks.grid import Grid, GridRow, make_grids, make_row
from stepwell.analysis.ranks.phase_intervals import find_phase_intervals
from stepwell.analysis.time.account import Liveness, RankTime, Threads, account_threads
from stepwell.analysis.time.phases import OTHER
from stepwell.journal.document import status_of, worst_of
from stepwell.reading import RecordedRun


@dataclass
class JobAttempt:
    """One attempt of a job."""

    run: str
    number: int
    start_ns: int
    end_ns: int
    status: str
    grid: Grid | None
    """None if no span was recorded that is part of a step or has a phase."""
    uncovered_ns: int | None = None
    """Time outside any span, on the rank with the most of it; None if that was not read."""

    @property
    def first_step(self) -> int | None:
        """The first step; None if there is none."""
        has_steps = self.grid is not None and len(self.grid.steps)
        return int(self.grid.steps[0]) if self.grid is not None and has_steps else None

    @property
    def done_steps(self) -> NDArray[np.int64]:
        """The steps that all ranks completed, ascending."""
        if self.grid is None:
            return np.empty(0, np.int64)
        return self.grid.steps[self.grid.complete]


def make_attempts(run: RecordedRun, evidence: Evidence) -> list[JobAttempt]:
    """Return the attempts of a run in order."""
    grids = {grid.attempt: grid for grid in evidence.grids}
    documents = [d for d in run.documents() if d["role"] != "worker"]
    attempts = []
    for number in sorted({int(d["attempt"]) for d in documents}):
        mine = [d for d in documents if d["attempt"] == number]
        grid = grids.get(number)
        status = worst_of(map(status_of, mine))
        starts = [int(d["started"]) for d in mine if d["started"]]
        ends = [int(d["heartbeat"]) for d in mine if d["heartbeat"]]
        if grid is not None:
            if status in ("failed", "interrupted"):
                _mark_failed(grid)
            # Heartbeats are seconds apart, so the last span may be closer to the time of death.
            ends.append(int(grid.last_ns.max()))
            starts = starts or [int(np.where(grid.begin > 0, grid.begin, grid.last_ns.max()).min())]
        if status == "running":
            ends.append(time.time_ns())
        if starts and ends:
            start = min(starts)
            uncovered = evidence.uncovered_ns.get(number)
            end = max(start, *ends)
            attempts.append(JobAttempt(run.id, number, start, end, status, grid, uncovered))
    return attempts


def _mark_failed(grid: Grid) -> None:
    """Mark the steps in which an exception was raised as incomplete."""
    for rank, step in grid.failed:
        column = int(np.searchsorted(grid.steps, step))
        if column < len(grid.steps) and grid.steps[column] == step:
            grid.is_done[grid.ranks.index(rank), column] = False


@dataclass
class Evidence:
    """The data of a run from which goodput is computed.

    Attributes:
        grids: one for each attempt: the phases of each rank and step.
        joules: the recorded energy of each process.
        uncovered_ns: by attempt, the time outside any span on the rank with the most of it.
    """

    grids: list[Grid]
    joules: list[Joules] = field(default_factory=list)
    uncovered_ns: dict[int, int] = field(default_factory=dict)


def read_evidence(run: RecordedRun) -> Evidence:
    """Read the evidence of a run in one pass."""
    rows: list[GridRow | None] = []
    joules, times = [], []
    for tables in run.by_process():
        joules.append(joules_of(tables))
        if tables.process.about["role"] != "worker":
            threads = Threads(tables)
            times.append(account_threads(threads, [], Liveness.now(tables.process.about)))
            rows.append(
                make_row(find_phase_intervals(tables, threads.main)) if threads.lanes else None
            )
    return Evidence(make_grids(rows), joules, uncovered_by_attempt(times))


def uncovered_by_attempt(times: Iterable[RankTime]) -> dict[int, int]:
    """Return the time outside any span, by attempt, on the rank with the most of it."""
    uncovered: dict[int, int] = {}
    for rank_time in times:
        ns = int(rank_time.cells[OTHER].sum())
        uncovered[rank_time.attempt] = max(ns, uncovered.get(rank_time.attempt, 0))
    return uncovered
