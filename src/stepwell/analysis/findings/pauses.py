"""Long pauses after some steps, in no span."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepwell.analysis.findings.data_bound import slow_epochs
from stepwell.analysis.findings.facts import FEWEST, Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.recurring import is_everywhere, recurring
from stepwell.analysis.findings.wording import duration, listed, ordinal, percent
from stepwell.analysis.time import Burst

WARN = 0.1
CRITICAL = 0.3
LONG_NS = 10_000_000
"""Shorter pauses are not worth a finding."""
PHASE = "other"


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding for the run, about the median rank.

    Code in no span that takes about as long in each step is part of the loop: the loss, metrics, waiting for
    a device. It has a line in the time table, and is no finding. Pauses that only some steps have are.
    """
    if facts.steady.height < FEWEST or not facts.has_parts:
        return
    spent = facts.spent_ns(PHASE)
    shares = sorted((spent[rank] / whole, rank) for rank, whole in facts.loop_ns.items() if whole)
    if not shares:
        return
    share, rank = shares[(len(shares) - 1) // 2]
    if share < WARN:
        return
    rows = facts.steady.filter(pl.col("rank") == rank)
    burst = recurring(rows["step"].to_numpy(), rows[PHASE].to_numpy(), PHASE, rank)
    if burst is None or burst.lost_ns < spent[rank] / 2 or burst.slow_ns < LONG_NS:
        return
    if burst.period is None and is_everywhere(facts, rank, [PHASE]):
        return
    if (epochs := slow_epochs(facts)) is not None and epochs.follow(burst.steps):
        return
    yield _finding(facts, burst, burst.lost_ns / facts.loop_ns[rank])


def _finding(facts: Facts, burst: Burst, share: float) -> Finding:
    often = (
        f"After every {ordinal(burst.period)} step"
        if burst.period
        else f"After 1 step in {max(2, round(1 / burst.share))}"
    )
    return Finding(
        "pauses",
        "critical" if share >= CRITICAL else "warning",
        f"{often} there is a pause of {duration(burst.slow_ns)} in no span ({listed(burst.steps)}). "
        f"These pauses take {percent(facts.part_of_wall(burst.lost_ns))} of the wall time.",
        {
            "phase": PHASE,
            "share": share,
            "ns": burst.lost_ns,
            "period": burst.period,
            "slow_ns": burst.slow_ns,
        },
        burst.steps,
        advice='If you want this work, put it into a span, with stepwell.span("rollout"): … The time table '
        "then has a line for it.",
        link=facts.command("show"),
        cost_ns=burst.lost_ns,
    )
