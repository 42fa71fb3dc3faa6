"""Ranks by steps: the time of every rank in every step and phase, as arrays.

Each process is first summed up into a row, where it is read. A grid is made of rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.memory import trim_malloc
from stepwell.analysis.ranks.phase_intervals import PhaseIntervals, read_phase_intervals
from stepwell.analysis.time.phases import CODES, NAMES
from stepwell.reading import RecordedRun

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

IDLE = "idle"
"""The time between a step and the next, in which no span is open."""
IN_STEP = ("data", "transfer", "forward", "backward", "optimizer", "communication", "training")
BETWEEN = ("checkpoint", "validation", "testing", "restore")
_IS_IN_STEP = np.isin(np.arange(len(NAMES) + 2), [CODES[phase] for phase in IN_STEP])
_IS_BETWEEN = np.isin(np.arange(len(NAMES) + 2), [CODES[phase] for phase in BETWEEN])
MOST_NUMBERS = 6
"""Intervals of one phase that are kept apart in a step; further ones are added to the last."""
NEVER = np.iinfo(np.int64).max
LARGE = 1_000_000
"""Ranks times steps from which on freed memory is returned to the system."""
BLOCK = 1 << 16
"""Intervals processed at once."""
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


class Layer:
    """The n-th interval of one phase: its start and its own time, rank by step; -1 for none.

    There may be very many, so they are stored compactly: starts relative to the beginning of the step.
    """

    def __init__(self, phase: str, number: int, begin: Ints, since: Ints, ns: Ints) -> None:
        self.phase = phase
        self.number = number
        self.is_used = bool((ns > 0).any())
        self._begin = begin
        self._ns = Compact(ns)
        self._since = Compact(since)

    @property
    def ns(self) -> Ints:
        """Own times."""
        return self._ns.full

    @property
    def start(self) -> Ints:
        """Starts."""
        return np.where(self._ns.full >= 0, self._begin + self._since.full, -1)

    def cells(self, ranks: Ints, columns: Ints) -> tuple[Ints, Ints]:
        """Return starts and own times of some ranks in some steps."""
        ns = self._ns.cells(ranks, columns)
        start = self._begin[np.ix_(ranks, columns)] + self._since.cells(ranks, columns)
        return np.where(ns >= 0, start, -1), ns

    @property
    def taking_part(self) -> tuple[Ints, Ints] | None:
        """Ranks that have this phase, and steps in which all of them do; None for fewer than two ranks.

        A rank that has it in less than half as many steps as another one does not count.
        """
        has = self._ns.full >= 0
        often = np.count_nonzero(has, axis=1)
        ranks = np.flatnonzero(2 * often >= max(1, int(often.max(initial=0))))
        columns = np.flatnonzero(has[ranks].all(axis=0))
        return (ranks, columns) if len(ranks) >= 2 and len(columns) else None


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
class Grid:
    """The ranks and steps of one attempt."""

    attempt: int
    ranks: list[int]
    steps: Ints
    """The steps that were begun, ascending."""
    begin: Ints
    """When each rank began each step, with loading its data; -1 if it did not."""
    is_done: Bools
    """Whether each rank completed each step."""
    layers: list[Layer] = field(default_factory=list)
    between: dict[str, Ints] = field(default_factory=dict)
    """Nanoseconds of checkpoints and the like, by rank and the step before them."""
    events: list[Events] = field(default_factory=list)
    """Checkpoints and the like by rank, with their starts."""
    before: dict[str, Ints] = field(default_factory=dict)
    """Nanoseconds by rank before the first step: startup, restore, …"""
    last_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """When the last interval of each rank ended, or began if it is open."""
    failed: list[tuple[int, int]] = field(default_factory=list)
    """Rank and step of iterations that ended with an exception."""
    cache: dict[str, Any] = field(default_factory=dict)
    """Results derived from the grid that several callers need."""

    @property
    def complete(self) -> Bools:
        """Mask of the steps that all ranks that began them completed."""
        begun = self.begin >= 0
        return np.asarray(begun.any(axis=0) & (self.is_done | ~begun).all(axis=0))

    def total(self, phase: str) -> Ints:
        """Return nanoseconds in a phase, rank by step."""
        total = np.zeros(self.begin.shape, np.int64)
        for layer in self.layers:
            if layer.phase == phase:
                total += np.maximum(layer.ns, 0)
        return total

    @property
    def phases(self) -> list[str]:
        """The phases of the steps."""
        return list(dict.fromkeys(layer.phase for layer in self.layers))


@dataclass
class GridRow:
    """One process, summed up by step: a row of a grid. -1 for none."""

    attempt: int
    rank: int
    steps: Ints
    begin: Ints
    is_done: Bools
    layers: dict[tuple[int, int], tuple[Compact, Compact]]
    """By phase and number: the start relative to the beginning of the step, and the own time."""
    between: dict[str, Compact]
    events: Events
    before: dict[str, int]
    last_ns: int
    failed: Ints


def read_grids(run: RecordedRun) -> list[Grid]:
    """Return a grid for each attempt of a run, without workers and processes that have no spans."""
    rows = []
    for tables in run.by_process():
        if tables.process.about["role"] != "worker":
            intervals = read_phase_intervals(tables)
            rows += [] if intervals is None else [make_row(intervals)]
    return make_grids(rows)


def make_grids(rows: Iterable[GridRow | None]) -> list[Grid]:
    """Return a grid for each attempt. Empties the rows, so that there are never two copies in memory."""
    by_attempt: dict[int, list[GridRow]] = {}
    for row in rows:
        if row is not None:
            by_attempt.setdefault(row.attempt, []).append(row)
    return [make_grid(number, by_attempt[number]) for number in sorted(by_attempt)]


def make_grid(attempt: int, rows: Iterable[GridRow]) -> Grid:
    """Return the grid of the processes of one attempt."""
    rows = sorted(rows, key=lambda row: row.rank)
    grid = Grid(
        attempt,
        [row.rank for row in rows],
        _all_steps(rows),
        np.empty((0, 0), np.int64),
        np.empty((0, 0), bool),
        last_ns=np.array([row.last_ns for row in rows], np.int64),
        events=[row.events for row in rows],
        failed=[(row.rank, step) for row in rows for step in row.failed.tolist()],
    )
    columns = [_columns(grid.steps, row.steps) for row in rows]
    width = len(grid.steps)
    grid.begin = _side_by_side(columns, width, [row.begin for row in rows], -1)
    grid.is_done = _side_by_side(columns, width, [row.is_done for row in rows], 0) != 0
    for code, number in sorted({key for row in rows for key in row.layers}):
        pairs = [row.layers.pop((code, number), None) for row in rows]
        since = [None if pair is None else pair[0] for pair in pairs]
        ns = [None if pair is None else pair[1] for pair in pairs]
        layer = Layer(
            NAMES[code],
            number,
            grid.begin,
            _side_by_side(columns, width, since, 0),
            _side_by_side(columns, width, ns, -1),
        )
        grid.layers += [layer] if layer.is_used else []
        del pairs, since, ns
        if grid.begin.size >= LARGE:
            trim_malloc()
    for phase in (*BETWEEN, "startup"):
        grid.before[phase] = np.array([row.before.get(phase, 0) for row in rows], np.int64)
        amounts = [row.between.pop(phase, None) for row in rows]
        if any(ns is not None for ns in amounts):
            grid.between[phase] = _side_by_side(columns, width, amounts, 0)
    idle = _idle(grid)
    grid.layers += [idle] if idle.is_used else []
    return grid


def _all_steps(rows: list[GridRow]) -> Ints:
    """Return the steps of all rows. Usually all ranks have the same ones."""
    steps = rows[0].steps
    for row in rows[1:]:
        if not np.array_equal(row.steps, steps):
            steps = _unique(np.sort(np.concatenate([steps, row.steps])))
    return steps


def _columns(steps: Ints, own: Ints) -> Ints | slice:
    """Return the columns of the steps of a row."""
    return slice(None) if len(own) == len(steps) else np.searchsorted(steps, own)


def _side_by_side(
    columns: list[Ints | slice],
    width: int,
    rows: Sequence[NDArray[Any] | Compact | None],
    fill: int,
) -> Ints:
    table = np.full((len(columns), width), fill, np.int64)
    for place, (column, values) in enumerate(zip(columns, rows, strict=True)):
        if values is not None:
            table[place, column] = values.full if isinstance(values, Compact) else values
    return table


def _unique(steps: Ints) -> Ints:
    """Return sorted steps without duplicates."""
    is_new = np.ones(len(steps), bool)
    is_new[1:] = steps[1:] != steps[:-1]
    return steps[is_new]


def make_row(intervals: PhaseIntervals) -> GridRow | None:
    """Sum up the intervals of a process by step; None if there are none."""
    if not len(intervals.step):
        return None
    own = _in_steps(intervals)
    step = intervals.step[own]
    changes = _changes(step)
    steps = _unique(np.sort(step[changes]))
    column = _places(steps, step, changes)
    is_done = np.ones(len(steps), bool)
    is_done[column[intervals.is_open[own]]] = False
    row = GridRow(
        intervals.attempt,
        intervals.rank,
        steps,
        _first(intervals, own, column, changes, len(steps)),
        is_done,
        layers={},
        between={},
        events=_events(intervals),
        before={},
        last_ns=intervals.last_ns,
        failed=intervals.failed,
    )
    _add_between(row, intervals, own, column)
    phase = intervals.phase[own]
    for code in np.flatnonzero(_IS_IN_STEP).tolist():
        chosen = np.flatnonzero(phase == code)
        if len(chosen):
            _add_layers(row, code, column[chosen], _among(own, chosen), intervals)
    return row


def _in_steps(intervals: PhaseIntervals) -> Ints | slice:
    """Return the intervals that are part of a step: a slice if they are adjacent, which avoids copies."""
    in_step = np.empty(len(intervals.step), bool)
    for low in range(0, len(in_step), BLOCK):
        these = slice(low, low + BLOCK)
        in_step[these] = _IS_IN_STEP[intervals.phase[these]] & (intervals.step[these] >= 0)
    first = int(in_step.argmax())
    after = len(in_step) - int(in_step[::-1].argmax()) if in_step[first] else first
    return slice(first, after) if in_step[first:after].all() else np.flatnonzero(in_step)


def _changes(values: Ints) -> Ints:
    """Return the indices at which the value changes, and the first index."""
    later = np.flatnonzero(values[1:] != values[:-1]) + 1
    return np.concatenate([np.zeros(min(1, len(values)), np.int64), later])


def _first(
    intervals: PhaseIntervals, own: Ints | slice, column: Ints, changes: Ints, count: int
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
    row: GridRow, code: int, column: Ints, source: Ints, intervals: PhaseIntervals
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


def _events(intervals: PhaseIntervals) -> Events:
    chosen = np.flatnonzero(_IS_BETWEEN[intervals.phase] & ~intervals.is_open)
    return Events(intervals.start(chosen), intervals.ns[chosen], intervals.phase[chosen])


def _add_between(row: GridRow, intervals: PhaseIntervals, own: Ints | slice, column: Ints) -> None:
    """Add phases between steps to the step that began last before them."""
    begins = row.begin.min(initial=NEVER)
    for phase in (*BETWEEN, "startup"):
        chosen = np.flatnonzero((intervals.phase == CODES[phase]) & ~intervals.is_open)
        early = intervals.start(chosen) < begins
        row.before[phase] = int(intervals.ns[chosen[early]].sum())
        late = chosen[~early]
        if len(late):
            before = np.searchsorted(intervals.start(own), intervals.start(late), side="right")
            last = column[before - 1]
            amounts = np.zeros(len(row.steps), np.int64)
            np.add.at(amounts, last, intervals.ns[late])
            row.between[phase] = Compact(amounts)


def _idle(grid: Grid) -> Layer:
    """Return the layer of the time that remains of each step until the next one begins."""
    busy = np.zeros_like(grid.begin)
    for layer in grid.layers:
        busy += np.maximum(layer.ns, 0)
    for ns in grid.between.values():
        busy += ns
    gap = np.full(grid.begin.shape, -1, np.int64)
    has_next = (grid.begin[:, :-1] >= 0) & (grid.begin[:, 1:] >= 0) & grid.is_done[:, :-1]
    left = grid.begin[:, 1:] - grid.begin[:, :-1] - busy[:, :-1]
    gap[:, :-1] = np.where(has_next, np.maximum(left, 0), -1)
    since = np.zeros(grid.begin.shape, np.int64)
    since[:, :-1] = np.where(has_next, np.diff(grid.begin, axis=1) - gap[:, :-1], 0)
    return Layer(IDLE, 0, grid.begin, since, gap)
