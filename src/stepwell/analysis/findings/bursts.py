"""Recurring slow steps of one phase (bursts), separated from accidental slowness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from stepwell._core.text import ordinal
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.machine_load import is_starved
from stepwell.analysis.timeline import Burst
from stepwell.analysis.timeline.patterns import EVIDENCE, make_burst, stands_out
from stepwell.analysis.timeline.phases import OWN_SPAN

MOST_OF_IT = 0.9
"""Share of the lost time that the reported steps must account for."""
ONE_TIME = 0.2
"""Share of the run: slow steps that all lie within less than this are a single episode."""
FEWEST = 3
PARTS = ("data", "transfer", "forward", "backward", "optimizer", "other")
"""Phases within a step, without the user's own spans and without phases that follow only some steps."""
ALIKE = 3.0
"""Two relative slowdowns count as equal up to this factor."""


def refined(facts: Facts, burst: Burst) -> Burst:
    """Return the burst without steps that add little to it, such as those slowed down by another program."""
    return find_burst(facts.steady.filter(rank=burst.rank), burst.phase) or burst


def without_waits(facts: Facts, burst: Burst) -> Burst | None:
    """Return the burst without the time in which the rank waited for others; None if nothing is left."""
    waits = facts.waited_ns(burst.rank, burst.phase)
    if not waits:
        return refined(facts, burst)
    rows = facts.steady.filter(rank=burst.rank)
    waited = [waits.get(key, 0) for key in rows.select("attempt", "step").iter_rows()]
    own = (pl.col(burst.phase) - pl.Series(waited, dtype=pl.Int64)).clip(0)
    return find_burst(rows.with_columns(own.alias(burst.phase)), burst.phase)


def find_burst(rows: pl.DataFrame, phase: str) -> Burst | None:
    """Return the few steps that account for most of the excess of a phase over its median.

    ``rows`` are the steps of one rank. None if there are no such steps.
    """
    numbers, values = rows["step"].to_numpy(), rows[phase].to_numpy()
    usual = float(np.median(values))
    excess = np.where(stands_out(values, usual), values - usual, 0.0)
    if np.count_nonzero(excess) < FEWEST:
        return None
    ordered = np.sort(excess)[::-1]
    enough = int(np.searchsorted(np.cumsum(ordered), MOST_OF_IT * ordered.sum())) + 1
    # Steps of similar excess belong together, even if fewer would account for enough.
    at = np.flatnonzero(excess >= float(np.median(ordered[:enough])) / 2)
    if not FEWEST <= len(at) <= 0.5 * len(values):
        return None
    return make_burst(rows["rank"][0], phase, numbers, values, at)[0]


def recurring_cost_ns(burst: Burst) -> int:
    """Return the cost of a burst without a single extreme step, which is a stall of its own."""
    regular_ns = burst.count * (burst.slow_ns - burst.typical_ns)
    return burst.lost_ns if burst.lost_ns <= FEWEST * regular_ns else regular_ns


def affects_all_phases(facts: Facts, rank: int, phases: Sequence[str]) -> bool:
    """Return whether other phases slow down as much as these, relative to their usual time.

    Then the cause is not in these phases: other programs used the CPU.
    """
    rows = facts.steady.filter(rank=rank)
    parts = [*PARTS, *(name for name in rows.columns if name.startswith(OWN_SPAN))]
    others = [phase for phase in parts if phase not in phases]
    held_up, usual = np.array([_held_up(rows, phases), _held_up(rows, others)]).T
    return bool(usual[1] > 0 and held_up[0] * usual[1] <= ALIKE * held_up[1] * usual[0])


def _held_up(rows: pl.DataFrame, phases: Sequence[str]) -> tuple[float, float]:
    """Return the excess over the median in all steps and the median of a step, summed over phases."""
    each = rows.select(phases).to_numpy()
    usual = np.median(each, axis=0)
    return float(np.maximum(each - usual, 0).sum()), float(usual.sum())


def is_accidental(facts: Facts, burst: Burst) -> bool:
    """Return whether other programs that used the CPU explain slow steps without a period."""
    return burst.period is None and (
        is_starved(facts, burst.rank) or affects_all_phases(facts, burst.rank, [burst.phase])
    )


def is_single_episode(burst: Burst) -> bool:
    """Return whether the slow steps lie close together without a period, and so do not recur."""
    if burst.period is not None or burst.count > EVIDENCE:
        return False
    return burst.steps[-1] - burst.steps[0] < ONE_TIME * burst.count / burst.share


def frequency(burst: Burst, what: str) -> str:
    """Return how often it happens: ``every 10th step`` or ``1 step in 20``."""
    if burst.period is not None:
        return f"every {ordinal(burst.period)} {what}"
    return f"1 {what} in {max(2, round(1 / burst.share))}"
