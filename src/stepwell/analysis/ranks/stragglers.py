"""Stragglers: ranks that the others wait for, again and again or once, and what they do meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.ranks.arrivals import Delays, delays, meeting_layers, step_ns
from stepwell.analysis.ranks.grid import BETWEEN, Grid, read_grids
from stepwell.analysis.time.rhythm import rhythm
from stepwell.analysis.time.words import CODES, NAMES
from stepwell.reading import RecordedRun

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LONG_STEPS = 4.0
LONG_NS = 500_000_000
"""A delay that is longer than this, in typical steps and in nanoseconds, counts also when it happens once."""
FEW = 0.01
WARM_UP = 3
"""First steps of an attempt, in which things are compiled and allocated."""
OUTLIER = 10.0
"""A delay this many times as long as the median delay is a case of its own."""
FEWEST = 3
FEWEST_REGULAR = 5
LEAST_STEPS = 10
"""Delays that make a pattern: if they are long and regular, if they are regular, and if they are not."""
LEAST_LOSS = 0.01
"""Share of the time of all steps that a pattern must cost."""
DOMINANCE = 3.0
"""A pattern is a rank's own if the ranks in the middle have less than a third of it."""
AGREEMENT = 0.5
"""Of the delays: so much more time in all must the rank spend in the phase."""
ALONE = ("data", "transfer", "forward", "optimizer")
"""Phases in which a rank works by itself."""
MOST_OF_IT = 0.9
OWN_ACTS = frozenset(CODES[phase] for phase in BETWEEN)
"""Phases that a program enters on purpose, so that a delay in them is no accident."""
GROUPS = "straggler groups"


@dataclass(frozen=True)
class Straggler:
    """A rank that the others waited for."""

    rank: int
    phase: str
    kind: str
    """chronic: again and again; one-off: once, for long."""
    steps: tuple[int, ...]
    """In which the rank spent the time."""
    waited: tuple[int, ...]
    """In which the others waited: the same steps, or those that follow."""
    ns: int
    """How long the others waited in all."""
    typical_ns: int
    """How long the same takes on the other ranks, in the middle."""
    share: float
    """Of all steps, those in which it was slow."""
    period: int | None = None
    """Steps from one to the next, where that is regular."""


@dataclass(frozen=True)
class Group:
    """Delays of one rank with one reason, which belong together."""

    place: int
    phase: str
    kind: str
    delays: Delays


def stragglers(run: RecordedRun, grids: list[Grid] | None = None) -> list[Straggler]:
    """Those of all attempts, the costliest first."""
    grids = read_grids(run) if grids is None else grids
    total = sum(len(grid.steps) for grid in grids)
    merged: dict[tuple[int, str, str], list[tuple[Ints, Ints, Delays]]] = {}
    for grid in grids:
        for group in straggler_groups(grid):
            key = grid.ranks[group.place], group.phase, group.kind
            steps, waited = grid.steps[group.delays.column], grid.steps[group.delays.waited]
            merged.setdefault(key, []).append((steps, waited, group.delays))
    made = [_straggler(*key, parts, total) for key, parts in merged.items()]
    return sorted(made, key=lambda s: (-s.ns, s.rank))


def _straggler(
    rank: int, phase: str, kind: str, parts: list[tuple[Ints, Ints, Delays]], total: int
) -> Straggler:
    steps, waited = (np.unique(np.concatenate([part[i] for part in parts])) for i in (0, 1))
    regular = rhythm(steps) if len(steps) >= FEWEST else None
    return Straggler(
        rank,
        phase,
        kind,
        steps=tuple(steps.tolist()),
        waited=tuple(waited.tolist()),
        ns=sum(int(found.ns.sum()) for _, _, found in parts),
        typical_ns=int(np.median(np.concatenate([found.typical for _, _, found in parts]))),
        share=sum(len(np.unique(part[0])) for part in parts) / max(1, total),
        period=None if regular is None else regular[0],
    )


def straggler_groups(grid: Grid) -> list[Group]:
    """The delays of an attempt that count, by rank and reason; those that stand out by themselves apart."""
    if GROUPS not in grid.notes:
        found = delays(grid)
        keys = found.place * len(NAMES) + found.code
        typical_step = step_ns(grid) if len(found) else 1
        grid.notes[GROUPS] = [
            group
            for key in np.unique(keys).tolist()
            for group in _groups(grid, found, keys == key, typical_step)
        ]
    groups: list[Group] = grid.notes[GROUPS]
    return groups


def _groups(grid: Grid, everything: Delays, chosen: Bools, typical_step: int) -> list[Group]:
    """Of the delays of one rank with one reason: single long ones, and the others if they are a pattern."""
    found = everything.where(chosen)
    place, code = int(found.place[0]), int(found.code[0])
    is_long = found.ns > max(LONG_STEPS * typical_step, LONG_NS)
    # Ranks warm up at different speeds.
    is_long &= found.column >= min(WARM_UP, len(grid.steps) // 2)
    is_single = is_long & (found.ns > OUTLIER * np.median(found.ns))
    if is_single.sum() > max(FEWEST, FEW * len(grid.steps)):
        # What takes so long again and again does not happen once.
        is_single[:] = False
    again = _core(found.where(~is_single))
    made = []
    if _is_pattern(again, typical_step, len(grid.steps)) and _is_own(grid, everything, again):
        made.append(Group(place, NAMES[code], "chronic", again))
    else:
        is_single = is_long
    if is_single.any():
        made.append(Group(place, NAMES[code], "one-off", found.where(is_single)))
    return made


def _core(found: Delays) -> Delays:
    """The delays that make up most of the time, and those like them: the others are accidents."""
    if not len(found):
        return found
    ordered = np.sort(found.ns)[::-1]
    enough = int(np.searchsorted(np.cumsum(ordered), MOST_OF_IT * ordered.sum())) + 1
    return found.where(2 * found.ns >= np.median(ordered[:enough]))


def _is_own(grid: Grid, everything: Delays, again: Delays) -> bool:
    """Whether these come at a rhythm, or other ranks, those in the middle, have far fewer of the kind."""
    columns = np.unique(again.column)
    if len(columns) >= FEWEST_REGULAR and rhythm(columns) is not None:
        return True
    place, code = again.place[0], again.code[0]
    alike = (everything.code == code) & (everything.ns >= again.ns.min())
    counts = np.bincount(everything.place[alike], minlength=len(grid.ranks))
    others = float(np.median(np.delete(counts, place)))
    return len(again) >= DOMINANCE * others and _adds_up(grid, again)


def _adds_up(grid: Grid, again: Delays) -> bool:
    """Whether the rank was longer in that phase over all steps, too, not only in those where it was late.

    Of a phase in which ranks wait for each other, or in no span, the time of a rank does not tell.
    """
    phase = NAMES[int(again.code[0])]
    if phase not in ALONE or any(layer.phase == phase for layer in meeting_layers(grid)):
        return True
    totals = grid.total(phase)[:, grid.complete].sum(axis=1)
    place = int(again.place[0])
    more = int(totals[place]) - float(np.median(np.delete(totals, place)))
    return more >= AGREEMENT * int(again.ns.sum())


def _is_pattern(found: Delays, typical_step: int, steps: int) -> bool:
    """Whether these delays are more than single accidents."""
    columns = np.unique(found.column)
    if not len(columns) or found.ns.sum() < LEAST_LOSS * typical_step * steps:
        return False
    if int(found.code[0]) in OWN_ACTS:
        return True
    if len(columns) >= min(LEAST_STEPS, max(FEWEST, steps // 2)):
        return True
    is_long = float(np.median(found.ns)) > LONG_STEPS * typical_step
    return len(columns) >= (FEWEST if is_long else FEWEST_REGULAR) and rhythm(columns) is not None
