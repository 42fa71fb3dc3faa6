"""Checkpoints that training waits for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import duration, listed, percent

WARN = 0.15
CRITICAL = 0.3
LEAST_NS = 500_000_000
LONG = 5.0
"""So many times as long as usual is one that stalled."""
LONG_NS = 5_000_000_000


def rule(facts: Facts) -> Iterator[Finding]:
    """Saving takes a large part of the time, or one of them took very long."""
    rows = facts.steps.filter(pl.col("checkpoint") > 0)
    if rows.is_empty():
        return
    ns, share = facts.share("checkpoint")
    slowest = rows.filter(pl.col("rank") == rows.sort("checkpoint")["rank"][-1])
    times, numbers = slowest["checkpoint"].to_numpy(), slowest["step"].to_list()
    usual = float(np.median(times))
    if share >= WARN and ns >= LEAST_NS:
        yield Finding(
            "checkpoint-stall",
            "critical" if share >= CRITICAL else "warning",
            f"Training stands still {percent(share)} of the time while checkpoints are saved: "
            f"{len(times)} of them, {duration(usual)} each (after {listed(numbers)}).",
            {
                "phase": "checkpoint",
                "share": share,
                "ns": ns,
                "count": len(times),
                "usual_ns": usual,
            },
            tuple(numbers),
            advice="Save less often, or in the background (asynchronous checkpoints).",
            link=facts.command("show"),
            cost_ns=ns,
        )
        return
    place = int(times.argmax())
    longest = int(times[place])
    if len(times) >= 3 and longest > max(LONG * usual, usual + LONG_NS):
        rank = int(slowest["rank"][0])
        yield Finding(
            "checkpoint-stall",
            "warning",
            f"Saving the checkpoint after step {numbers[place]} took {duration(longest)}, "
            f"the others {duration(usual)}.",
            {"phase": "checkpoint", "ns": longest, "usual_ns": usual},
            (numbers[place],),
            (rank,) if facts.ranks > 1 else (),
            "The file system was slow or full then.",
            facts.command("show"),
            longest,
        )
