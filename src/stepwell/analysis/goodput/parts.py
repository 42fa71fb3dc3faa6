"""The wall time of an attempt, split into parts that sum to it, in whole nanoseconds; and single losses.

Steps follow each other without gaps: each lasts until the first rank starts the next. The losses of a step
are subtracted one after the other, never more than is left. The rest is productive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.ranks.arrivals import step_ns, sync_layers
from stepwell.analysis.ranks.grid import IDLE, Grid
from stepwell.analysis.ranks.stragglers import (
    FEW,
    LONG_NS,
    LONG_STEPS,
    DelayGroup,
    straggler_groups,
)
from stepwell.analysis.timeline.intervals import Ints
from stepwell.analysis.timeline.step_phases import BETWEEN
from stepwell.analysis.timeline.tables import WARM_UP

PARTS: dict[str, str] = {
    "productive": "training steps that were kept, with your own spans, without waiting for data or ranks",
    "startup": "from the start of the processes to the first step, outside the phases below",
    "initialisation": "setting up processes, data, model and optimizer; warming up in the first steps",
    "data": "waiting for data",
    "checkpoint save": "saving checkpoints while training waits",
    "restore": "loading a checkpoint",
    "validation": "validation and testing",
    "redone": "steps that were lost in a restart and had to be repeated",
    "gap between attempts": "from the end of one attempt to the start of the next",
    "stall": "single steps or phases that took very long",
    "straggler wait": "waiting for ranks that are repeatedly slow",
    "idle": "code between steps, outside any span",
    "ending": "after the last step",
}
"""The parts of the wall time of a job, with their meaning."""

NAMES = {
    "checkpoint": "checkpoint save",
    "restore": "restore",
    "validation": "validation",
    "testing": "validation",
}
"""The part to which a phase between steps belongs."""
Bools = NDArray[np.bool_]
DATA_SHARE = 0.2
"""Steps that wait for data for at least this share of their time are data-bound."""
LEAST_STRETCH = 5
"""Least number of data-bound steps in a group …"""
MOST_HOLES = 2
"""… with at most this many other steps between two of them."""


@dataclass
class JobAttempt:
    """One attempt of a job."""

    run: str
    number: int
    start_ns: int
    end_ns: int
    status: str
    grid: Grid | None
    """None if no span was recorded that is part of a step or has a phase."""
    uncovered_ns: int
    """Time outside any span, on the rank with the most of it."""

    @property
    def first_step(self) -> int | None:
        """The first step; None if there is none."""
        has_steps = self.grid is not None and len(self.grid.steps)
        return int(self.grid.steps[0]) if self.grid is not None and has_steps else None

    @property
    def done_steps(self) -> NDArray[np.int64]:
        """The steps that all ranks completed, ascending."""
        if self.grid is None:
            return np.empty(0, np.int64)
        return self.grid.steps[self.grid.complete]


@dataclass
class Split:
    """The time of one attempt by part. The parts sum to its wall time."""

    parts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    losses: list[Loss] = field(default_factory=list)

    def take(self, part: str, wanted: Ints, left: Ints) -> Ints:
        """Move up to ``wanted`` nanoseconds of ``left`` to a part, step by step; return the rest."""
        taken = np.minimum(np.maximum(wanted, 0), left)
        self.parts[part] += int(taken.sum())
        rest: Ints = left - taken
        return rest


def split_attempt(attempt: JobAttempt, resumed: int | None, is_last: bool) -> Split:
    """Split an attempt. ``resumed`` is the step from which a later attempt continued, or None."""
    split = Split()
    grid = attempt.grid
    if grid is None or not len(grid.steps):
        split.parts["startup"] = attempt.end_ns - attempt.start_ns
        return split
    begins = _boundaries(attempt, grid)
    _split_before(split, grid, int(begins[0]) - attempt.start_ns)
    # Steps that a later attempt repeated are lost completely.
    kept = len(grid.steps) if resumed is None else int(np.searchsorted(grid.steps, resumed))
    whole = _count_whole(grid, kept)
    if whole == len(grid.steps):
        # The time after the last step does not belong to that step.
        begins[whole] = np.clip(_last_end(grid, whole), begins[whole - 1], attempt.end_ns)
    _split_steps(split, attempt, grid, begins[: whole + 1])
    _split_rest(split, attempt, grid, whole, kept, int(begins[whole]), is_last)
    _give_back_own_spans(split, attempt)
    return split


def _give_back_own_spans(split: Split, attempt: JobAttempt) -> None:
    """Count idle time inside the user's own spans as productive: the grid only distinguishes phases."""
    covered = max(0, split.parts["idle"] - attempt.uncovered_ns)
    split.parts["idle"] -= covered
    split.parts["productive"] += covered


def _count_whole(grid: Grid, kept: int) -> int:
    """Return the number of steps without the incomplete ones at the end."""
    complete = np.flatnonzero(grid.complete[:kept])
    return int(complete[-1]) + 1 if len(complete) else 0


def _boundaries(attempt: JobAttempt, grid: Grid) -> Ints:
    """Return the start of each step on its first rank, and the end of the attempt."""
    unknown = np.iinfo(np.int64).max
    begins = np.where(grid.begin >= 0, grid.begin, unknown).min(axis=0)
    edges = np.append(begins, attempt.end_ns)
    # Ascending, in whatever order a loop numbers its steps, and within the attempt.
    edges = np.minimum.accumulate(edges[::-1])[::-1]
    clipped: Ints = np.clip(edges, attempt.start_ns, attempt.end_ns)
    return clipped


def _last_end(grid: Grid, count: int) -> int:
    """Return when the last rank ended the last of ``count`` steps, without idle time after it."""
    if not count:
        return 0
    latest = 0
    for layer in grid.layers:
        if layer.phase != IDLE:
            column = layer.start[:, count - 1] + np.maximum(layer.ns[:, count - 1], 0)
            latest = max(latest, int(column.max()))
    return latest


def _split_before(split: Split, grid: Grid, total: int) -> None:
    left = np.array([total])
    for phase, ns in grid.before.items():
        left = split.take(NAMES.get(phase, "initialisation"), middle(ns[:, None]), left)
    split.parts["startup"] += int(left[0])


def _split_steps(split: Split, attempt: JobAttempt, grid: Grid, begins: Ints) -> None:
    """Split the first steps. ``begins`` has one more element, the end of the last of them."""
    count = len(begins) - 1
    if count < 1:
        return
    losses = step_losses(grid, attempt.run)
    left = np.diff(begins)
    left = split.take("stall", losses.stall[:count], left)
    left = split.take("straggler wait", losses.straggler[:count], left)
    for phase, ns in losses.alone.items():
        left = split.take(NAMES[phase], ns[:count], left)
    left = split.take("initialisation", losses.warm_up[:count], left)
    for phase, ns in grid.between.items():
        # The time after the last step is split by _split_rest.
        until = count - (count == len(grid.steps))
        taken = split.take(NAMES.get(phase, "initialisation"), middle(ns)[:until], left[:until])
        left = np.append(taken, left[until:])
    data = np.maximum(middle(grid.total("data")) - losses.in_data, 0)[:count]
    bound = data_bound(grid, data, left, attempt.run)
    split.losses += [*losses.named, *bound]
    left = split.take("data", data, left)
    left = split.take("idle", middle(grid.total(IDLE))[:count], left)
    split.parts["productive"] += int(left.sum())


def _split_rest(
    split: Split, attempt: JobAttempt, grid: Grid, whole: int, kept: int, since: int, is_last: bool
) -> None:
    """Split the time after the last step that was kept, until the end of the attempt."""
    left = attempt.end_ns - since
    if not is_last:
        split.parts["redone"] += left
        if left:
            steps = tuple(grid.steps[whole:].tolist())
            split.losses.append(
                Loss("redone", left, steps, attempt=attempt.number, run=attempt.run)
            )
        return
    if whole and whole == len(grid.steps):
        rest = np.array([left])
        for phase, ns in grid.between.items():
            rest = split.take(NAMES.get(phase, "initialisation"), middle(ns[:, -1:]), rest)
        left = int(rest[0])
    elif whole < kept:
        # The attempt ended within a step: the excess over a typical step counts as a stall.
        typical = step_ns(grid)
        if left > max(LONG_STEPS * typical, LONG_NS):
            steps = (int(grid.steps[whole]),)
            hung = left - typical
            split.losses.append(Loss("stall", hung, steps, attempt=attempt.number, run=attempt.run))
            split.parts["stall"] += hung
            left = typical
    # While the run is running, its current step counts as productive.
    split.parts["productive" if attempt.status == "running" else "ending"] += left


@dataclass(frozen=True)
class Loss:
    """A single loss of time."""

    kind: str
    """``straggler wait``, ``stall``, ``data``, ``initialisation`` (of the first steps) or ``redone``."""
    ns: int
    steps: tuple[int, ...]
    rank: int | None = None
    """The rank that the others waited for; None if all ranks were slow."""
    phase: str | None = None
    attempt: int = 0
    run: str = ""


@dataclass
class StepLosses:
    """The losses of each step of an attempt, in nanoseconds."""

    straggler: Ints
    stall: Ints
    warm_up: Ints
    in_data: Ints
    """The part of ``stall`` and ``warm_up`` in which all ranks waited for data."""
    alone: dict[str, Ints]
    """Waiting for a single rank that saved, validated or restored, by phase."""
    named: list[Loss]


def middle(values: Ints) -> Ints:
    """Return the median over ranks of each step.

    Of an even number of ranks, the lower of the two middle values if they are far apart.
    """
    if len(values) == 1:
        alone: Ints = values[0].copy()
        return alone
    at = (len(values) - 1) // 2
    if len(values) % 2:
        odd: Ints = np.partition(values, at, axis=0)[at]
        return odd
    ordered = np.partition(values, [at, at + 1], axis=0)
    lower, upper = ordered[at], ordered[at + 1]
    even: Ints = np.where(4 * (upper - lower) < lower, (lower + upper) // 2, lower)
    return even


def step_losses(grid: Grid, run: str) -> StepLosses:
    """Return the losses of each step."""
    count = len(grid.steps)
    straggler, stall, warm_up, in_data = np.zeros((4, count), np.int64)
    losses = StepLosses(straggler, stall, warm_up, in_data, {}, [])
    for group in straggler_groups(grid):
        total = losses.straggler if group.kind == "chronic" else losses.stall
        if group.phase in BETWEEN:
            total = losses.alone.setdefault(group.phase, np.zeros(count, np.int64))
        else:
            losses.named += _losses_of_rank(grid, group, run)
        np.add.at(total, group.delays.waited, group.delays.ns)
    waited = sum(losses.alone.values(), losses.straggler + losses.stall)
    for phase in grid.phases:
        _add_common(losses, grid, phase, waited, run)
    return losses


def _losses_of_rank(grid: Grid, group: DelayGroup, run: str) -> list[Loss]:
    place = group.place
    if group.kind == "chronic":
        columns = np.unique(group.delays.column)
        return [
            _loss(
                "straggler wait", int(group.delays.ns.sum()), grid, columns, group.phase, run, place
            )
        ]
    return [
        _loss("stall", int(ns), grid, np.array([column]), group.phase, run, place)
        for column, ns in zip(group.delays.column, group.delays.ns, strict=True)
    ]


def _loss(
    kind: str, ns: int, grid: Grid, columns: Ints, phase: str, run: str, place: int | None
) -> Loss:
    steps = tuple(grid.steps[columns].tolist())
    rank = None if place is None else grid.ranks[place]
    return Loss(kind, ns, steps, rank, phase, grid.attempt, run)


def _add_common(losses: StepLosses, grid: Grid, phase: str, late: Ints, run: str) -> None:
    """Add the steps in which a phase took very long on all ranks."""
    lasted = middle(grid.total(phase))
    if any(layer.phase == phase for layer in sync_layers(grid)):
        # In this phase ranks wait for slow ranks, which has been counted already.
        lasted = np.maximum(lasted - late, 0)
    done = grid.complete
    if not done.any():
        return
    excess = lasted - int(np.median(lasted[done]))
    long = done & (excess > max(LONG_STEPS * step_ns(grid), LONG_NS))
    first = np.arange(len(long)) < min(WARM_UP, len(long) // 2)
    rare = (long & ~first).sum() <= max(3, FEW * len(long))
    place = 0 if len(grid.ranks) == 1 else None
    for column in np.flatnonzero(long & (first | rare)).tolist():
        kind, total = (
            ("initialisation", losses.warm_up) if first[column] else ("stall", losses.stall)
        )
        ns = int(excess[column])
        total[column] += ns
        losses.in_data[column] += ns if phase == "data" else 0
        losses.named.append(_loss(kind, ns, grid, np.array([column]), phase, run, place))


def data_bound(grid: Grid, data: Ints, lasted: Ints, run: str) -> list[Loss]:
    """Return the groups of steps that waited for data. The loss is the excess over the usual wait.

    ``data`` and ``lasted`` are nanoseconds by step, without stalls and stragglers.
    """
    is_bound = (data >= DATA_SHARE * lasted) & (data > 0)
    usual = int(np.median(data[~is_bound])) if (~is_bound).sum() > is_bound.sum() / 20 else 0
    return [
        _loss("data", int((data[group] - usual).sum()), grid, group, "data", run, None)
        for group in _stretches(is_bound)
    ]


def _stretches(chosen: Bools) -> list[Ints]:
    """Return the indices of chosen steps in groups without large gaps, without small groups."""
    places = np.flatnonzero(chosen)
    if not len(places):
        return []
    breaks = np.flatnonzero(np.diff(places) > MOST_HOLES + 1) + 1
    return [group for group in np.split(places, breaks) if len(group) >= LEAST_STRETCH]
