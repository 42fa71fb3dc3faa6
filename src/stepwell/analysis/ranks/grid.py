"""Ranks by steps: what every rank did in every step, side by side.

A process is summed up into a row first, by itself and wherever it is read; a grid is made of rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.memory import give_back
from stepwell.analysis.ranks.compact import Compact
from stepwell.analysis.ranks.stretches import CODES, NAMES, Stretches, read_stretches
from stepwell.reading import RecordedRun

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

IDLE = "idle"
"""The time between the stretches of a step and the next step, in which no span was open."""
IN_STEP = ("data", "transfer", "forward", "backward", "optimizer", "communication", "training")
BETWEEN = ("checkpoint", "validation", "testing", "restore")
_IS_IN_STEP = np.isin(np.arange(len(NAMES) + 2), [CODES[phase] for phase in IN_STEP])
_IS_BETWEEN = np.isin(np.arange(len(NAMES) + 2), [CODES[phase] for phase in BETWEEN])
MOST_NUMBERS = 6
"""So many stretches of one phase are kept apart in a step; more are taken together with the last."""
NEVER = np.iinfo(np.int64).max
LARGE = 1_000_000
"""Ranks times steps from which on memory is thought of."""
BLOCK = 1 << 16
"""Stretches that are looked through at once."""


class Layer:
    """The n-th stretch of one phase: when it began and its own time, rank by step; -1 for none.

    There is one for every step of every rank, so they are kept small: starts as what lies between them and
    the beginning of the step.
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
        """Own time."""
        return self._ns.full

    @property
    def start(self) -> Ints:
        """When it began."""
        return np.where(self._ns.full >= 0, self._begin + self._since.full, -1)

    def cells(self, ranks: Ints, columns: Ints) -> tuple[Ints, Ints]:
        """Start and own time of some ranks in some steps."""
        ns = self._ns.cells(ranks, columns)
        start = self._begin[np.ix_(ranks, columns)] + self._since.cells(ranks, columns)
        return np.where(ns >= 0, start, -1), ns

    @property
    def taking_part(self) -> tuple[Ints, Ints] | None:
        """The ranks that do this, and the steps in which they all do; None for fewer than two ranks.

        A rank that does it in less than half as many steps as another one does not count.
        """
        has = self._ns.full >= 0
        often = np.count_nonzero(has, axis=1)
        ranks = np.flatnonzero(2 * often >= max(1, int(often.max(initial=0))))
        columns = np.flatnonzero(has[ranks].all(axis=0))
        return (ranks, columns) if len(ranks) >= 2 and len(columns) else None


@dataclass(frozen=True)
class Events:
    """Checkpoints, validations and the like of one process, in the order in which they began."""

    starts: Ints
    ns: Ints
    codes: NDArray[np.uint8]

    def of(self, code: int) -> tuple[Ints, Ints]:
        """Starts and own times of those of one phase."""
        chosen = self.codes == code
        return self.starts[chosen], self.ns[chosen]


@dataclass
class Grid:
    """One attempt."""

    attempt: int
    ranks: list[int]
    steps: Ints
    """The steps that were begun, ascending."""
    begin: Ints
    """When each rank began each step, with the data for it; -1 where it did not."""
    is_done: Bools
    """Whether each rank completed each step."""
    layers: list[Layer] = field(default_factory=list)
    between: dict[str, Ints] = field(default_factory=dict)
    """Checkpoints and the like by rank and step after which they were; what came before is in ``before``."""
    events: list[Events] = field(default_factory=list)
    """The same by rank, each with its start."""
    before: dict[str, Ints] = field(default_factory=dict)
    """Nanoseconds by rank of what came before the first step: startup, restore, …"""
    last_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """When the last stretch of each rank was over, or began if it never was."""
    failed: list[tuple[int, int]] = field(default_factory=list)
    """Rank and step of the iterations that an exception went through."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What was worked out of it for several purposes."""

    @property
    def complete(self) -> Bools:
        """Which steps were completed by all ranks that began them."""
        begun = self.begin >= 0
        return np.asarray(begun.any(axis=0) & (self.is_done | ~begun).all(axis=0))

    def total(self, phase: str) -> Ints:
        """Nanoseconds in a phase, rank by step."""
        total = np.zeros(self.begin.shape, np.int64)
        for layer in self.layers:
            if layer.phase == phase:
                total += np.maximum(layer.ns, 0)
        return total

    @property
    def phases(self) -> list[str]:
        """The phases that steps consist of here."""
        return list(dict.fromkeys(layer.phase for layer in self.layers))


@dataclass
class GridRow:
    """One process, summed up by step: what a grid is made of. -1 for none."""

    attempt: int
    rank: int
    steps: Ints
    begin: Ints
    is_done: Bools
    layers: dict[tuple[int, int], tuple[Compact, Compact]]
    """By phase and number: from the beginning of the step to its start, and own time."""
    between: dict[str, Compact]
    events: Events
    before: dict[str, int]
    last_ns: int
    failed: Ints


def read_grids(run: RecordedRun) -> list[Grid]:
    """The attempts of a run. Processes without any span are left out, and workers."""
    rows = []
    for tables in run.by_process():
        if tables.process.about["role"] != "worker":
            stretches = read_stretches(tables)
            rows += [] if stretches is None else [make_row(stretches)]
    return make_grids(rows)


def make_grids(rows: Iterable[GridRow | None]) -> list[Grid]:
    """A grid for each attempt. The rows are used up, so that there are never two copies of them."""
    found: dict[int, list[GridRow]] = {}
    for row in rows:
        if row is not None:
            found.setdefault(row.attempt, []).append(row)
    return [make_grid(number, found[number]) for number in sorted(found)]


def make_grid(attempt: int, rows: Iterable[GridRow]) -> Grid:
    """Put the processes of one attempt side by side."""
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
            give_back()
    for phase in (*BETWEEN, "startup"):
        grid.before[phase] = np.array([row.before.get(phase, 0) for row in rows], np.int64)
        amounts = [row.between.pop(phase, None) for row in rows]
        if any(ns is not None for ns in amounts):
            grid.between[phase] = _side_by_side(columns, width, amounts, 0)
    idle = _idle(grid)
    grid.layers += [idle] if idle.is_used else []
    return grid


def _all_steps(rows: list[GridRow]) -> Ints:
    """As a rule all ranks go through the same ones."""
    steps = rows[0].steps
    for row in rows[1:]:
        if not np.array_equal(row.steps, steps):
            steps = _unique(np.sort(np.concatenate([steps, row.steps])))
    return steps


def _columns(steps: Ints, own: Ints) -> Ints | slice:
    """Where the steps of a row are among all."""
    return slice(None) if len(own) == len(steps) else np.searchsorted(steps, own)


def _side_by_side(
    columns: list[Ints | slice],
    width: int,
    rows: Sequence[NDArray[Any] | Compact | None],
    fill: int,
) -> Ints:
    found = np.full((len(columns), width), fill, np.int64)
    for place, (column, values) in enumerate(zip(columns, rows, strict=True)):
        if values is not None:
            found[place, column] = values.full if isinstance(values, Compact) else values
    return found


def _unique(steps: Ints) -> Ints:
    """The different ones, of numbers that are mostly in order; in any order if they are not."""
    is_new = np.ones(len(steps), bool)
    is_new[1:] = steps[1:] != steps[:-1]
    return steps[is_new]


def make_row(found: Stretches) -> GridRow | None:
    """Sum up the stretches of a process by step; None when there are none."""
    if not len(found.step):
        return None
    own = _in_steps(found)
    step = found.step[own]
    changes = _changes(step)
    steps = _unique(np.sort(step[changes]))
    column = _places(steps, step, changes)
    is_done = np.ones(len(steps), bool)
    is_done[column[found.is_open[own]]] = False
    row = GridRow(
        found.attempt,
        found.rank,
        steps,
        _first(found, own, column, changes, len(steps)),
        is_done,
        layers={},
        between={},
        events=_events(found),
        before={},
        last_ns=found.last_ns,
        failed=found.failed,
    )
    _add_between(row, found, own, column)
    phase = found.phase[own]
    for code in np.flatnonzero(_IS_IN_STEP).tolist():
        chosen = np.flatnonzero(phase == code)
        if len(chosen):
            _add_layers(row, code, column[chosen], _among(own, chosen), found)
    return row


def _in_steps(found: Stretches) -> Ints | slice:
    """Those that are part of a step; as a rule all but the first and the last, so that none is copied."""
    in_step = np.empty(len(found.step), bool)
    for low in range(0, len(in_step), BLOCK):
        these = slice(low, low + BLOCK)
        in_step[these] = _IS_IN_STEP[found.phase[these]] & (found.step[these] >= 0)
    first = int(in_step.argmax())
    after = len(in_step) - int(in_step[::-1].argmax()) if in_step[first] else first
    return slice(first, after) if in_step[first:after].all() else np.flatnonzero(in_step)


def _changes(values: Ints) -> Ints:
    """Where there is another value than before, the first one included."""
    later = np.flatnonzero(values[1:] != values[:-1]) + 1
    return np.concatenate([np.zeros(min(1, len(values)), np.int64), later])


def _first(found: Stretches, own: Ints | slice, column: Ints, changes: Ints, count: int) -> Ints:
    """The earliest start of each column."""
    first = np.full(count, NEVER)
    if len(changes) == count:
        # Each step in one go.
        first[column[changes]] = found.start(_among(own, changes))
    else:
        np.minimum.at(first, column, found.start(own))
    return first


def _among(own: Ints | slice, chosen: Ints) -> Ints:
    """Which of all stretches these are, chosen from those that are part of a step."""
    if isinstance(own, slice):
        return chosen + own.start if own.start else chosen
    return own[chosen]


def _add_layers(row: GridRow, code: int, column: Ints, source: Ints, found: Stretches) -> None:
    """The stretches of one phase: the first of each step, the second, and so on."""
    closed = ~found.is_open[source]
    if len(column) == len(row.steps) and (column[1:] > column[:-1]).all() and closed.all():
        # Once in every step, as most are.
        since = found.start(source) - row.begin
        row.layers[code, 0] = Compact(since), Compact(found.ns[source])
        return
    number = np.minimum(_numbers(column), MOST_NUMBERS - 1)
    for each in range(int(number.max()) + 1):
        these = np.flatnonzero((number == each) & closed)
        at, where = column[these], source[these]
        start, ns = found.start(where), found.ns[where]
        since, total = np.zeros(len(row.steps), np.int64), np.full(len(row.steps), -1, np.int64)
        # Backwards, so that of several the first one's start stays.
        since[at[::-1]] = (start - row.begin[at])[::-1]
        total[at] = 0
        np.add.at(total, at, ns)
        row.layers[code, each] = Compact(since), Compact(total)


def _places(steps: Ints, values: Ints, changes: Ints) -> Ints:
    """Where each of these values, which mostly come in order, is among the steps."""
    lengths = np.diff(np.append(changes, len(values)))
    return np.repeat(np.searchsorted(steps, values[changes]), lengths)


def _numbers(column: Ints) -> Ints:
    """How many of the same step came before each."""
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


def _events(found: Stretches) -> Events:
    chosen = np.flatnonzero(_IS_BETWEEN[found.phase] & ~found.is_open)
    return Events(found.start(chosen), found.ns[chosen], found.phase[chosen])


def _add_between(row: GridRow, found: Stretches, own: Ints | slice, column: Ints) -> None:
    """What is no part of a step, after the step that began last before it."""
    begins = row.begin.min(initial=NEVER)
    for phase in (*BETWEEN, "startup"):
        chosen = np.flatnonzero((found.phase == CODES[phase]) & ~found.is_open)
        early = found.start(chosen) < begins
        row.before[phase] = int(found.ns[chosen[early]].sum())
        late = chosen[~early]
        if len(late):
            before = np.searchsorted(found.start(own), found.start(late), side="right")
            last = column[before - 1]
            amounts = np.zeros(len(row.steps), np.int64)
            np.add.at(amounts, last, found.ns[late])
            row.between[phase] = Compact(amounts)


def _idle(grid: Grid) -> Layer:
    """What is left of a step until the next one begins."""
    busy = np.zeros_like(grid.begin)
    for layer in grid.layers:
        busy += np.maximum(layer.ns, 0)
    for ns in grid.between.values():
        busy += ns
    gap = np.full(grid.begin.shape, -1, np.int64)
    known = (grid.begin[:, :-1] >= 0) & (grid.begin[:, 1:] >= 0) & grid.is_done[:, :-1]
    left = grid.begin[:, 1:] - grid.begin[:, :-1] - busy[:, :-1]
    gap[:, :-1] = np.where(known, np.maximum(left, 0), -1)
    since = np.zeros(grid.begin.shape, np.int64)
    since[:, :-1] = np.where(known, np.diff(grid.begin, axis=1) - gap[:, :-1], 0)
    return Layer(IDLE, 0, grid.begin, since, gap)
