"""Some steps that are much slower than the others, again and again."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.recurring import (
    again_ns,
    frequency,
    is_everywhere,
    is_one_time,
    sharpened,
)
from stepwell.analysis.findings.wording import capital, duration, listed, percent, phase_word
from stepwell.analysis.time import Burst
from stepwell.analysis.time.patterns import EXPECTED

ELSEWHERE = ("data", "garbage collection")
"""Phases whose bursts other rules tell of; so are those outside of all parts of a step."""
NOW_AND_THEN = ("optimizer", "communication", "transfer")
"""Phases that some steps do without where gradients are accumulated: that some have them is no fault."""
LEAST = 0.05
"""Of the time, for a burst to be told of."""
CRITICAL = 0.3


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for each phase that is slow now and then, on the rank where that costs most."""
    told: set[str] = set()
    blamed = {step for s in facts.stragglers for step in s.steps}
    elsewhere = {*ELSEWHERE, *facts.outside}
    for raw in facts.bursts:
        whole = facts.loop_ns.get(raw.rank, 0)
        if raw.phase in elsewhere or raw.phase in told or again_ns(raw) < LEAST * whole:
            continue
        burst = sharpened(facts, raw)
        cost = again_ns(burst)
        if burst.phase in NOW_AND_THEN and burst.typical_ns == 0:
            continue
        if sum(step in blamed for step in burst.steps) > len(burst.steps) / 2:
            # Other ranks wait for a straggler then: that is one thing, not two.
            continue
        if burst.period is None and is_everywhere(facts, burst.rank, [burst.phase]):
            continue
        if is_one_time(burst) or _waits_for_what_is_meant(facts, burst):
            continue
        told.add(burst.phase)
        yield _finding(facts, burst, cost, cost / whole)


def _waits_for_what_is_meant(facts: Facts, burst: Burst) -> bool:
    """Whether another rank validated or saved a checkpoint alone right before most of these steps."""
    if facts.ranks < 2:
        return False
    meant = pl.sum_horizontal(EXPECTED)
    least = (burst.slow_ns - burst.typical_ns) / 2
    # Few of very many rows, of which no copy is to be made.
    meant_in = facts.steps.lazy().filter((meant >= least) & (pl.col("rank") != burst.rank))
    numbers = facts.steps["step"].unique().sort()
    following = numbers.search_sorted(meant_in.select("step").collect()["step"], side="right")
    after = set(numbers.gather(following.filter(following < len(numbers))))
    return sum(step in after for step in burst.steps) > len(burst.steps) / 2


def _finding(facts: Facts, burst: Burst, cost: int, share: float) -> Finding:
    rows = facts.steady.filter(pl.col("rank") == burst.rank)
    is_slow = pl.col("step").is_in(list(burst.steps))
    slow, typical = _median(rows.filter(is_slow)), _median(rows.filter(~is_slow))
    return Finding(
        "slow-steps",
        "warning" if share < CRITICAL else "critical",
        f"{capital(frequency(burst, 'step'))} takes {duration(slow)}, the others {duration(typical)} "
        f"({listed(burst.steps)}): {phase_word(burst.phase)} takes {duration(burst.slow_ns)} there "
        f"instead of {duration(burst.typical_ns)}, which costs {percent(share)} of the time.",
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
