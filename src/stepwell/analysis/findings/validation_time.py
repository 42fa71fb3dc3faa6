"""Validation that takes most of the time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import duration, listed, percent
from stepwell.analysis.time.rhythm import rhythm

PHASE = "validation"
WARN = 0.6
"""Of the running time: validation that takes as long as training is common, and no fault."""
FEWEST = 2
"""A single validation cannot be made less often."""


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding for the run."""
    ns = facts.table.get(PHASE, 0)
    if not ns or ns < WARN * facts.running_ns:
        return
    rows = facts.steps.filter(pl.col(PHASE) > 0)
    times = rows.group_by("attempt", "step").agg(pl.col(PHASE).max()).sort("attempt", "step")
    if times.height < FEWEST:
        return
    steps, usual = times["step"].to_list(), float(np.median(times[PHASE].to_numpy()))
    regular = rhythm(np.unique(steps))
    often = f"every {regular[0]} steps" if regular else f"after {listed(steps)}"
    yield Finding(
        "validation-time",
        "warning",
        f"Validation takes {percent(facts.part_of_wall(ns))} of the wall time: {times.height} times "
        f"{duration(usual)}, {often}.",
        {
            "phase": PHASE,
            "share": facts.part_of_wall(ns),
            "ns": ns,
            "count": times.height,
            "usual_ns": usual,
        },
        tuple(steps),
        advice="Validate less often or on fewer samples.",
        link=facts.command("show"),
        cost_ns=ns,
    )
