"""Training iterations: their times and step numbers, and which step each instant belongs to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.timeline.intervals import CHUNK, Ints, Set, last_begun
from stepwell.analysis.timeline.lanes import FOREVER, LaneSpans
from stepwell.analysis.timeline.phases import (
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
"""Spans such as "train step" count as iterations if there are at least this many for each step."""
NONE: Ints = np.empty(0, np.int64)


@dataclass(frozen=True)
class Changes:
    """The times at which the step or the epoch was set; -1 for none."""

    times: Ints
    steps: Ints
    epochs: Ints

    def at(self, instants: Ints) -> tuple[Ints, Ints]:
        """Return step and epoch at each of these instants."""
        if not len(self.times):
            none = np.full(len(instants), -1, np.int64)
            return none, none.copy()
        at = np.searchsorted(self.times, instants, side="right") - 1
        is_set = at >= 0
        return np.where(is_set, self.steps[at], -1), np.where(is_set, self.epochs[at], -1)


@dataclass(frozen=True)
class Iterations:
    """The iterations of a rank, in order. Each has a column of its own in ``RankTime.cells``.

    ``begins`` is when the time that belongs to an iteration begins: with the wait for its batch, if that was
    recorded. ``rows`` is the first span in that time, by its index among the spans of the thread. Both are
    empty in a timeline. ``are_spans`` is whether each iteration is a span.
    """

    steps: Ints
    epochs: Ints
    starts: Ints
    ends: Ints
    begins: Ints
    rows: Ints
    are_spans: bool

    def __len__(self) -> int:
        return len(self.starts)

    def steps_of(self, rows: Ints) -> Ints:
        """Return the step that each of these spans of the thread, in order, begins in, -1 for none."""
        at = last_begun(self.rows, rows)
        return np.where(at >= 0, self.steps[at], -1)

    def within(self, steps: Ints, epochs: Ints) -> Iterations:
        """Return a copy to keep: it shares steps and epochs with the columns and has no ``begins`` and no
        ``rows``.
        """
        return replace(self, steps=steps[1:-1], epochs=epochs[1:-1], begins=NONE, rows=NONE)

    def without_steps(self) -> Iterations:
        """Return a copy to send: the columns have the same steps and epochs."""
        return replace(self, steps=NONE, epochs=NONE)


@dataclass(frozen=True)
class StepWindows:
    """The wall time divided into adjacent windows, each with one column and one place (see ``phases``).

    ``rows`` has the column of each window; ``steps`` and ``epochs`` belong to the columns, -1 for none.
    """

    begins: Ints
    rows: Ints
    places: Bytes
    steps: Ints
    epochs: Ints

    def overlaid(self, over: Set, places: Ints | int = COLLECTING) -> StepWindows:
        """Return a copy in which these disjoint intervals are windows of their own, in the given places."""
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


def find_iterations(lane: LaneSpans, changes: Changes, begin: int, end: int) -> Iterations | None:
    """Return the training iterations; None if there are none.

    These are the standard spans, or spans such as "train step". Without such spans an iteration is what was
    computed while a step was set. If no computation was recorded, it is all of the time of that step.
    """
    standard = np.flatnonzero(lane.codes & ITERATION != 0)
    if len(standard):
        return _from_spans(lane, changes, standard, begin)
    alike = np.flatnonzero(lane.codes & LIKE_ITERATION)
    is_set = np.flatnonzero(_is_new_step(changes))
    if len(alike) and len(alike) >= ENOUGH * len(is_set):
        return _from_spans(lane, changes, alike, begin)
    if len(is_set):
        return _from_changes(lane, changes, is_set, begin, end)
    return None


def _from_spans(
    lane: LaneSpans, changes: Changes, rows: NDArray[np.int64], begin: int
) -> Iterations | None:
    starts, ends = lane.starts[rows], lane.ends[rows]
    reach = np.maximum.accumulate(ends)
    # An iteration within another, or beside one of another task, does not count.
    outer = np.concatenate(([True], starts[1:] >= reach[:-1]))
    rows, starts, ends = (
        rows[outer],
        starts[outer],
        np.maximum.reduceat(ends, np.flatnonzero(outer)),
    )
    steps, epochs = _number(lane, rows, changes)
    # Micro-batches: several iterations are one step. Iterations before the first step do not count.
    first = np.flatnonzero((steps >= 0) & (np.diff(steps, prepend=-1) != 0))
    ends = np.maximum.reduceat(ends, first)
    rows, starts = rows[first], starts[first]
    floor = np.concatenate(([begin], ends[:-1]))
    begins, rows = _with_data(lane, rows, starts, floor)
    return Iterations(steps[first], epochs[first], starts, ends, begins, rows, True)


def _is_new_step(changes: Changes) -> NDArray[np.bool_]:
    before = np.concatenate(([-1], changes.steps[:-1]))
    is_new: NDArray[np.bool_] = (changes.steps >= 0) & (changes.steps != before)
    return is_new


def _from_changes(
    lane: LaneSpans, changes: Changes, is_set: NDArray[np.int64], begin: int, end: int
) -> Iterations | None:
    times = np.clip(changes.times[is_set], begin, end)
    steps, epochs = changes.steps[is_set], changes.epochs[is_set]
    computing = np.flatnonzero(lane.which(IS_COMPUTING))
    if not len(computing):
        floor = np.concatenate(([begin], times[:-1]))
        begins, rows = _with_data(lane, np.searchsorted(lane.starts, times), times, floor)
        ends = np.append(begins[1:], end)
        return Iterations(steps, epochs, begins, ends, begins, rows, False)
    first = np.searchsorted(lane.starts[computing], times)
    after = np.append(first[1:], len(computing))
    # A step in which nothing was computed does not count, such as one that is set after the last.
    some = np.flatnonzero(after > first)
    if not len(some):
        return None
    first, steps, epochs = first[some], steps[some], epochs[some]
    rows = computing[first]
    starts = lane.starts[rows]
    ends = np.maximum.accumulate(np.maximum.reduceat(lane.ends[computing], first))
    starts = np.maximum(starts, np.concatenate(([begin], ends[:-1])))
    begins, rows = _with_data(lane, rows, starts, np.concatenate(([begin], ends[:-1])))
    return Iterations(steps, epochs, starts, np.maximum(ends, starts), begins, rows, False)


def _with_data(lane: LaneSpans, rows: Ints, starts: Ints, floor: Ints) -> tuple[Ints, Ints]:
    """Return when each iteration began to wait for its data: right before it, and after ``floor``.

    ``rows`` are the spans that the iterations begin with; the second result are those with the data.
    """
    data = np.flatnonzero(lane.which(IS_DATA))
    if not len(data):
        return starts, rows
    # After the last span before it that is neither data nor a container.
    at = np.searchsorted(data, _last_other(lane.codes, rows), side="right")
    at = np.maximum(at, np.searchsorted(lane.starts[data], floor))
    first = data[np.minimum(at, len(data) - 1)]
    has_data = (at < len(data)) & (first < rows)
    begins = np.where(has_data, np.minimum(lane.starts[first], starts), starts)
    return begins, np.where(has_data, first, rows)


def _last_other(codes: Bytes, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, before each of these rows, the last span that is neither data nor a container; -1 for none."""
    previous = np.empty(len(rows), np.int64)
    last = -1
    for low in range(0, len(codes) + 1, CHUNK):
        others = np.append(last, np.flatnonzero(IS_OTHER[codes[low : low + CHUNK]]) + low)
        these = slice(*np.searchsorted(rows, (low, low + CHUNK)))
        previous[these] = others[np.searchsorted(others, rows[these]) - 1]
        last = int(others[-1])
    return previous


def make_windows(
    lane: LaneSpans, iterations: Iterations | None, changes: Changes, begin: int, end: int
) -> StepWindows:
    """Divide the wall time from ``begin`` to ``end`` into windows."""
    if iterations is None:
        return _without_steps(lane, changes, begin, end)
    count = len(iterations)
    last_end = int(iterations.ends[-1])
    tail = max(last_end, _last_work(lane, end))
    none = np.array([-1])
    begins = np.concatenate(([begin], iterations.begins, [last_end, tail]))
    return StepWindows(
        np.clip(begins, begin, end),
        np.append(np.arange(count + 1), (count, count + 1)),
        np.concatenate(([BEFORE], np.full(count, DURING), [AFTER, AFTER])).astype(np.uint8),
        np.concatenate((none, iterations.steps, none)),
        np.concatenate((none, iterations.epochs, none)),
    )


def _without_steps(lane: LaneSpans, changes: Changes, begin: int, end: int) -> StepWindows:
    """Make windows without steps: before the first work, one for each epoch, after the last work."""
    work = np.flatnonzero(lane.which(IS_WORK))
    first = int(lane.starts[work[0]]) if len(work) else begin
    last = _last_work(lane, end) if len(work) else end
    before = np.concatenate(([-1], changes.epochs[:-1]))
    changed = changes.times[changes.epochs != before]
    times = np.unique(np.concatenate(([first], changed[(changed > first) & (changed < last)])))
    _, epochs = changes.at(times)
    count = len(times)
    return StepWindows(
        np.concatenate(([begin], times, [last])),
        np.arange(count + 2),
        np.array([BEFORE, *[DURING] * count, AFTER], np.uint8),
        np.full(count + 2, -1),
        np.concatenate(([-1], epochs, [-1])),
    )


def _last_work(lane: LaneSpans, end: int) -> int:
    """Return the end of the last span that has a phase."""
    return min(int(lane.ends.max(where=lane.which(IS_WORK), initial=0)), end)


def _number(lane: LaneSpans, rows: NDArray[np.int64], changes: Changes) -> tuple[Ints, Ints]:
    """Return step and epoch of the iterations in these rows of a lane; -1 for those before the first step.

    The program may set the step before, in or after an iteration. If it never does, steps count from 0.
    """
    starts, ends = lane.starts[rows], lane.ends[rows]
    # In the middle: the step may be set just after the beginning, and the next one just before the end.
    steps, epochs = (values.copy() for values in changes.at(starts + (ends - starts) // 2))
    _use_declared(lane, rows, steps, epochs)
    numbered = np.flatnonzero(steps >= 0)[:1]
    if not len(numbered):
        return np.arange(len(rows)), epochs
    first = int(numbered[0])
    if first == 1 and (after := _set_after(starts, steps, changes)) is not None:
        return after
    if first:
        # Count back from the first step that was set.
        steps[:first] = np.maximum(steps[first] - np.arange(first, 0, -1), -1)
    return steps, epochs


def _use_declared(lane: LaneSpans, rows: NDArray[np.int64], steps: Ints, epochs: Ints) -> None:
    """Prefer the step and epoch in the attributes of an iteration."""
    at = np.searchsorted(rows, lane.declared[0])
    is_here = rows[np.minimum(at, len(rows) - 1)] == lane.declared[0]
    at, declared = at[is_here], lane.declared[:, is_here]
    steps[at] = declared[1]
    epochs[at] = np.where(declared[2] >= 0, declared[2], epochs[at])


def _set_after(starts: Ints, steps: Ints, changes: Changes) -> tuple[Ints, Ints] | None:
    """Return the steps that were set after each iteration, if the program works that way; else None.

    It does if the first step was set after the first iteration, and the last one after the last iteration.
    """
    after, epochs = (values.copy() for values in changes.at(np.append(starts[1:], FOREVER)))
    if after[0] != steps[1] or (after[-1] == steps[-1] and steps[1] > 0):
        return None
    if after[-1] == steps[-1]:
        # The last iteration is in progress.
        after[-1] += 1
    return after, epochs
