"""Losses that can be named: a rank, some steps, an amount."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.ranks.grid import Grid
from stepwell.analysis.ranks.stragglers import (
    FEW,
    LONG_NS,
    LONG_STEPS,
    Excess,
    excesses,
    is_meeting,
    step_ns,
)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

DATA_SHARE = 0.2
"""Steps that wait for data for this share of their time are bound by it."""
LEAST_STRETCH = 5
MOST_HOLES = 2
WARM_UP = 3
"""In so many first steps of an attempt things are compiled and allocated."""


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
    nothing = np.zeros(len(grid.steps), np.int64)
    losses = StepLosses(nothing, nothing.copy(), nothing.copy(), nothing.copy(), [])
    # How late each rank was in all. The others wait for the latest, not for one after the other.
    known = excesses(grid)
    places = sorted({place for excess in known for place in excess.places})
    late, once = np.zeros((2, len(places), len(grid.steps)), np.int64)
    for excess in known:
        rows = np.searchsorted(places, excess.places)
        late[rows] += np.where(excess.slow, excess.ns, 0)
        once[rows] += np.where(excess.long, excess.ns, 0)
        losses.found += _losses_of_ranks(grid, excess, run)
    latest = late.max(axis=0, initial=0)
    losses.stall += once.max(axis=0, initial=0)
    losses.straggler += latest - np.minimum(losses.stall, latest)
    for phase in grid.phases:
        _add_common(losses, grid, phase, latest, run)
    return losses


def _losses_of_ranks(grid: Grid, excess: Excess, run: str) -> list[Loss]:
    found = []
    for kind, chosen in (
        ("straggler wait", excess.slow & ~excess.long),
        ("stall", excess.slow & excess.long),
    ):
        for row in np.flatnonzero(chosen.any(axis=1)).tolist():
            columns = np.flatnonzero(chosen[row])
            groups = [columns] if kind == "straggler wait" else np.split(columns, len(columns))
            for group in groups:
                ns = int(excess.ns[row, group].sum())
                place = excess.places[row]
                found.append(_loss(kind, ns, grid, group, excess.phase, run, place))
    return found


def _loss(
    kind: str, ns: int, grid: Grid, columns: Ints, phase: str, run: str, place: int | None
) -> Loss:
    steps = tuple(grid.steps[columns].tolist())
    rank = None if place is None else grid.ranks[place]
    return Loss(kind, ns, steps, rank, phase, grid.attempt, run)


def _add_common(losses: StepLosses, grid: Grid, phase: str, late: Ints, run: str) -> None:
    """Steps in which a phase took very long on all ranks."""
    lasted = middle(grid.total(phase))
    if any(layer.phase == phase and is_meeting(layer) for layer in grid.layers):
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
