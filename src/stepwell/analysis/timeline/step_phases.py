"""The phases of a training thread step by step: when each began, and how long it took.

An interval is the outermost span of a phase. The time of other phases within it belongs to those, so the
intervals of a step never count an instant twice. They are summed up by step where they are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.timeline.intervals import CHUNK, Ints, open_at, previous_greater
from stepwell.analysis.timeline.iterations import Iterations
from stepwell.analysis.timeline.lanes import FOREVER, LaneSpans
from stepwell.analysis.timeline.phases import (
    CODE_MASK,
    CODES,
    ITERATION,
    NAMES,
    NOTHING,
    Bytes,
    Mask,
)

IN_STEP = ("data", "transfer", "forward", "backward", "optimizer", "communication", "training")
BETWEEN = ("checkpoint", "validation", "testing", "restore")
_IS_IN_STEP = np.isin(np.arange(len(NAMES) + 2), [CODES[phase] for phase in IN_STEP])
_IS_BETWEEN = np.isin(np.arange(len(NAMES) + 2), [CODES[phase] for phase in BETWEEN])
MOST_NUMBERS = 6
"""Intervals of one phase that are kept apart in a step; further ones are added to the last."""
OPTIMIZER = CODES["optimizer"]
NEVER = np.iinfo(np.int64).max
LEAST, MOST = -(1 << 31) + 1, (1 << 31) - 1
"""Range of the integers that fit into 32 bits: most times within a step are below two seconds."""
ELSEWHERE = -(1 << 31)
"""Stands for an integer that does not fit."""


class Compact:
    """An array of 64-bit integers, stored with 32 bits each; the few that need more are stored beside it."""

    def __init__(self, values: Ints) -> None:
        fits = values.min(initial=0) >= LEAST and values.max(initial=0) <= MOST
        none: Ints = np.empty(0, np.int64)
        large = none if fits else np.flatnonzero((values < LEAST) | (values > MOST))
        self._small = values.astype(np.int32)
        self._at = large
        self._exact = values.ravel()[large]
        self._small.ravel()[large] = ELSEWHERE

    def __getstate__(self) -> tuple[NDArray[np.int32], Ints | None, Ints | None]:
        # Usually all integers fit, and sending two empty arrays costs as much as sending a full one.
        some = len(self._at) > 0
        return self._small, self._at if some else None, self._exact if some else None

    def __setstate__(self, state: tuple[NDArray[np.int32], Ints | None, Ints | None]) -> None:
        none: Ints = np.empty(0, np.int64)
        self._small, at, exact = state
        self._at, self._exact = none if at is None else at, none if exact is None else exact

    @property
    def full(self) -> Ints:
        """All integers, computed anew each time."""
        values = self._small.astype(np.int64)
        if len(self._at):
            values.ravel()[self._at] = self._exact
        return values

    def cells(self, rows: Ints, columns: Ints) -> Ints:
        """Return some rows and columns."""
        values = self._small[np.ix_(rows, columns)].astype(np.int64)
        if len(self._at):
            row, column = np.nonzero(values == ELSEWHERE)
            flat = rows[row] * self._small.shape[1] + columns[column]
            values[row, column] = self._exact[np.searchsorted(self._at, flat)]
        return values


@dataclass(frozen=True)
class Events:
    """Checkpoints, validations and the like of one process, sorted by start."""

    starts: Ints
    ns: Ints
    codes: NDArray[np.uint8]

    def of(self, code: int) -> tuple[Ints, Ints]:
        """Return starts and own times of one phase."""
        chosen = self.codes == code
        return self.starts[chosen], self.ns[chosen]


@dataclass
class StepPhases:
    """The intervals of a training thread, summed up by step.

    Attributes:
        steps: the steps that were begun, ascending.
        begin: when each step began, with loading its data.
        is_done: whether each step was completed: none of its intervals is open.
        layers: by phase and number: the start relative to the beginning of the step, and the own time of the
            first, second … interval of that phase in each step; -1 for none.
        between: nanoseconds of checkpoints and the like, by the step before them.
        events: the same, with their starts.
        before: nanoseconds before the first step: startup, restore, …
        failed: steps of iterations that ended with an exception.
    """

    steps: Ints
    begin: Ints
    is_done: Mask
    layers: dict[tuple[int, int], tuple[Compact, Compact]]
    between: dict[str, Compact]
    events: Events
    before: dict[str, int]
    failed: Ints

    def has_done(self, step: int, is_in_pass: bool) -> bool | None:
        """Return whether a step was completed; None if it has no interval.

        A step counts as completed once the optimizer is done and no other pass has begun: only the rest of
        the loop's body is missing.
        """
        column = int(np.searchsorted(self.steps, step))
        if column >= len(self.steps) or self.steps[column] != step:
            return None
        if step in self.failed:
            return False
        if self.is_done[column] or is_in_pass:
            return bool(self.is_done[column])
        optimizer = [ns for (code, _), (_, ns) in self.layers.items() if code == OPTIMIZER]
        return any(ns.full[column] > 0 for ns in optimizer)


@dataclass(frozen=True)
class _Intervals:
    """The intervals of a thread, sorted by start."""

    step: Ints
    """The step of each interval, -1 for none."""
    phase: Bytes
    rows: Ints
    """Index of each interval's span among the spans of the thread."""
    starts: Ints
    """Starts of all spans of the thread."""
    ns: Ints
    """Own time of each interval."""
    is_open: Mask

    def start(self, which: Ints | slice) -> Ints:
        """Return the starts of some intervals. Computed on demand: there may be millions."""
        return self.starts[self.rows[which]]


def sum_up_phases(lane: LaneSpans, iterations: Iterations | None) -> StepPhases | None:
    """Sum up the phases of the training thread by step; None if no span has a phase.

    An interval belongs to the step that it begins in. Open spans end at ``FOREVER``.
    """
    rows, ns = _own_times(lane)
    if not len(rows):
        return None
    is_open = _is_open(lane, rows)
    intervals = _Intervals(
        step=_steps(iterations, rows),
        phase=lane.codes[rows] & np.uint8(CODE_MASK),
        rows=rows,
        starts=lane.starts,
        ns=np.maximum(ns, 0, out=ns),
        is_open=is_open,
    )
    own = _in_steps(intervals)
    step = intervals.step[own]
    changes = _changes(step)
    steps = unique(step[changes])
    column = _places(steps, step, changes)
    is_done = np.ones(len(steps), bool)
    is_done[column[is_open[own]]] = False
    result = StepPhases(
        steps,
        _first(intervals, own, column, changes, len(steps)),
        is_done,
        layers={},
        between={},
        events=_events(intervals),
        before={},
        failed=_steps(iterations, _failed(lane)),
    )
    _add_between(result, intervals, own, column)
    phase = intervals.phase[own]
    for code in np.flatnonzero(_IS_IN_STEP).tolist():
        chosen = np.flatnonzero(phase == code)
        if len(chosen):
            _add_layers(result, code, column[chosen], _among(own, chosen), intervals)
    return result


def _is_open(lane: LaneSpans, rows: Ints) -> Mask:
    is_open = np.empty(len(rows), bool)
    for low in range(0, len(rows), CHUNK):
        is_open[low : low + CHUNK] = lane.ends[rows[low : low + CHUNK]] == FOREVER
    return is_open


def _steps(iterations: Iterations | None, rows: Ints) -> Ints:
    steps = np.full(len(rows), -1, np.int64)
    if iterations is not None:
        for low in range(0, len(rows), CHUNK):
            # In chunks, to bound memory.
            steps[low : low + CHUNK] = iterations.steps_of(rows[low : low + CHUNK])
    return steps


def _failed(lane: LaneSpans) -> Ints:
    """Return the iterations that ended with an exception."""
    rows = lane.failed
    if len(rows) and (lane.codes & ITERATION).any():
        rows = rows[lane.codes[rows] & ITERATION != 0]
    return rows


def unique(steps: Ints) -> Ints:
    """Return the steps, ascending, without duplicates."""
    return steps if (steps[1:] > steps[:-1]).all() else np.unique(steps)


def _in_steps(intervals: _Intervals) -> Ints | slice:
    """Return the intervals that are part of a step: a slice if they are adjacent, which avoids copies."""
    in_step = np.empty(len(intervals.step), bool)
    for low in range(0, len(in_step), CHUNK):
        these = slice(low, low + CHUNK)
        in_step[these] = _IS_IN_STEP[intervals.phase[these]] & (intervals.step[these] >= 0)
    first = int(in_step.argmax())
    after = len(in_step) - int(in_step[::-1].argmax()) if in_step[first] else first
    return slice(first, after) if in_step[first:after].all() else np.flatnonzero(in_step)


def _changes(values: Ints) -> Ints:
    """Return the indices at which the value changes, and the first index."""
    later = np.flatnonzero(values[1:] != values[:-1]) + 1
    return np.concatenate([np.zeros(min(1, len(values)), np.int64), later])


def _first(
    intervals: _Intervals, own: Ints | slice, column: Ints, changes: Ints, count: int
) -> Ints:
    """Return the earliest start of each step."""
    first = np.full(count, NEVER)
    if len(changes) == count:
        # No step is interrupted by another.
        first[column[changes]] = intervals.start(_among(own, changes))
    else:
        np.minimum.at(first, column, intervals.start(own))
    return first


def _among(own: Ints | slice, chosen: Ints) -> Ints:
    """Return the indices among all intervals of some that are chosen among those in steps."""
    if isinstance(own, slice):
        return chosen + own.start if own.start else chosen
    return own[chosen]


def _add_layers(
    row: StepPhases, code: int, column: Ints, source: Ints, intervals: _Intervals
) -> None:
    """Add the layers of one phase: the first interval of each step, the second, and so on."""
    closed = ~intervals.is_open[source]
    if len(column) == len(row.steps) and (column[1:] > column[:-1]).all() and closed.all():
        # The usual case: once in every step.
        since = intervals.start(source) - row.begin
        row.layers[code, 0] = Compact(since), Compact(intervals.ns[source])
        return
    number = np.minimum(_numbers(column), MOST_NUMBERS - 1)
    for each in range(int(number.max()) + 1):
        these = np.flatnonzero((number == each) & closed)
        at, where = column[these], source[these]
        start, ns = intervals.start(where), intervals.ns[where]
        since, total = np.zeros(len(row.steps), np.int64), np.full(len(row.steps), -1, np.int64)
        # Backwards: of several in a step, the start of the first one remains.
        since[at[::-1]] = (start - row.begin[at])[::-1]
        total[at] = 0
        np.add.at(total, at, ns)
        row.layers[code, each] = Compact(since), Compact(total)


def _places(steps: Ints, values: Ints, changes: Ints) -> Ints:
    """Return the column of each of these values, of which most follow an equal one."""
    lengths = np.diff(np.append(changes, len(values)))
    return np.repeat(np.searchsorted(steps, values[changes]), lengths)


def _numbers(column: Ints) -> Ints:
    """Return for each entry how many entries of the same step come before it."""
    if (column[1:] > column[:-1]).all():
        return np.zeros(len(column), np.int64)
    is_sorted = bool((column[1:] >= column[:-1]).all())
    order = slice(None) if is_sorted else np.argsort(column, kind="stable")
    ordered = column[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    begins = np.maximum.accumulate(np.where(is_first, np.arange(len(ordered)), 0))
    numbers = np.empty(len(column), np.int64)
    numbers[order] = np.arange(len(ordered)) - begins
    return numbers


def _events(intervals: _Intervals) -> Events:
    chosen = np.flatnonzero(_IS_BETWEEN[intervals.phase] & ~intervals.is_open)
    return Events(intervals.start(chosen), intervals.ns[chosen], intervals.phase[chosen])


def _add_between(row: StepPhases, intervals: _Intervals, own: Ints | slice, column: Ints) -> None:
    """Add phases between steps to the step that began last before them."""
    begins = row.begin.min(initial=NEVER)
    for phase in (*BETWEEN, "startup"):
        chosen = np.flatnonzero((intervals.phase == CODES[phase]) & ~intervals.is_open)
        early = intervals.start(chosen) < begins
        row.before[phase] = int(intervals.ns[chosen[early]].sum())
        late = chosen[~early]
        if len(late):
            begun = np.searchsorted(intervals.starts, intervals.start(late), side="right")
            last = column[np.searchsorted(intervals.rows[own], begun) - 1]
            amounts = np.zeros(len(row.steps), np.int64)
            np.add.at(amounts, last, intervals.ns[late])
            row.between[phase] = Compact(amounts)


def _own_times(lane: LaneSpans) -> tuple[Ints, Ints]:
    """Return the outermost spans of each phase, and their time without other phases in them.

    Works on chunks that fit the CPU cache, and carries spans that are open at the end of a chunk to the next.
    """
    starts, ends, codes = lane.starts, lane.ends, lane.codes & np.uint8(CODE_MASK)
    outermost, times = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
    count, carried = 0, _Carried()
    for first in range(0, len(starts), CHUNK):
        after = min(first + CHUNK, len(starts))
        rows = np.concatenate([carried.rows, np.arange(first, after)])
        begun = len(carried.rows)
        high, phase = ends[rows], codes[rows]
        around = previous_greater(high, begun)
        root = _roots(phase, around)
        ns = np.where(high == FOREVER, 0, high - starts[rows])
        is_root = (root == np.arange(len(root))) & (phase < NOTHING)
        inner = np.flatnonzero(is_root[begun:] & (around[begun:] >= 0)) + begun
        taken = np.zeros(len(rows), np.int64)
        # Subtract the time of an interval from the interval of another phase around it.
        np.add.at(taken, root[around[inner]], ns[inner])
        ns -= taken
        if begun:
            ns[:begun] = carried.ns - taken[:begun]
            kept = carried.places >= 0
            times[carried.places[kept]] = ns[:begun][kept]
        mine = np.flatnonzero(is_root[begun:])
        outermost[count : count + len(mine)] = mine + first
        times[count : count + len(mine)] = ns[begun:][mine]
        if after < len(starts):
            chain = open_at(around, high, int(starts[after]))
            before, own = chain[chain < begun], chain[chain >= begun]
            places = np.where(is_root[own], np.searchsorted(mine, own - begun) + count, -1)
            places = np.concatenate([carried.places[before], places])
            carried = _Carried(rows[chain], ns[chain], places)
        count += len(mine)
    return outermost[:count], times[:count]


@dataclass
class _Carried:
    """Spans that are open at the end of a chunk: rows, own times so far, and indices in the result, or -1."""

    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    places: Ints = field(default_factory=lambda: np.empty(0, np.int64))


def _roots(phase: Bytes, around: Ints) -> Ints:
    """Return for each span the outermost span of the same phase, with no other phase in between."""
    up = np.arange(len(phase))
    same = np.flatnonzero((around >= 0) & (phase[around] == phase))
    up[same] = around[same]
    while True:
        further: Ints = up[up[same]]
        if np.array_equal(further, up[same]):
            return up
        up[same] = further
