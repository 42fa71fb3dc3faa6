"""Ranks by steps: the time of every rank in every step and phase, as arrays.

A grid is the timelines of one attempt side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepwell._core.system import trim_malloc
from stepwell.analysis.timeline.intervals import Ints
from stepwell.analysis.timeline.phases import NAMES
from stepwell.analysis.timeline.step_phases import BETWEEN, Compact, Events
from stepwell.analysis.timeline.tables import merge_steps
from stepwell.analysis.timeline.timeline import BY_EXCEPTION, Timeline, Timelines, timelines
from stepwell.journal.document import worst_of

Bools = NDArray[np.bool_]
T = TypeVar("T")

IDLE = "idle"
"""The time between a step and the next, in which no span is open."""
LARGE = 1_000_000
"""Ranks times steps from which on two threads are faster."""
HUGE = 10_000_000
"""Ranks times steps from which on freed memory is returned to the system after each layer."""


class Layer:
    """The n-th interval of one phase: its start and its own time, rank by step; -1 for none.

    There may be very many, so they are stored compactly: starts relative to the beginning of the step.
    """

    def __init__(self, phase: str, begin: Ints, since: Ints, ns: Ints) -> None:
        self.phase = phase
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
    """Whether each rank completed each step. In an attempt that failed, a step that raised is incomplete."""
    layers: list[Layer] = field(default_factory=list)
    between: dict[str, Ints] = field(default_factory=dict)
    """Nanoseconds of checkpoints and the like, by rank and the step before them."""
    events: list[Events] = field(default_factory=list)
    """Checkpoints and the like by rank, with their starts."""
    before: dict[str, Ints] = field(default_factory=dict)
    """Nanoseconds by rank before the first step: startup, restore, …"""
    cache: dict[Any, Any] = field(default_factory=dict)
    """Results of functions with ``once_per_grid``."""

    @property
    def is_large(self) -> bool:
        """Whether two threads are faster."""
        return self.begin.size >= LARGE

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


def once_per_grid(function: Callable[[Grid], T]) -> Callable[[Grid], T]:
    """Return a function of a grid whose result is kept with the grid: several callers need it."""

    @wraps(function)
    def wrapper(grid: Grid) -> T:
        if function not in grid.cache:
            grid.cache[function] = function(grid)
        result: T = grid.cache[function]
        return result

    return wrapper


def read_grids(run: Timelines) -> list[Grid]:
    """Return a grid for each attempt of a run, without workers and processes that have no phases."""
    return make_grids(timelines(run))


def make_grids(parts: Sequence[Timeline], *, consume: bool = False) -> list[Grid]:
    """Return a grid for each attempt.

    With ``consume``, the timelines lose their ``phases_by_step``, so that there are never two copies in
    memory.
    """
    by_attempt: dict[int, list[Timeline]] = {}
    for part in parts:
        if part.phases_by_step is not None:
            by_attempt.setdefault(part.attempt, []).append(part)
    return [_make_grid(number, by_attempt[number], consume) for number in sorted(by_attempt)]


def _make_grid(attempt: int, parts: list[Timeline], consume: bool) -> Grid:
    parts = sorted(parts, key=lambda part: part.rank)
    rows = [part.phases_by_step for part in parts if part.phases_by_step is not None]
    has_failed = worst_of(part.status for part in parts) in BY_EXCEPTION
    if consume:
        for part in parts:
            part.phases_by_step = None
    # Each layer is removed from these copies once it is in the grid.
    layers, between = [dict(row.layers) for row in rows], [dict(row.between) for row in rows]
    for row in rows if consume else ():
        row.layers, row.between = {}, {}
    grid = Grid(
        attempt,
        [part.rank for part in parts],
        merge_steps(row.steps for row in rows),
        np.empty((0, 0), np.int64),
        np.empty((0, 0), bool),
        events=[row.events for row in rows],
    )
    columns = [_columns(grid.steps, row.steps) for row in rows]
    width = len(grid.steps)
    grid.begin = _side_by_side(columns, width, [row.begin for row in rows], -1)
    grid.is_done = _side_by_side(columns, width, [row.is_done for row in rows], 0) != 0
    for place, row in enumerate(rows if has_failed else ()):
        grid.is_done[place, np.isin(grid.steps, row.failed)] = False
    for code, number in sorted({key for own in layers for key in own}):
        pairs = [own.pop((code, number), None) for own in layers]
        since = [None if pair is None else pair[0] for pair in pairs]
        ns = [None if pair is None else pair[1] for pair in pairs]
        layer = Layer(
            NAMES[code],
            grid.begin,
            _side_by_side(columns, width, since, 0),
            _side_by_side(columns, width, ns, -1),
        )
        grid.layers += [layer] if layer.is_used else []
        del pairs, since, ns
        if grid.begin.size >= HUGE:
            trim_malloc()
    for phase in (*BETWEEN, "startup"):
        grid.before[phase] = np.array([row.before.get(phase, 0) for row in rows], np.int64)
        amounts = [own.pop(phase, None) for own in between]
        if any(ns is not None for ns in amounts):
            grid.between[phase] = _side_by_side(columns, width, amounts, 0)
    idle = _idle(grid)
    grid.layers += [idle] if idle.is_used else []
    return grid


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
    return Layer(IDLE, grid.begin, since, gap)
