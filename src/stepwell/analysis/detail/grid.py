"""The rank grid for one screen: the time of every rank in every step of one phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.ranks.grid import Grid, read_grids
from stepwell.reading import RecordedRun

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_WIDTH, MAX_HEIGHT = 4096, 4096
MAX_CELLS = 2_000_000


@dataclass(frozen=True)
class GridWindow:
    """A part of a rank grid.

    Attributes:
        phases: the phases of the attempt.
        attempts: the attempts of the run.
        ranks: the first rank of each row; a row may stand for several ranks.
        steps: the first step of each column; a column may stand for several steps.
        rank_count: the number of ranks in the part.
        step_count: the number of steps in the part.
        values: the longest time in ns by row and column; NaN where nothing was recorded.
        median_ns: the median of the times of all ranks and steps in the part.
    """

    phase: str
    phases: list[str]
    attempts: list[int]
    attempt: int
    ranks: list[int]
    steps: list[int]
    rank_count: int
    step_count: int
    values: Floats
    median_ns: int


def grid_at(
    run: RecordedRun,
    phase: str | None = None,
    *,
    attempt: int | None = None,
    ranks: Sequence[int] | None = None,
    steps: tuple[int, int] | None = None,
    width: int = 1200,
    height: int = 600,
) -> GridWindow:
    """Return the times of ranks and steps in a phase, with at most ``width`` by ``height`` cells.

    Args:
        run: the run.
        phase: the phase; None, or a phase that was not recorded, for the one with the most time.
        attempt: the attempt; None for the latest one.
        ranks: only these ranks.
        steps: the first and the last step, both included.
        width: the maximum number of columns.
        height: the maximum number of rows.
    """
    grids = read_grids(run)
    if not grids:
        return GridWindow(phase or "", [], [], 0, [], [], 0, 0, np.empty((0, 0)), 0)
    by_attempt = {grid.attempt: grid for grid in grids}
    grid = by_attempt[attempt] if attempt in by_attempt else grids[-1]
    totals = {name: grid.total(name) for name in grid.phases}
    if phase not in totals:
        phase = max(totals, key=lambda name: int(totals[name].sum()), default="")
    values = totals.get(phase, np.zeros_like(grid.begin))
    values = np.where(grid.begin >= 0, values, -1)
    return _window(
        grid, phase, list(totals), sorted(by_attempt), values, ranks, steps, width, height
    )


def _window(
    grid: Grid,
    phase: str,
    phases: list[str],
    attempts: list[int],
    values: Ints,
    ranks: Sequence[int] | None,
    steps: tuple[int, int] | None,
    width: int,
    height: int,
) -> GridWindow:
    numbers = np.array(grid.ranks, np.int64)
    rows = np.arange(len(numbers)) if ranks is None else np.flatnonzero(np.isin(numbers, ranks))
    first, last = (
        (0, len(grid.steps))
        if steps is None
        else (
            int(np.searchsorted(grid.steps, steps[0])),
            int(np.searchsorted(grid.steps, steps[1], side="right")),
        )
    )
    part = values[rows, first:last]
    columns = grid.steps[first:last]
    known = part[part >= 0]
    row_starts = _starts(part.shape[0], min(max(1, height), MAX_HEIGHT))
    column_starts = _starts(part.shape[1], min(max(1, width), MAX_WIDTH))
    if part.size:
        part = np.maximum.reduceat(part, column_starts, axis=1)
        part = np.maximum.reduceat(part, row_starts, axis=0)
    return GridWindow(
        phase=phase,
        phases=phases,
        attempts=attempts,
        attempt=grid.attempt,
        ranks=numbers[rows][row_starts].tolist(),
        steps=columns[column_starts].tolist(),
        rank_count=len(rows),
        step_count=len(columns),
        values=np.where(part >= 0, part, np.nan),
        median_ns=int(np.median(known)) if len(known) else 0,
    )


def _starts(count: int, most: int) -> Ints:
    """Return the first index of each of at most so many groups of equal size."""
    size = max(1, -(-count // most))
    return np.arange(0, count, size)
