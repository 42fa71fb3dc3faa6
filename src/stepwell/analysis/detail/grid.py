"""The rank grid for one screen: the time of every rank in every step of one phase."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell._core import clock
from stepwell.analysis.cache import Blobs, CachedShelf, Shelf, memory, memory_shelf, shelf_path
from stepwell.analysis.detail.source import RunSource
from stepwell.analysis.ranks.grid import read_grids
from stepwell.analysis.timeline.intervals import Ints
from stepwell.reading import RecordedRun

Floats = NDArray[np.float64]

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
    shelf = _stored_grids(run)
    notes: dict[str, Any] = shelf.note["grids"]
    attempts = sorted(map(int, notes))
    if not attempts:
        return GridWindow(phase or "", [], [], 0, [], [], 0, 0, np.empty((0, 0)), 0)
    chosen = attempt if attempt in attempts else attempts[-1]
    times: dict[str, int] = notes[str(chosen)]["phases"]
    if phase not in times:
        phase = max(times, key=lambda name: times[name], default="")
    all_ranks, all_steps = (_array(shelf, f"{chosen}/{axis}") for axis in ("ranks", "steps"))
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
        for part in _pieces(shelf, f"{chosen}/{phase}", len(all_steps), rows):
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


def _stored_grids(run: RecordedRun) -> Shelf:
    """Return the times of all ranks, steps and phases of a run, from the cache if it has ended."""
    source = RunSource(run)
    if not source.is_live:
        return CachedShelf(shelf_path(run.folder, "grid"), source.signature(), lambda: _make(run))
    key = "grid", str(run.folder)
    recent: tuple[Shelf, float] | None = memory.get(key)
    began = time.monotonic()
    if recent is not None and began < recent[1]:
        return recent[0]
    blobs, note = _make(run)
    shelf = memory_shelf(blobs, note)
    due = clock.due_after(began, LEAST_AGE_S, REST)
    memory.put(key, (shelf, due), sum(map(len, blobs.values())))
    return shelf


def _make(run: RecordedRun) -> Blobs:
    """Return the grids of a run in pieces; the note has the time in each phase by attempt."""
    blobs: dict[str, bytes] = {}
    notes: dict[str, Any] = {}
    for grid in read_grids(run):
        phases = {}
        for phase in grid.phases:
            total = grid.total(phase)
            phases[phase] = int(total.sum())
            total[grid.begin < 0] = -1
            size = _piece_rows(total.shape[1])
            for piece, low in enumerate(range(0, len(total), size)):
                rows = total[low : low + size]
                blobs[f"{grid.attempt}/{phase}/{piece}"] = rows.astype("<i8").tobytes()
        notes[str(grid.attempt)] = {"phases": phases}
        blobs[f"{grid.attempt}/ranks"] = np.array(grid.ranks, "<i8").tobytes()
        blobs[f"{grid.attempt}/steps"] = grid.steps.astype("<i8").tobytes()
    return blobs, {"grids": notes}


def _pieces(shelf: Shelf, name: str, width: int, rows: NDArray[np.intp]) -> Iterator[Ints]:
    """Yield the times of some rows, a piece at a time; -1 where nothing was recorded."""
    size = _piece_rows(width)
    for piece in np.unique(rows // size).tolist():
        table = np.zeros((size, width), np.int64)
        if f"{name}/{piece}" in shelf:
            table = _array(shelf, f"{name}/{piece}").reshape(-1, width)
        yield table[rows[rows // size == piece] - piece * size]


def _array(shelf: Shelf, key: str) -> Ints:
    return np.frombuffer(shelf.blob(key), "<i8")


def _piece_rows(width: int) -> int:
    return max(1, PIECE_BYTES // max(1, 8 * width))


def _starts(count: int, most: int) -> Ints:
    """Return the first index of each group, if the items are divided into at most ``most`` groups."""
    size = max(1, -(-count // most))
    return np.arange(0, count, size)
