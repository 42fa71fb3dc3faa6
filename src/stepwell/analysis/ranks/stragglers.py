"""Stragglers: ranks that the others wait for, repeatedly or once, and the phase they spend the time in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepwell.analysis.ranks.arrivals import Delays, delays, step_ns, sync_layers
from stepwell.analysis.ranks.grid import Bools, Grid, once_per_grid, read_grids
from stepwell.analysis.timeline.intervals import Ints
from stepwell.analysis.timeline.patterns import find_period
from stepwell.analysis.timeline.phases import CODES, NAMES
from stepwell.analysis.timeline.step_phases import BETWEEN
from stepwell.analysis.timeline.tables import WARM_UP
from stepwell.analysis.timeline.timeline import Timelines

LONG_STEPS = 4.0
LONG_NS = 500_000_000
"""A delay longer than this, in typical steps and in nanoseconds, counts even if it happens once."""
FEW = 0.01
"""Largest share of the steps that are called single delays."""
OUTLIER = 10.0
"""A delay this many times the median delay is a case of its own."""
FEWEST = 3
FEWEST_REGULAR = 5
LEAST_STEPS = 10
"""Fewest delays that make a pattern: if they are long and periodic, if they are periodic, and if not."""
LEAST_LOSS = 0.01
"""Smallest share of the time of all steps that a pattern costs."""
DOMINANCE = 3.0
"""A pattern belongs to a rank if it has this many times the delays of the median rank."""
AGREEMENT = 0.5
"""Smallest excess of the rank's total time in the phase, as a share of its delays."""
ALONE = ("data", "transfer", "forward", "optimizer")
"""Phases in which a rank works by itself."""
MOST_OF_IT = 0.9
"""Share of the total delay that the typical delays of a rank make up."""
OWN_ACTS = frozenset(CODES[phase] for phase in BETWEEN)
"""Phases that a program enters on purpose: a delay in them is not an accident."""


@dataclass(frozen=True)
class Straggler:
    """A rank that the others waited for."""

    rank: int
    phase: str
    kind: str
    """``chronic``: repeatedly; ``one-off``: once, for long."""
    steps: tuple[int, ...]
    """The steps in which the rank spent the time."""
    waited: tuple[int, ...]
    """The steps in which the others waited: the same steps or the following ones."""
    ns: int
    """Total time that the others waited."""
    typical_ns: int
    """Median time of the other ranks in the same phase."""
    share: float
    """Share of the steps in which it was slow."""
    period: int | None = None
    """Number of steps from one delay to the next, if periodic."""


@dataclass(frozen=True)
class DelayGroup:
    """Delays of one rank in one phase that belong together."""

    place: int
    phase: str
    kind: str
    delays: Delays


def stragglers(run: Timelines, grids: list[Grid] | None = None) -> list[Straggler]:
    """Return the stragglers of all attempts, the costliest first."""
    grids = read_grids(run) if grids is None else grids
    total = sum(len(grid.steps) for grid in grids)
    merged: dict[tuple[int, str, str], list[tuple[Ints, Ints, Delays]]] = {}
    for grid in grids:
        for group in straggler_groups(grid):
            key = grid.ranks[group.place], group.phase, group.kind
            steps, waited = grid.steps[group.delays.column], grid.steps[group.delays.waited]
            merged.setdefault(key, []).append((steps, waited, group.delays))
    result = [_straggler(*key, parts, total) for key, parts in merged.items()]
    return sorted(result, key=lambda s: (-s.ns, s.rank))


def _straggler(
    rank: int, phase: str, kind: str, parts: list[tuple[Ints, Ints, Delays]], total: int
) -> Straggler:
    steps, waited = (np.unique(np.concatenate([part[i] for part in parts])) for i in (0, 1))
    regular = find_period(steps) if len(steps) >= FEWEST else None
    return Straggler(
        rank,
        phase,
        kind,
        steps=tuple(steps.tolist()),
        waited=tuple(waited.tolist()),
        ns=sum(int(part[2].ns.sum()) for part in parts),
        typical_ns=int(np.median(np.concatenate([part[2].typical for part in parts]))),
        share=sum(len(np.unique(part[0])) for part in parts) / max(1, total),
        period=None if regular is None else regular[0],
    )


@once_per_grid
def straggler_groups(grid: Grid) -> list[DelayGroup]:
    """Return the delays of an attempt that count, by rank and phase; single long ones are separate groups."""
    late = delays(grid)
    keys = late.place * len(NAMES) + late.code
    typical_step = step_ns(grid) if len(late) else 1
    return [
        group
        for key in np.unique(keys).tolist()
        for group in _groups(grid, late, keys == key, typical_step)
    ]


def _groups(grid: Grid, everything: Delays, chosen: Bools, typical_step: int) -> list[DelayGroup]:
    """Return the delays of one rank in one phase: single long ones, and the others if they are a pattern."""
    own = everything.where(chosen)
    place, code = int(own.place[0]), int(own.code[0])
    is_long = own.ns > max(LONG_STEPS * typical_step, LONG_NS)
    # Ranks warm up at different speeds.
    is_long &= own.column >= min(WARM_UP, len(grid.steps) // 2)
    is_single = is_long & (own.ns > OUTLIER * np.median(own.ns))
    if is_single.sum() > max(FEWEST, FEW * len(grid.steps)):
        # That many long delays are not single cases.
        is_single[:] = False
    again = _core(own.where(~is_single))
    groups = []
    if _is_pattern(again, typical_step, len(grid.steps)) and _is_own(grid, everything, again):
        groups.append(DelayGroup(place, NAMES[code], "chronic", again))
    else:
        is_single = is_long
    if is_single.any():
        groups.append(DelayGroup(place, NAMES[code], "one-off", own.where(is_single)))
    return groups


def _core(late: Delays) -> Delays:
    """Return the delays that make up most of the time, and similar ones. The others are accidents."""
    if not len(late):
        return late
    ordered = np.sort(late.ns)[::-1]
    enough = int(np.searchsorted(np.cumsum(ordered), MOST_OF_IT * ordered.sum())) + 1
    return late.where(2 * late.ns >= np.median(ordered[:enough]))


def _is_own(grid: Grid, everything: Delays, again: Delays) -> bool:
    """Return whether these delays are periodic, or the median rank has far fewer of the same size."""
    columns = np.unique(again.column)
    if len(columns) >= FEWEST_REGULAR and find_period(columns) is not None:
        return True
    place, code = again.place[0], again.code[0]
    alike = (everything.code == code) & (everything.ns >= again.ns.min())
    counts = np.bincount(everything.place[alike], minlength=len(grid.ranks))
    others = float(np.median(np.delete(counts, place)))
    return len(again) >= DOMINANCE * others and _adds_up(grid, again)


def _adds_up(grid: Grid, again: Delays) -> bool:
    """Return whether the rank took longer in the phase over all steps, not only where it was late.

    Also true for phases in which ranks wait for each other and for time in no span, where nothing follows
    from the time of a single rank.
    """
    phase = NAMES[int(again.code[0])]
    if phase not in ALONE or any(layer.phase == phase for layer in sync_layers(grid)):
        return True
    totals = grid.total(phase)[:, grid.complete].sum(axis=1)
    place = int(again.place[0])
    more = int(totals[place]) - float(np.median(np.delete(totals, place)))
    return more >= AGREEMENT * int(again.ns.sum())


def _is_pattern(late: Delays, typical_step: int, steps: int) -> bool:
    """Return whether these delays are more than single accidents."""
    columns = np.unique(late.column)
    if not len(columns) or late.ns.sum() < LEAST_LOSS * typical_step * steps:
        return False
    if int(late.code[0]) in OWN_ACTS:
        return True
    if len(columns) >= min(LEAST_STEPS, max(FEWEST, steps // 2)):
        return True
    is_long = float(np.median(late.ns)) > LONG_STEPS * typical_step
    return (
        len(columns) >= (FEWEST if is_long else FEWEST_REGULAR) and find_period(columns) is not None
    )


def skew(run: Timelines, grids: list[Grid] | None = None) -> pl.DataFrame:
    """Return the mean time of each rank in each phase of a step, also relative to the median rank.

    Columns: phase, rank, steps, mean_ns, relative. Counts the completed steps of all attempts, also of those
    without the phase: so the means of a rank can be added up to its mean time of a step.
    """
    sums: Counter[tuple[str, int]] = Counter()
    steps: Counter[int] = Counter()
    for grid in read_grids(run) if grids is None else grids:
        done = grid.is_done
        for place, rank in enumerate(grid.ranks):
            steps[rank] += int(done[place].sum())
        for phase in grid.phases:
            total = np.where(done, grid.total(phase), 0).sum(axis=1)
            for place, rank in enumerate(grid.ranks):
                sums[phase, rank] += int(total[place])
    rows = [
        (phase, rank, steps[rank], total / steps[rank])
        for (phase, rank), total in sums.items()
        if steps[rank]
    ]
    schema = {"phase": pl.String, "rank": pl.Int32, "steps": pl.Int64, "mean_ns": pl.Float64}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    middle = pl.col("mean_ns").quantile(0.5, "lower").over("phase")
    relative = pl.when(middle > 0).then(pl.col("mean_ns") / middle)
    return table.with_columns(relative.alias("relative"))


def waits(run: Timelines, grids: list[Grid] | None = None) -> pl.DataFrame:
    """Return how long ranks waited for each other: rank, waited_for, steps, ns; the longest first."""
    grids = read_grids(run) if grids is None else grids
    ranks = sorted({rank for grid in grids for rank in grid.ranks})
    ns = np.zeros((len(ranks), len(ranks)), np.int64)
    steps = np.zeros_like(ns)
    for grid in grids:
        places = np.searchsorted(ranks, grid.ranks)
        for layer in sync_layers(grid):
            complete = (layer.ns >= 0).all(axis=0)
            start, lasted = layer.start[:, complete], layer.ns[:, complete]
            last = start.argmax(axis=0)
            waited = np.minimum(start.max(axis=0) - start, lasted)
            who, step = np.nonzero(waited > 0)
            where = places[who], places[last[step]]
            np.add.at(ns, where, waited[who, step])
            np.add.at(steps, where, 1)
    waiter, waited_for = np.nonzero(ns)
    numbers = np.array(ranks, np.int32)
    table = pl.DataFrame(
        {
            "rank": numbers[waiter],
            "waited_for": numbers[waited_for],
            "steps": steps[waiter, waited_for],
            "ns": ns[waiter, waited_for],
        },
        schema={"rank": pl.Int32, "waited_for": pl.Int32, "steps": pl.Int64, "ns": pl.Int64},
    )
    return table.sort("ns", descending=True)
