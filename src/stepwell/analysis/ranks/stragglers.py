"""Stragglers: ranks that take longer than the others in a phase, again and again or once.

A rank that comes early to where ranks wait for each other is there longer, and is not to blame. So
in such phases only the time counts that a rank needs beyond its lead over the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.ranks.grid import Grid, Layer, complete_steps, read_grids
from stepwell.reading import RecordedRun

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LEAST_SHARE = 0.1
"""Of a typical step: less is not worth a word."""
SIGMAS = 6.0
LONG_STEPS = 4.0
LONG_NS = 500_000_000
"""So much longer, in typical steps and in nanoseconds, is a stall where it happens once."""
FEW = 0.01
LEAST_STEPS = 10
LEAST_LOSS = 0.01
MEETING_LOSS = 0.02
"""Of the time of all steps, for a straggler that is slow again and again; the second where ranks wait."""
EXCESSES = "excesses"
BLOCK = 1 << 14
DOMINANCE = 3.0
"""So many times what the ranks in the middle have of the same."""


@dataclass(frozen=True)
class Straggler:
    """A rank that the others waited for."""

    rank: int
    phase: str
    kind: str
    """chronic: again and again; one-off: once, for long."""
    steps: tuple[int, ...]
    """In which it was slow."""
    ns: int
    """How much longer than the others it took in these steps, in all."""
    typical_ns: int
    """What the phase takes on the other ranks in a step, in the middle."""
    share: float
    """Of all steps, those in which it was slow."""


@dataclass(frozen=True)
class Excess:
    """How much longer than the others some ranks took in a phase of each step, waiting left out."""

    phase: str
    places: list[int]
    """Which ranks of the grid these are: those that were ever slow. A row of the following each."""
    ns: Ints
    typical: Ints
    """What it took on the others."""
    slow: Bools
    long: Bools
    """Of the slow ones those that are stalls."""


def stragglers(run: RecordedRun, grids: list[Grid] | None = None) -> list[Straggler]:
    """Those of all attempts, the costliest first."""
    grids = read_grids(run) if grids is None else grids
    total = sum(len(grid.steps) for grid in grids)
    found: dict[tuple[int, str, str, int], list[tuple[Ints, int, int]]] = {}
    for grid in grids:
        for excess in excesses(grid):
            for row in range(len(excess.places)):
                _note(found, grid, excess, row)
    made = [
        Straggler(
            rank,
            phase,
            kind,
            steps=tuple(np.unique(np.concatenate([part[0] for part in parts])).tolist()),
            ns=sum(part[1] for part in parts),
            typical_ns=int(np.median([part[2] for part in parts])),
            share=sum(len(part[0]) for part in parts) / max(1, total),
        )
        for (rank, phase, kind, _), parts in found.items()
    ]
    return sorted(made, key=lambda s: (-s.ns, s.rank))


def _note(
    found: dict[tuple[int, str, str, int], list[tuple[Ints, int, int]]],
    grid: Grid,
    excess: Excess,
    row: int,
) -> None:
    rank = grid.ranks[excess.places[row]]
    for kind, chosen in (
        ("chronic", excess.slow[row] & ~excess.long[row]),
        ("one-off", excess.slow[row] & excess.long[row]),
    ):
        columns = np.flatnonzero(chosen)
        # One that happens once is told by itself; what recurs is told together.
        groups = (
            [columns] if kind == "chronic" else [columns[i : i + 1] for i in range(len(columns))]
        )
        for group in groups:
            if len(group):
                ns = int(excess.ns[row, group].sum())
                typical = int(np.median(excess.typical[row, group]))
                step = -1 if kind == "chronic" else int(grid.steps[group[0]])
                part = grid.steps[group], ns, typical
                found.setdefault((rank, excess.phase, kind, step), []).append(part)


def step_ns(grid: Grid) -> int:
    """How long a step takes typically, from its beginning to that of the next one."""
    lasted = np.diff(grid.begin, axis=1)[(grid.begin[:, :-1] >= 0) & (grid.begin[:, 1:] >= 0)]
    if len(lasted):
        return max(1, int(np.median(lasted)))
    done = sum((grid.total(phase) for phase in grid.phases), np.zeros_like(grid.begin))
    return max(1, int(np.median(done))) if done.size else 1


def excesses(grid: Grid) -> list[Excess]:
    """What of each phase stands out on which rank and in which step; nothing with a single rank."""
    if len(grid.ranks) < 2 or not len(grid.steps):
        return []
    if EXCESSES not in grid.notes:
        typical_step = step_ns(grid)
        made = [_excess(grid, phase, typical_step) for phase in grid.phases]
        grid.notes[EXCESSES] = [excess for excess in made if excess.places]
    found: list[Excess] = grid.notes[EXCESSES]
    return found


def _excess(grid: Grid, phase: str, typical_step: int) -> Excess:
    shape, least = grid.begin.shape, LEAST_LOSS
    ns, typical = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for layer in grid.layers:
        if layer.phase == phase:
            is_met = is_meeting(layer)
            own, others = own_time(layer, is_met)
            least = MEETING_LOSS if is_met else least
            ns += own
            typical += others
    limit = max(LEAST_SHARE * typical_step, SIGMAS * _noise(ns))
    slow = ns > limit
    counted, long = _sorted_out(ns, slow, typical_step, least)
    rows = np.flatnonzero(counted.any(axis=1))
    return Excess(phase, rows.tolist(), ns[rows], typical[rows], counted[rows], long[rows])


def _sorted_out(ns: Ints, slow: Bools, typical_step: int, least: float) -> tuple[Bools, Bools]:
    """Which of the slow steps count, and which of these are stalls."""
    count = ns.shape[1]
    long = slow & (ns > max(LONG_STEPS * typical_step, LONG_NS))
    # What takes so long again and again does not happen once.
    long &= (long.sum(axis=1) <= max(3, FEW * count))[:, None]
    short = slow & ~long
    lost = np.where(short, ns, 0).sum(axis=1)
    enough = short.sum(axis=1) >= min(LEAST_STEPS, max(3, count // 2))
    enough &= lost >= least * typical_step * count
    enough &= lost >= DOMINANCE * others_median(lost[:, None])[:, 0]
    return (short & enough[:, None]) | long, long


def own_time(layer: Layer, is_met: bool) -> tuple[Ints, Ints]:
    """How much longer than the others each rank took, its waiting for them left out; and what they took."""
    ns = layer.ns
    found, typical = np.zeros(ns.shape, np.int64), np.zeros(ns.shape, np.int64)
    here = _taking_part(ns)
    if here is None:
        return found, typical
    ranks, steps = here
    start = layer.start if is_met else ns
    for first in range(0, len(steps), BLOCK):
        # In blocks, so that what is in between takes little memory.
        block = np.ix_(ranks, steps[first : first + BLOCK])
        lasted = ns[block]
        others = others_median(lasted)
        own = lasted - others
        if is_met:
            own -= np.minimum(_lead(start[block]), np.maximum(own, 0))
        found[block], typical[block] = own, others
    return found, typical


def is_meeting(layer: Layer) -> bool:
    """Whether ranks wait for each other in it: however they come, they leave together."""
    if layer.phase == "communication":
        return True
    ns = layer.ns
    here = _taking_part(ns)
    if here is None:
        return False
    ranks, steps = here
    start = layer.start
    coming, leaving = np.empty((2, len(steps)), np.int64)
    for first in range(0, len(steps), BLOCK):
        block = np.ix_(ranks, steps[first : first + BLOCK])
        coming[first : first + BLOCK] = np.ptp(start[block], axis=0)
        leaving[first : first + BLOCK] = np.ptp(start[block] + ns[block], axis=0)
    return bool(np.median(leaving) < 0.5 * np.median(coming))


def _taking_part(ns: Ints) -> tuple[Ints, Ints] | None:
    """The ranks that do this at all, and the steps in which they all did; None for fewer than two."""
    ranks = np.flatnonzero((ns >= 0).mean(axis=1) >= 0.5)
    steps = np.flatnonzero(complete_steps(ns))
    return (ranks, steps) if len(ranks) >= 2 and len(steps) else None


def others_median(values: Ints) -> Ints:
    """For each rank the median of the other ranks, column by column.

    Of two in the middle it is their mean, which a rank in the middle of a spread would have too. Where they
    are far apart one of them may be slow itself, and it is the lower one.
    """
    count = len(values)
    at = (count - 2) // 2
    ordered = np.sort(values, axis=0)
    lower: Ints = np.where(values <= ordered[at], ordered[at + 1], ordered[at])
    if count % 2 == 0:
        return lower
    upper = np.where(values <= ordered[at + 1], ordered[at + 2], ordered[at + 1])
    is_close = 4 * (upper - lower) < values - lower
    found: Ints = np.where(is_close, (lower + upper) // 2, lower)
    return found


def _lead(start: Ints) -> Ints:
    """How much earlier than the last one each rank was there."""
    lead: Ints = start.max(axis=0) - start
    return lead


def _noise(ns: Ints) -> float:
    """How much it varies from step to step. A shift that lasts is no noise."""
    if ns.shape[1] < 3:
        return 0.0
    return float(np.median(np.abs(np.diff(ns, axis=1)))) / 0.954
