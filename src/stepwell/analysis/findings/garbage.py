"""Python's garbage collections, for which all threads wait."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import duration, percent

PHASE = "garbage collection"
WARN = 0.03
CRITICAL = 0.15
LEAST_NS = 500_000_000


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding for the run."""
    ns, share = facts.share(PHASE)
    if share < WARN or ns < LEAST_NS:
        return
    rows = facts.steady.filter(pl.col(PHASE) > 0).sort(PHASE, descending=True)
    longest = rows.row(0, named=True)
    yield Finding(
        "gc-pauses",
        "critical" if share >= CRITICAL else "warning",
        f"Garbage collection takes {percent(facts.part_of_wall(facts.table[PHASE]))} of the wall time: "
        f"{duration(longest[PHASE])} "
        f"in step {longest['step']}, the longest.",
        {"phase": PHASE, "share": share, "ns": ns, "longest_ns": longest[PHASE]},
        tuple(sorted(set(rows["step"].head(1000).to_list()))),
        advice="gc.freeze() after setting up, gc.disable() with gc.collect() every so many steps; "
        "fewer live Python objects.",
        link=facts.command("show"),
        cost_ns=ns,
    )
