"""Time that passes outside of all parts of a step, inside of nothing that was recorded."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepwell.analysis.findings.facts import FEWEST, Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.recurring import is_everywhere, recurring
from stepwell.analysis.findings.wording import duration, listed, ordinal, percent
from stepwell.analysis.time import Burst

WARN = 0.1
EACH = 0.3
"""Of the time, when it is about the same after each step: loops have some code of their own."""
CRITICAL = 0.3
LONG_NS = 10_000_000
EACH_NS = 1_000_000
"""Pauses that are shorter than this, now and then or after each step, are none that a person would make."""


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding for the run; of ranks the one in the middle tells."""
    if facts.steady.height < FEWEST:
        return
    shares = sorted(
        (sum(facts.spent_ns(phase)[rank] for phase in facts.outside) / whole, rank)
        for rank, whole in facts.loop_ns.items()
        if whole
    )
    if not shares:
        return
    share, rank = shares[(len(shares) - 1) // 2]
    if share < WARN:
        return
    rows = facts.steady.filter(pl.col("rank") == rank)
    outside = rows.select(pl.sum_horizontal(facts.outside).alias("ns"))["ns"]
    ns = int(outside.sum())
    burst = recurring(rows["step"].to_numpy(), outside.to_numpy(), "idle", rank)
    if burst is not None and (burst.lost_ns < ns / 2 or burst.slow_ns < LONG_NS):
        burst = None
    if burst is not None and burst.period is None and is_everywhere(facts, rank, facts.outside):
        burst = None
    each = _number(outside.median())
    if burst is None and (share < EACH or each < EACH_NS):
        return
    yield _finding(facts, share, ns, burst, each)


def _finding(facts: Facts, share: float, ns: int, burst: Burst | None, each: float) -> Finding:
    evidence = {"phase": "idle", "share": share, "ns": ns}
    text = f"{percent(share)} of the time passes between the parts of steps, in nothing that was recorded: "
    steps: tuple[int, ...] = ()
    if burst is None:
        text += f"{duration(each)} in each step."
    else:
        often = (
            f"after every {ordinal(burst.period)} step"
            if burst.period
            else f"after 1 step in {max(2, round(1 / burst.share))}"
        )
        text += f"a pause of {duration(burst.slow_ns)} {often} ({listed(burst.steps)})."
        evidence |= {"period": burst.period, "slow_ns": burst.slow_ns}
        steps = burst.steps
    return Finding(
        "pauses",
        "critical" if share >= CRITICAL else "warning",
        text,
        evidence,
        steps,
        advice='Put it in a span to see what it is: with stepwell.span("validation"), "checkpoint" '
        "or a name of yours.",
        link=facts.command("show"),
        cost_ns=ns,
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
