"""Some steps that are much slower than the others, again and again."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.machine_load import is_starved
from stepwell.analysis.findings.recurring import (
    again_ns,
    frequency,
    is_everywhere,
    is_one_time,
    without_waits,
)
from stepwell.analysis.findings.wording import capital, duration, listed, percent, phase_word
from stepwell.analysis.time import Burst

ELSEWHERE = ("data", "garbage collection")
"""Phases whose bursts other rules report; so is ``other``, where the parts of steps are known."""
NOW_AND_THEN = ("optimizer", "communication", "transfer")
"""Phases that some steps do without where gradients are accumulated: that some have them is no fault."""
LEAST = 0.05
"""Share of the wall time for a finding."""
CRITICAL = 0.3


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for each phase that is slow now and then, on the rank where that costs most."""
    told: set[str] = set()
    blamed = {step for s in facts.stragglers for step in (*s.steps, *s.waited)}
    whole = max(1, facts.running_ns)
    elsewhere = {*ELSEWHERE, "other"} if facts.has_parts else set(ELSEWHERE)
    for raw in facts.bursts:
        if raw.phase in elsewhere or raw.phase in told or again_ns(raw) < LEAST * whole:
            continue
        burst = without_waits(facts, raw)
        cost = 0 if burst is None else again_ns(burst)
        if burst is None or cost < LEAST * whole:
            continue
        if burst.phase in NOW_AND_THEN and burst.typical_ns == 0:
            continue
        if sum(step in blamed for step in burst.steps) > len(burst.steps) / 2:
            # Other ranks wait for a straggler then: that is one thing, not two.
            continue
        if burst.period is None and (
            is_starved(facts, burst.rank) or is_everywhere(facts, burst.rank, [burst.phase])
        ):
            continue
        if is_one_time(burst):
            continue
        told.add(burst.phase)
        yield _finding(facts, burst, cost, facts.part_of_wall(cost))


def _finding(facts: Facts, burst: Burst, cost: int, share: float) -> Finding:
    rows = facts.steady.filter(pl.col("rank") == burst.rank)
    is_slow = pl.col("step").is_in(list(burst.steps))
    slow, typical = _median(rows.filter(is_slow)), _median(rows.filter(~is_slow))
    return Finding(
        "slow-steps",
        "warning" if share < CRITICAL else "critical",
        f"{capital(frequency(burst, 'step'))} takes {duration(slow)}, the others {duration(typical)} "
        f"({listed(burst.steps)}): {phase_word(burst.phase)} takes {duration(burst.slow_ns)} there "
        f"instead of {duration(burst.typical_ns)}, which costs {percent(share)} of the wall time.",
        {
            "phase": burst.phase,
            "period": burst.period,
            "share": burst.share,
            "slow_ns": slow,
            "typical_ns": typical,
            "phase_slow_ns": burst.slow_ns,
            "phase_typical_ns": burst.typical_ns,
            "lost_ns": cost,
        },
        burst.steps,
        (burst.rank,) if facts.ranks > 1 else (),
        "Look at what is done only in these steps: logging, a metric, a copy, a longer batch.",
        facts.command("export", "--to", "chrome", "--steps", f"{burst.first}"),
        cost,
    )


def _median(rows: pl.DataFrame) -> int:
    value = rows["period_ns"].median()
    return int(value) if isinstance(value, int | float) else 0
