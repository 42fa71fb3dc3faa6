"""What is slow again and again, told from what is slow by accident in between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.wording import ordinal
from stepwell.analysis.time import Burst
from stepwell.analysis.time.rhythm import rhythm
from stepwell.analysis.time.words import OWN_SPAN

MOST_OF_IT = 0.9
"""Of the lost time: what the slow ones that are told of must account for."""
ONE_TIME = 0.2
"""Of the steps: what lies within less of them is one time."""
EVIDENCE = 1000
FEWEST = 3
NOISE = 8.0
PARTS = ("data", "transfer", "forward", "backward", "optimizer", "other")
"""What steps consist of, beside the user's own spans and whatever else comes after them now and then."""
ALIKE = 3.0
"""Up to so many times as much is as much."""

Ints = NDArray[np.int64]


def sharpened(facts: Facts, burst: Burst) -> Burst:
    """The same burst without steps that hardly add to it, such as those that another program held up."""
    table = facts.steady.filter(pl.col("rank") == burst.rank)
    found = recurring(
        table["step"].to_numpy(), table[burst.phase].to_numpy(), burst.phase, burst.rank
    )
    return burst if found is None else found


def without_waits(facts: Facts, burst: Burst) -> Burst | None:
    """The same without the time in which the rank waited for others; None if nothing recurs then."""
    waits = facts.waited_ns(burst.rank, burst.phase)
    if not waits:
        return sharpened(facts, burst)
    table = facts.steady.filter(pl.col("rank") == burst.rank)
    keys = zip(table["attempt"].to_list(), table["step"].to_list(), strict=True)
    waited = np.array([waits.get(key, 0) for key in keys], np.int64)
    values = np.maximum(table[burst.phase].to_numpy() - waited, 0)
    return recurring(table["step"].to_numpy(), values, burst.phase, burst.rank)


def recurring(numbers: Ints, values: Ints, phase: str, rank: int) -> Burst | None:
    """The few of these values that account for most of the time beyond the usual; None if there are none."""
    usual = float(np.median(values))
    spread = float(np.median(np.abs(values - usual)))
    excess = np.where(values > max(2 * usual, usual + NOISE * spread), values - usual, 0.0)
    if np.count_nonzero(excess) < FEWEST:
        return None
    ordered = np.sort(excess)[::-1]
    enough = int(np.searchsorted(np.cumsum(ordered), MOST_OF_IT * ordered.sum())) + 1
    # Those that are alike belong together, also where fewer would do.
    at = np.flatnonzero(excess >= float(np.median(ordered[:enough])) / 2)
    if not FEWEST <= len(at) <= 0.5 * len(values):
        return None
    period = None
    if (regular := rhythm(at)) is not None:
        period, in_time = regular
        at = at[in_time]
    rest = np.delete(values, at)
    typical = int(np.median(rest))
    return Burst(
        rank=rank,
        phase=phase,
        share=len(at) / len(values),
        period=period,
        first=int(numbers[at[0]]),
        count=len(at),
        typical_ns=typical,
        slow_ns=int(np.median(values[at])),
        lost_ns=int((values[at] - typical).sum()),
        steps=tuple(numbers[at[:EVIDENCE]].tolist()),
    )


def again_ns(burst: Burst) -> int:
    """What a burst costs by being there again and again: one step that took for ever is something else."""
    as_usual = burst.count * (burst.slow_ns - burst.typical_ns)
    return burst.lost_ns if burst.lost_ns <= FEWEST * as_usual else as_usual


def is_everywhere(facts: Facts, rank: int, phases: Sequence[str]) -> bool:
    """Whether other parts of the steps are held up as much as these, for the time that they take.

    Then it is no matter of these phases: other programs had the processor.
    """
    rows = facts.steady.filter(pl.col("rank") == rank)
    parts = [*PARTS, *(name for name in rows.columns if name.startswith(OWN_SPAN))]
    others = [phase for phase in parts if phase not in phases]
    held_up, usual = np.array([_held_up(rows, phases), _held_up(rows, others)]).T
    return bool(usual[1] > 0 and held_up[0] * usual[1] <= ALIKE * held_up[1] * usual[0])


def _held_up(rows: pl.DataFrame, phases: Sequence[str]) -> tuple[float, float]:
    """Nanoseconds beyond the usual in all steps, and what is usual in one: phase by phase, and summed up."""
    each = rows.select(phases).to_numpy()
    usual = np.median(each, axis=0)
    return float(np.maximum(each - usual, 0).sum()), float(usual.sum())


def is_one_time(burst: Burst) -> bool:
    """Whether they all lie close together and come without a rhythm: a slow time, and nothing that recurs."""
    if burst.period is not None or burst.count > EVIDENCE:
        return False
    return burst.steps[-1] - burst.steps[0] < ONE_TIME * burst.count / burst.share


def frequency(burst: Burst, what: str) -> str:
    """How often it happens: every 10th step, or 1 step in 20."""
    if burst.period is not None:
        return f"every {ordinal(burst.period)} {what}"
    return f"1 {what} in {max(2, round(1 / burst.share))}"
