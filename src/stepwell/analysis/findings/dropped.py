"""Records that could not be kept, so that the tables are not complete."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding for the run."""
    table = facts.processes.filter(pl.col("dropped") > 0)
    if table.is_empty():
        return
    count = int(table["dropped"].sum())
    yield Finding(
        "dropped-records",
        "warning",
        f"{count:,} records were not kept: what is said here may miss something.",
        {"count": count},
        ranks=tuple(sorted(set(table["rank"].to_list()))),
        advice="The disk was full, or the size cap was reached.",
        link=facts.command("show"),
    )
