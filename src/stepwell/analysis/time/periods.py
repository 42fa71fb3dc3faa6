"""Which step each instant belongs to, and where it lies: before, during or after the steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.time.intervals import Ints, Set
from stepwell.analysis.time.lanes import BLOCK, Lane
from stepwell.analysis.time.numbering import number_iterations
from stepwell.analysis.time.words import (
    AFTER,
    BEFORE,
    COLLECTING,
    DURING,
    IS_COMPUTING,
    IS_DATA,
    IS_OTHER,
    IS_WORK,
    ITERATION,
    LIKE_ITERATION,
    Bytes,
)

ENOUGH = 0.9
"""Spans such as "train step" count as iterations if there are at least so many of them for each step."""
NONE: Ints = np.empty(0, np.int64)


@dataclass(frozen=True)
class Changes:
    """When the step and epoch changed; -1 for none."""

    times: Ints
    steps: Ints
    epochs: Ints

    def at(self, instants: Ints) -> tuple[Ints, Ints]:
        """Step and epoch at each of these instants."""
        if not len(self.times):
            none = np.full(len(instants), -1, np.int64)
            return none, none.copy()
        at = np.searchsorted(self.times, instants, side="right") - 1
        known = at >= 0
        return np.where(known, self.steps[at], -1), np.where(known, self.epochs[at], -1)


@dataclass(frozen=True)
class Iterations:
    """The iterations of a rank, one after the other. Each belongs to a row of its own.

    ``begins`` is when what belongs to it began: the wait for its batch, where that was recorded. It is empty
    once the rows have been cut by it.
    """

    steps: Ints
    epochs: Ints
    starts: Ints
    ends: Ints
    begins: Ints
    are_spans: bool

    def __len__(self) -> int:
        return len(self.starts)

    def within(self, steps: Ints, epochs: Ints) -> Iterations:
        """The same for keeping: steps and epochs shared with the rows, beginnings left out."""
        return replace(self, steps=steps[1:-1], epochs=epochs[1:-1], begins=NONE)

    def without_steps(self) -> Iterations:
        """The same for sending: the rows go with it."""
        return replace(self, steps=NONE, epochs=NONE)


@dataclass(frozen=True)
class Stretches:
    """The wall time cut into stretches that lie next to each other, each in one row and one place.

    ``steps`` and ``epochs`` tell of each row which it is, -1 for none.
    """

    begins: Ints
    rows: Ints
    places: Bytes
    steps: Ints
    epochs: Ints

    def overlaid(self, over: Set, places: Ints | int = COLLECTING) -> Stretches:
        """The same with disjoint intervals as stretches of their own, each in its place."""
        starts, ends = over
        if not len(starts):
            return self
        begins = np.unique(np.concatenate((self.begins, starts, ends)))
        begins = begins[begins >= self.begins[0]]
        at = np.searchsorted(self.begins, begins, side="right") - 1
        which = np.searchsorted(starts, begins, side="right") - 1
        is_over = (which >= 0) & (begins < ends[np.maximum(which, 0)])
        new = np.broadcast_to(places, len(starts))[np.maximum(which, 0)]
        return replace(
            self,
            begins=begins,
            rows=self.rows[at],
            places=np.where(is_over, new, self.places[at]).astype(np.uint8),
        )


def find_iterations(lane: Lane, changes: Changes, begin: int, end: int) -> Iterations | None:
    """The training iterations; None where nothing tells of any.

    They are the standard spans, or spans such as "train step"; else what was computed in each step that
    was set; else, with nothing known to be computed, the time for which a step was set.
    """
    found = lane.codes & ITERATION != 0
    if found.any():
        return _from_spans(lane, changes, np.flatnonzero(found), begin)
    alike = np.flatnonzero(lane.codes & LIKE_ITERATION)
    is_set = np.flatnonzero(_is_new_step(changes))
    if len(alike) and len(alike) >= ENOUGH * len(is_set):
        return _from_spans(lane, changes, alike, begin)
    if len(is_set):
        return _from_changes(lane, changes, is_set, begin, end)
    return None


def _from_spans(
    lane: Lane, changes: Changes, rows: NDArray[np.int64], begin: int
) -> Iterations | None:
    starts, ends = lane.starts[rows], lane.ends[rows]
    reach = np.maximum.accumulate(ends)
    # Inside of one, or beside one of another task, no other begins.
    outer = np.concatenate(([True], starts[1:] >= reach[:-1]))
    rows, starts, ends = (
        rows[outer],
        starts[outer],
        np.maximum.reduceat(ends, np.flatnonzero(outer)),
    )
    steps, epochs = number_iterations(lane, rows, changes.at)
    # Micro-batches: several iterations for one step. Before the first step there is none.
    first = np.flatnonzero((steps >= 0) & (np.diff(steps, prepend=-1) != 0))
    ends = np.maximum.reduceat(ends, first)
    rows, starts = rows[first], starts[first]
    floor = np.concatenate(([begin], ends[:-1]))
    begins = _with_data(lane, rows, starts, floor)
    return Iterations(steps[first], epochs[first], starts, ends, begins, True)


def _is_new_step(changes: Changes) -> NDArray[np.bool_]:
    before = np.concatenate(([-1], changes.steps[:-1]))
    found: NDArray[np.bool_] = (changes.steps >= 0) & (changes.steps != before)
    return found


def _from_changes(
    lane: Lane, changes: Changes, is_set: NDArray[np.int64], begin: int, end: int
) -> Iterations | None:
    times = np.clip(changes.times[is_set], begin, end)
    steps, epochs = changes.steps[is_set], changes.epochs[is_set]
    computing = np.flatnonzero(lane.which(IS_COMPUTING))
    if not len(computing):
        floor = np.concatenate(([begin], times[:-1]))
        begins = _with_data(lane, np.searchsorted(lane.starts, times), times, floor)
        ends = np.append(begins[1:], end)
        return Iterations(steps, epochs, begins, ends, begins, False)
    first = np.searchsorted(lane.starts[computing], times)
    after = np.append(first[1:], len(computing))
    # A step in which nothing was computed is none: the one that is set after the last, say.
    some = np.flatnonzero(after > first)
    if not len(some):
        return None
    first, steps, epochs = first[some], steps[some], epochs[some]
    rows = computing[first]
    starts = lane.starts[rows]
    ends = np.maximum.accumulate(np.maximum.reduceat(lane.ends[computing], first))
    starts = np.maximum(starts, np.concatenate(([begin], ends[:-1])))
    begins = _with_data(lane, rows, starts, np.concatenate(([begin], ends[:-1])))
    return Iterations(steps, epochs, starts, np.maximum(ends, starts), begins, False)


def _with_data(lane: Lane, rows: NDArray[np.int64], starts: Ints, floor: Ints) -> Ints:
    """When the data for each of these iterations was first waited for: right before it, after ``floor``.

    ``rows`` are the spans that the iterations begin with.
    """
    data = np.flatnonzero(lane.which(IS_DATA))
    if not len(data):
        return starts
    # After the last span before it that is neither data nor a mere holder of others.
    at = np.searchsorted(data, _last_other(lane.codes, rows), side="right")
    at = np.maximum(at, np.searchsorted(lane.starts[data], floor))
    first = data[np.minimum(at, len(data) - 1)]
    found = (at < len(data)) & (first < rows)
    return np.where(found, np.minimum(lane.starts[first], starts), starts)


def _last_other(codes: Bytes, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Before each of these rows, the last span that is neither data nor a mere holder; -1 for none."""
    found = np.empty(len(rows), np.int64)
    last = -1
    for low in range(0, len(codes) + 1, BLOCK):
        others = np.append(last, np.flatnonzero(IS_OTHER[codes[low : low + BLOCK]]) + low)
        these = slice(*np.searchsorted(rows, (low, low + BLOCK)))
        found[these] = others[np.searchsorted(others, rows[these]) - 1]
        last = int(others[-1])
    return found


def stretches(
    lane: Lane, iterations: Iterations | None, changes: Changes, begin: int, end: int
) -> Stretches:
    """The wall time from ``begin`` to ``end`` as stretches."""
    if iterations is None:
        return _without_steps(lane, changes, begin, end)
    count = len(iterations)
    last_end = int(iterations.ends[-1])
    tail = max(last_end, _last_work(lane, end))
    none = np.array([-1])
    begins = np.concatenate(([begin], iterations.begins, [last_end, tail]))
    return Stretches(
        np.clip(begins, begin, end),
        np.append(np.arange(count + 1), (count, count + 1)),
        np.concatenate(([BEFORE], np.full(count, DURING), [AFTER, AFTER])).astype(np.uint8),
        np.concatenate((none, iterations.steps, none)),
        np.concatenate((none, iterations.epochs, none)),
    )


def _without_steps(lane: Lane, changes: Changes, begin: int, end: int) -> Stretches:
    """Before the first work, then epoch by epoch, and after the last work."""
    work = np.flatnonzero(lane.which(IS_WORK))
    first = int(lane.starts[work[0]]) if len(work) else begin
    last = _last_work(lane, end) if len(work) else end
    before = np.concatenate(([-1], changes.epochs[:-1]))
    changed = changes.times[changes.epochs != before]
    times = np.unique(np.concatenate(([first], changed[(changed > first) & (changed < last)])))
    _, epochs = changes.at(times)
    count = len(times)
    return Stretches(
        np.concatenate(([begin], times, [last])),
        np.arange(count + 2),
        np.array([BEFORE, *[DURING] * count, AFTER], np.uint8),
        np.full(count + 2, -1),
        np.concatenate(([-1], epochs, [-1])),
    )


def _last_work(lane: Lane, end: int) -> int:
    """When the last span that has a phase ended."""
    return min(int(lane.ends.max(where=lane.which(IS_WORK), initial=0)), end)
