"""The attempts of a run: from when to when, and what its ranks did step by step."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.goodput.evidence import Evidence
from stepwell.analysis.ranks.grid import Grid
from stepwell.journal.liveness import status_of, worst_of
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
    """None when it recorded no span that is part of a step or has a phase."""
    uncovered_ns: int | None = None
    """How long code in no span took at most; None where that was not read."""

    @property
    def first_step(self) -> int | None:
        """The step that it began with; None when it came to none."""
        has_steps = self.grid is not None and len(self.grid.steps)
        return int(self.grid.steps[0]) if self.grid is not None and has_steps else None

    @property
    def done_steps(self) -> NDArray[np.int64]:
        """The steps that all its ranks completed, ascending."""
        if self.grid is None:
            return np.empty(0, np.int64)
        return self.grid.steps[self.grid.complete]


def make_attempts(run: RecordedRun, known: Evidence) -> list[JobAttempt]:
    """All of them, in order, from what was read of the run."""
    grids = {grid.attempt: grid for grid in known.grids}
    documents = [d for d in run.documents() if d["role"] != "worker"]
    found = []
    for number in sorted({int(d["attempt"]) for d in documents}):
        mine = [d for d in documents if d["attempt"] == number]
        grid = grids.get(number)
        status = worst_of(map(status_of, mine))
        starts = [int(d["started"]) for d in mine if d["started"]]
        ends = [int(d["heartbeat"]) for d in mine if d["heartbeat"]]
        if grid is not None:
            if status in ("failed", "interrupted"):
                _mark_failed(grid)
            # Heartbeats are seconds apart: the last span may tell better when it died.
            ends.append(int(grid.last_ns.max()))
            starts = starts or [int(np.where(grid.begin > 0, grid.begin, grid.last_ns.max()).min())]
        if status == "running":
            ends.append(time.time_ns())
        if starts and ends:
            start = min(starts)
            uncovered = known.uncovered_ns.get(number)
            end = max(start, *ends)
            found.append(JobAttempt(run.id, number, start, end, status, grid, uncovered))
    return found


def _mark_failed(grid: Grid) -> None:
    """A step that an exception went through was not completed."""
    for rank, step in grid.failed:
        column = int(np.searchsorted(grid.steps, step))
        if column < len(grid.steps) and grid.steps[column] == step:
            grid.is_done[grid.ranks.index(rank), column] = False
