"""Losses that can be named: a rank, some steps, an amount."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.ranks.arrivals import meeting_layers, step_ns
from stepwell.analysis.ranks.grid import BETWEEN, Grid
from stepwell.analysis.ranks.stragglers import (
    FEW,
    LONG_NS,
    LONG_STEPS,
    WARM_UP,
    Group,
    straggler_groups,
)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

DATA_SHARE = 0.2
"""Steps that wait for data for this share of their time are bound by it."""
LEAST_STRETCH = 5
MOST_HOLES = 2


@dataclass(frozen=True)
class Loss:
    """Time that one thing cost."""

    kind: str
    """straggler wait, stall, data, initialisation (of the first steps), or redone."""
    ns: int
    steps: tuple[int, ...]
    rank: int | None = None
    """The rank that the others waited for; None when it was all of them."""
    phase: str | None = None
    attempt: int = 0
    run: str = ""


@dataclass
class StepLosses:
    """What each step of an attempt lost to stragglers, stalls and warming up."""

    straggler: Ints
    stall: Ints
    warm_up: Ints
    in_data: Ints
    """Of the stalls and the warming up, what all ranks waited for data."""
    alone: dict[str, Ints]
    """What the others waited for a rank that saved a checkpoint, validated or restored, by phase."""
    found: list[Loss]


def middle(values: Ints) -> Ints:
    """The median over ranks, step by step: what a rank has that is not the odd one out.

    Of two in the middle that are far apart it is the lower one.
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
    """Find what cost time in which steps."""
    count = len(grid.steps)
    straggler, stall, warm_up, in_data = np.zeros((4, count), np.int64)
    losses = StepLosses(straggler, stall, warm_up, in_data, {}, [])
    for group in straggler_groups(grid):
        total = losses.straggler if group.kind == "chronic" else losses.stall
        if group.phase in BETWEEN:
            total = losses.alone.setdefault(group.phase, np.zeros(count, np.int64))
        else:
            losses.found += _losses_of_rank(grid, group, run)
        np.add.at(total, group.delays.waited, group.delays.ns)
    waited = sum(losses.alone.values(), losses.straggler + losses.stall)
    for phase in grid.phases:
        _add_common(losses, grid, phase, waited, run)
    return losses


def _losses_of_rank(grid: Grid, group: Group, run: str) -> list[Loss]:
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
    """Steps in which a phase took very long on all ranks."""
    lasted = middle(grid.total(phase))
    if any(layer.phase == phase for layer in meeting_layers(grid)):
        # There they waited for whoever was slow, which has been counted.
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
        losses.found.append(_loss(kind, ns, grid, np.array([column]), phase, run, place))


def data_bound(grid: Grid, data: Ints, lasted: Ints, run: str) -> list[Loss]:
    """Stretches of steps that waited for data for much of their time; more than usual is lost.

    ``data`` and ``lasted`` are nanoseconds by step, stalls and stragglers left out.
    """
    is_bound = (data >= DATA_SHARE * lasted) & (data > 0)
    usual = int(np.median(data[~is_bound])) if (~is_bound).sum() > is_bound.sum() / 20 else 0
    found = []
    for group in _stretches(is_bound):
        ns = int((data[group] - usual).sum())
        found.append(_loss("data", ns, grid, group, "data", run, None))
    return found


def _stretches(chosen: Bools) -> list[Ints]:
    """Places that follow each other closely, in groups of some size."""
    places = np.flatnonzero(chosen)
    if not len(places):
        return []
    breaks = np.flatnonzero(np.diff(places) > MOST_HOLES + 1) + 1
    return [group for group in np.split(places, breaks) if len(group) >= LEAST_STRETCH]
