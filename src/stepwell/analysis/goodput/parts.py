"""The wall time of an attempt, split into parts that sum to it, in whole nanoseconds; and single losses.

Steps follow each other without gaps: each lasts until the first rank starts the next. The losses of a step
are subtracted one after the other, never more than is left. The rest is productive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stepwell._core.threads import map_arrays
from stepwell.analysis.ranks.arrivals import step_ns, sync_layers
from stepwell.analysis.ranks.grid import IDLE, Bools, Grid
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
    """A grid with at least one step; None if no span was recorded that is part of a step."""
    uncovered_ns: int
    """Time outside any span, on the rank with the most of it."""

    @property
    def first_step(self) -> int | None:
        """The first step; None if there is none."""
        return None if self.grid is None else int(self.grid.steps[0])

    @property
    def done_steps(self) -> Ints:
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

    def take_phases(self, phases: Mapping[str, Ints], left: Ints) -> Ints:
        """Move the time in phases between steps, by rank and step, to their parts; return the rest."""
        for phase, ns in phases.items():
            left = self.take(NAMES.get(phase, "initialisation"), middle(ns), left)
        return left


def split_attempt(attempt: JobAttempt, resumed: int | None, is_last: bool) -> Split:
    """Split an attempt. ``resumed`` is the step from which a later attempt continued, or None."""
    split = Split()
    grid = attempt.grid
    if grid is None:
        split.parts["startup"] = attempt.end_ns - attempt.start_ns
        return split
    begins = _boundaries(attempt, grid)
    before = {phase: ns[:, None] for phase, ns in grid.before.items()}
    left = split.take_phases(before, begins[:1] - attempt.start_ns)
    split.parts["startup"] += int(left[0])
    # Steps that a later attempt repeated are lost completely.
    kept = len(grid.steps) if resumed is None else int(np.searchsorted(grid.steps, resumed))
    whole = _count_whole(grid, kept)
    if whole == len(grid.steps):
        # The time after the last step does not belong to that step.
        begins[whole] = np.clip(_last_end(grid, whole), begins[whole - 1], attempt.end_ns)
    _split_steps(split, grid, begins[: whole + 1])
    _split_rest(split, attempt, grid, whole, kept, int(begins[whole]), is_last)
    # Idle time inside the user's own spans is productive: the grid only distinguishes phases.
    covered = max(0, split.parts["idle"] - attempt.uncovered_ns)
    split.parts["idle"] -= covered
    split.parts["productive"] += covered
    split.losses = [replace(loss, attempt=attempt.number, run=attempt.run) for loss in split.losses]
    return split


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
    latest = 0
    for layer in grid.layers:
        if layer.phase != IDLE:
            column = layer.start[:, count - 1] + np.maximum(layer.ns[:, count - 1], 0)
            latest = max(latest, int(column.max()))
    return latest


def _split_steps(split: Split, grid: Grid, begins: Ints) -> None:
    """Split the first steps. ``begins`` has one more element, the end of the last of them."""
    count = len(begins) - 1
    if count < 1:
        return
    losses = step_losses(grid)
    left = np.diff(begins)
    left = split.take("stall", losses.stall[:count], left)
    left = split.take("straggler wait", losses.straggler[:count], left)
    for phase, ns in losses.alone.items():
        left = split.take(NAMES[phase], ns[:count], left)
    left = split.take("initialisation", losses.warm_up[:count], left)
    # The time after the last step is split by _split_rest.
    until = count - (count == len(grid.steps))
    between = {phase: ns[:, :until] for phase, ns in grid.between.items()}
    left[:until] = split.take_phases(between, left[:until])
    data = np.maximum(middle(grid.total("data")) - losses.in_data, 0)[:count]
    bound = data_bound(grid, data, left)
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
            split.losses.append(Loss("redone", left, tuple(grid.steps[whole:].tolist())))
        return
    if whole == len(grid.steps):
        between = {phase: ns[:, -1:] for phase, ns in grid.between.items()}
        left = int(split.take_phases(between, np.array([left]))[0])
    elif whole < kept:
        # The attempt ended within a step: the excess over a typical step counts as a stall.
        typical = step_ns(grid)
        if left > max(LONG_STEPS * typical, LONG_NS):
            hung = left - typical
            split.losses.append(Loss("stall", hung, (int(grid.steps[whole]),)))
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


def step_losses(grid: Grid) -> StepLosses:
    """Return the losses of each step."""
    count = len(grid.steps)
    straggler, stall, warm_up, in_data = np.zeros((4, count), np.int64)
    losses = StepLosses(straggler, stall, warm_up, in_data, {}, [])
    for group in straggler_groups(grid):
        total = losses.straggler if group.kind == "chronic" else losses.stall
        if group.phase in BETWEEN:
            total = losses.alone.setdefault(group.phase, np.zeros(count, np.int64))
        else:
            losses.named += _losses_of_rank(grid, group)
        np.add.at(total, group.delays.waited, group.delays.ns)
    waited = sum(losses.alone.values(), losses.straggler + losses.stall)
    lasted = map_arrays(lambda phase: middle(grid.total(phase)), grid.phases, grid.is_large)
    for phase, ns in zip(grid.phases, lasted, strict=True):
        _add_common(losses, grid, phase, ns, waited)
    return losses


def _losses_of_rank(grid: Grid, group: DelayGroup) -> list[Loss]:
    rank, late = grid.ranks[group.place], group.delays
    if group.kind == "chronic":
        steps = tuple(grid.steps[np.unique(late.column)].tolist())
        return [Loss("straggler wait", int(late.ns.sum()), steps, rank, group.phase)]
    return [
        Loss("stall", ns, (step,), rank, group.phase)
        for step, ns in zip(grid.steps[late.column].tolist(), late.ns.tolist(), strict=True)
    ]


def _add_common(losses: StepLosses, grid: Grid, phase: str, lasted: Ints, late: Ints) -> None:
    """Add the steps in which a phase took very long on all ranks."""
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
    rank = grid.ranks[0] if len(grid.ranks) == 1 else None
    for column in np.flatnonzero(long & (first | rare)).tolist():
        kind, total = (
            ("initialisation", losses.warm_up) if first[column] else ("stall", losses.stall)
        )
        ns = int(excess[column])
        total[column] += ns
        losses.in_data[column] += ns if phase == "data" else 0
        losses.named.append(Loss(kind, ns, (int(grid.steps[column]),), rank, phase))


def data_bound(grid: Grid, data: Ints, lasted: Ints) -> list[Loss]:
    """Return the groups of steps that waited for data. The loss is the excess over the usual wait.

    ``data`` and ``lasted`` are nanoseconds by step, without stalls and stragglers.
    """
    is_bound = (data >= DATA_SHARE * lasted) & (data > 0)
    usual = int(np.median(data[~is_bound])) if (~is_bound).sum() > is_bound.sum() / 20 else 0
    return [
        Loss(
            "data",
            int((data[group] - usual).sum()),
            tuple(grid.steps[group].tolist()),
            phase="data",
        )
        for group in _stretches(is_bound)
    ]


def _stretches(chosen: Bools) -> list[Ints]:
    """Return the indices of chosen steps in groups without large gaps, without small groups."""
    places = np.flatnonzero(chosen)
    if not len(places):
        return []
    breaks = np.flatnonzero(np.diff(places) > MOST_HOLES + 1) + 1
    return [group for group in np.split(places, breaks) if len(group) >= LEAST_STRETCH]
