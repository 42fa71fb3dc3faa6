"""The rank grid for one screen: the time of every rank in every step of one phase."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell._core import clock
from stepwell.analysis.cache import (
    Blobs,
    CachedShelf,
    Shelf,
    memory,
    memory_shelf,
    shelf_path,
)
from stepwell.analysis.detail.source import RunSource
from stepwell.analysis.ranks.grid import read_grids
from stepwell.reading import RecordedRun

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_WIDTH, MAX_HEIGHT = 4096, 4096
MEDIAN_CELLS = 4_000_000
"""Of larger parts, the median is that of evenly spaced cells."""
PIECE_BYTES = 32 << 20
"""Unpacked size of a piece of a grid in the cache."""
LEAST_AGE_S = 2.0
REST = 10
"""The grid of a live run is used for this long, and for this many times the time that it took."""


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
    stored = _StoredGrids(run)
    attempts = stored.attempts
    if not attempts:
        return GridWindow(phase or "", [], [], 0, [], [], 0, 0, np.empty((0, 0)), 0)
    chosen = attempt if attempt in attempts else attempts[-1]
    times = stored.phases(chosen)
    if phase not in times:
        phase = max(times, key=lambda name: times[name], default="")
    all_ranks, all_steps = stored.ranks(chosen), stored.steps(chosen)
    rows = np.arange(len(all_ranks))
    if ranks is not None:
        rows = np.flatnonzero(np.isin(all_ranks, np.array(list(ranks), np.int64)))
    first, end = 0, len(all_steps)
    if steps is not None:
        first = int(np.searchsorted(all_steps, steps[0]))
        end = int(np.searchsorted(all_steps, steps[1], side="right"))
    row_starts = _starts(len(rows), min(max(1, height), MAX_HEIGHT))
    column_starts = _starts(end - first, min(max(1, width), MAX_WIDTH))
    values = np.empty((0, len(column_starts)), np.int64)
    known: list[Ints] = [np.empty(0, np.int64)]
    if len(rows) and end > first:
        parts = []
        stride = max(1, len(rows) * (end - first) // MEDIAN_CELLS)
        for part in stored.pieces(chosen, phase, rows):
            part = part[:, first:end]
            known.append(part.ravel()[::stride])
            parts.append(np.maximum.reduceat(part, column_starts, axis=1))
        values = np.maximum.reduceat(np.concatenate(parts), row_starts, axis=0)
    times_known = np.concatenate(known)
    times_known = times_known[times_known >= 0]
    return GridWindow(
        phase=phase,
        phases=list(times),
        attempts=attempts,
        attempt=chosen,
        ranks=all_ranks[rows][row_starts].tolist(),
        steps=all_steps[first:end][column_starts].tolist(),
        rank_count=len(rows),
        step_count=end - first,
        values=np.where(values >= 0, values, np.nan),
        median_ns=int(np.median(times_known)) if len(times_known) else 0,
    )


class _StoredGrids:
    """The times of all ranks, steps and phases of a run, in the cache."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        source = RunSource(run)
        if source.is_live:
            self._shelf = self._live()
        else:
            path = shelf_path(run.folder, "grid")
            self._shelf = CachedShelf(path, source.signature(), self._make)
        self._note: dict[str, Any] = self._shelf.note["grids"]

    def _live(self) -> Shelf:
        key = "grid", str(self._run.folder)
        recent: tuple[Shelf, float] | None = memory.get(key)
        began = time.monotonic()
        if recent is not None and began < recent[1]:
            return recent[0]
        blobs, note = self._make()
        shelf = memory_shelf(note, blobs)
        due = clock.due_after(began, LEAST_AGE_S, REST)
        memory.put(key, (shelf, due), sum(map(len, blobs.values())))
        return shelf

    def _make(self) -> Blobs:
        blobs: dict[str, bytes] = {}
        notes: dict[str, Any] = {}
        for grid in read_grids(self._run):
            phases = {}
            for phase in grid.phases:
                total = grid.total(phase)
                phases[phase] = int(total.sum())
                total[grid.begin < 0] = -1
                for piece, low in enumerate(range(0, len(total), _piece_rows(total.shape[1]))):
                    rows = total[low : low + _piece_rows(total.shape[1])]
                    blobs[f"{grid.attempt}/{phase}/{piece}"] = rows.astype("<i8").tobytes()
            notes[str(grid.attempt)] = {"phases": phases}
            blobs[f"{grid.attempt}/ranks"] = np.array(grid.ranks, "<i8").tobytes()
            blobs[f"{grid.attempt}/steps"] = grid.steps.astype("<i8").tobytes()
        return blobs, {"grids": notes}

    @property
    def attempts(self) -> list[int]:
        """The attempts."""
        return sorted(map(int, self._note))

    def phases(self, attempt: int) -> dict[str, int]:
        """Return the phases of an attempt with their time over all ranks."""
        return dict(self._note[str(attempt)]["phases"])

    def ranks(self, attempt: int) -> Ints:
        """Return the ranks of an attempt."""
        return self._array(f"{attempt}/ranks")

    def steps(self, attempt: int) -> Ints:
        """Return the steps of an attempt."""
        return self._array(f"{attempt}/steps")

    def pieces(self, attempt: int, phase: str, rows: NDArray[np.intp]) -> Iterator[Ints]:
        """Yield the times of some rows, a piece at a time; -1 where nothing was recorded."""
        width = len(self.steps(attempt))
        size = _piece_rows(width)
        for piece in np.unique(rows // size).tolist():
            if f"{attempt}/{phase}/{piece}" in self._shelf:
                table = self._array(f"{attempt}/{phase}/{piece}").reshape(-1, width)
            else:
                table = np.zeros((size, width), np.int64)
            yield table[rows[rows // size == piece] - piece * size]

    def _array(self, key: str) -> Ints:
        return np.frombuffer(self._shelf.blob(key), "<i8")


def _piece_rows(width: int) -> int:
    return max(1, PIECE_BYTES // max(1, 8 * width))


def _starts(count: int, most: int) -> Ints:
    """Return the first index of each group, if the items are divided into at most ``most`` groups."""
    size = max(1, -(-count // most))
    return np.arange(0, count, size)
