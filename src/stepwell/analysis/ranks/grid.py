"""Ranks by steps: what every rank did in every step, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.ranks.stretches import CODES, NAMES, Stretches, read_stretches
from stepwell.reading import RecordedRun
from stepwell.reading.tables import ProcessTables

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

IDLE = "idle"
"""The time between the stretches of a step and the next step, in which no span was open."""
IN_STEP = ("data", "transfer", "forward", "backward", "optimizer", "communication", "training")
BETWEEN = ("checkpoint", "validation", "testing", "restore")
_IS_IN_STEP = np.isin(np.arange(len(NAMES) + 2), [CODES[phase] for phase in IN_STEP])
MOST_NUMBERS = 6
"""So many stretches of one phase are kept apart in a step; more are taken together with the last."""


@dataclass
class Layer:
    """The n-th stretch of one phase: when it began and its own time, rank by step; -1 for none."""

    phase: str
    number: int
    start: Ints
    ns: Ints

    @property
    def is_complete(self) -> Bools:
        """In which steps all ranks that do this at all have done it."""
        takes_part = (self.ns >= 0).mean(axis=1) >= 0.5
        if not takes_part.any():
            return np.zeros(self.ns.shape[1], bool)
        complete: Bools = (self.ns[takes_part] >= 0).all(axis=0)
        return complete


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
    before: dict[str, Ints] = field(default_factory=dict)
    """Nanoseconds by rank of what came before the first step: startup, restore, …"""
    last_ns: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """When the last stretch of each rank was over, or began if it never was."""

    @property
    def complete(self) -> Bools:
        """Which steps were completed by all ranks that began them."""
        begun = self.begin >= 0
        return np.asarray(begun.any(axis=0) & (self.is_done | ~begun).all(axis=0))

    def total(self, phase: str) -> Ints:
        """Nanoseconds in a phase, rank by step."""
        layers = [layer.ns for layer in self.layers if layer.phase == phase]
        if not layers:
            return np.zeros(self.begin.shape, np.int64)
        total: Ints = np.sum([np.maximum(ns, 0) for ns in layers], axis=0)
        return total

    @property
    def phases(self) -> list[str]:
        """The phases that steps consist of here."""
        return list(dict.fromkeys(layer.phase for layer in self.layers))


def read_grids(run: RecordedRun, look: Callable[[ProcessTables], None] | None = None) -> list[Grid]:
    """The attempts of a run. Processes without any span are left out, and workers.

    ``look`` is shown every process, for who wants something else of it in the same pass.
    """
    found: dict[int, list[Stretches]] = {}
    for tables in run.by_process():
        if look is not None:
            look(tables)
        if tables.process.about["role"] == "worker":
            continue
        stretches = read_stretches(tables)
        if stretches is not None and len(stretches.step):
            found.setdefault(stretches.attempt, []).append(stretches)
    return [make_grid(number, found[number]) for number in sorted(found)]


def make_grid(attempt: int, processes: Iterable[Stretches]) -> Grid:
    """Put the processes of one attempt side by side."""
    rows = sorted(processes, key=lambda s: s.rank)
    steps = _all_steps(rows)
    shape = (len(rows), len(steps))
    grid = Grid(
        attempt,
        [row.rank for row in rows],
        steps,
        np.full(shape, -1, np.int64),
        np.zeros(shape, bool),
        last_ns=np.array([int(row.end.max(initial=0)) for row in rows], np.int64),
    )
    layers: dict[tuple[int, int], Layer] = {}
    for place, row in enumerate(rows):
        _fill(grid, layers, place, row)
    grid.layers = [layers[key] for key in sorted(layers) if (layers[key].ns > 0).any()]
    idle = _idle(grid)
    if (idle.ns > 0).any():
        grid.layers.append(idle)
    return grid


def _all_steps(rows: list[Stretches]) -> Ints:
    found = [_unique(row.step[_IS_IN_STEP[row.phase]]) for row in rows]
    steps = _unique(np.sort(np.concatenate([np.empty(0, np.int64), *found])))
    return steps[steps >= 0]


def _unique(steps: Ints) -> Ints:
    """The different ones, of numbers that are mostly in order; in any order if they are not."""
    is_new = np.ones(len(steps), bool)
    is_new[1:] = steps[1:] != steps[:-1]
    return steps[is_new]


def _fill(grid: Grid, layers: dict[tuple[int, int], Layer], place: int, row: Stretches) -> None:
    column = np.searchsorted(grid.steps, row.step)
    in_step = _IS_IN_STEP[row.phase] & (row.step >= 0)
    _fill_between(grid, place, row, in_step)
    own = np.flatnonzero(in_step)
    column = column[own]
    first = np.full(len(grid.steps), np.iinfo(np.int64).max)
    np.minimum.at(first, column, row.start[own])
    grid.begin[place] = np.where(first == np.iinfo(np.int64).max, -1, first)
    grid.is_done[place] = grid.begin[place] >= 0
    grid.is_done[place, column[row.is_open[own]]] = False
    for code in np.flatnonzero(np.bincount(row.phase[own])).tolist():
        chosen = row.phase[own] == code
        at, where = column[chosen], own[chosen]
        number = np.minimum(_numbers(at), MOST_NUMBERS - 1)
        for each in range(int(number.max()) + 1):
            key = (code, each)
            if key not in layers:
                blank = np.full(grid.begin.shape, -1, np.int64)
                layers[key] = Layer(NAMES[code], each, blank, blank.copy())
            layer, these = layers[key], number == each
            target, source = at[these], where[these]
            closed = ~row.is_open[source]
            target, source = target[closed], source[closed]
            # Backwards, so that of several the first one's start stays.
            layer.start[place, target[::-1]] = row.start[source][::-1]
            layer.ns[place, target] = 0
            np.add.at(layer.ns[place], target, row.ns[source])


def _numbers(column: Ints) -> Ints:
    """How many of the same step came before each."""
    order = np.argsort(column, kind="stable")
    ordered = column[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    begins = np.maximum.accumulate(np.where(is_first, np.arange(len(ordered)), 0))
    numbers = np.empty(len(column), np.int64)
    numbers[order] = np.arange(len(ordered)) - begins
    return numbers


def _fill_between(grid: Grid, place: int, row: Stretches, in_step: Bools) -> None:
    """What is no part of a step, after the step that began last before it."""
    begins = row.start[in_step].min(initial=np.iinfo(np.int64).max)
    for phase in (*BETWEEN, "startup"):
        chosen = np.flatnonzero((row.phase == CODES[phase]) & ~row.is_open)
        early = row.start[chosen] < begins
        before = grid.before.setdefault(phase, np.zeros(len(grid.ranks), np.int64))
        before[place] += int(row.ns[chosen[early]].sum())
        late = chosen[~early]
        if not len(late):
            continue
        after = grid.between.setdefault(phase, np.zeros(grid.begin.shape, np.int64))
        starts, columns = row.start[in_step], np.searchsorted(grid.steps, row.step[in_step])
        last = columns[np.searchsorted(starts, row.start[late], side="right") - 1]
        np.add.at(after[place], last, row.ns[late])


def _idle(grid: Grid) -> Layer:
    """What is left of a step until the next one begins."""
    busy = sum((np.maximum(layer.ns, 0) for layer in grid.layers), np.zeros_like(grid.begin))
    for ns in grid.between.values():
        busy = busy + ns
    gap = np.full(grid.begin.shape, -1, np.int64)
    known = (grid.begin[:, :-1] >= 0) & (grid.begin[:, 1:] >= 0) & grid.is_done[:, :-1]
    left = grid.begin[:, 1:] - grid.begin[:, :-1] - busy[:, :-1]
    gap[:, :-1] = np.where(known, np.maximum(left, 0), -1)
    start = np.full(grid.begin.shape, -1, np.int64)
    start[:, :-1] = np.where(known, grid.begin[:, 1:] - gap[:, :-1], -1)
    return Layer(IDLE, 0, start, gap)
