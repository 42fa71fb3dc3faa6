"""First steps that take much longer than the others, and a long way to the first step."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepwell.analysis.findings.data_bound import slow_epochs
from stepwell.analysis.findings.facts import FEWEST, WARM_UP, Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import duration, percent, phase_word
from stepwell.analysis.time import phase_columns

TIMES = 10.0
LEAST_NS = 2_000_000_000
LEAST_SHARE = 0.05


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding, of the rank on which they took longest."""
    if facts.steady.height < FEWEST:
        return
    order = pl.int_range(pl.len()).over("rank", "attempt")
    first = facts.steps.filter(order < WARM_UP).sort("period_ns").row(-1, named=True)
    rank, names = first["rank"], phase_columns(facts.steps)
    usual = facts.steady.filter(pl.col("rank") == rank).select(
        pl.col("period_ns").median(), *(pl.col(name).median() for name in names)
    )
    typical = usual.row(0, named=True)
    lost = int(first["period_ns"] - typical["period_ns"])
    is_slow = first["period_ns"] >= TIMES * typical["period_ns"] and lost >= LEAST_NS
    # Validation and checkpoints after it are no fault of the step's.
    phase = max(names, key=lambda name: first[name] - typical[name])
    if (
        not is_slow
        or lost < LEAST_SHARE * facts.running_ns
        or phase in ("validation", "checkpoint")
    ):
        return
    if phase == "data" and slow_epochs(facts) is not None:
        # All epochs begin like that, which is one finding.
        return
    yield Finding(
        "slow-first-steps",
        "note",
        f"Step {first['step']} took {duration(first['period_ns'])}, most of it in "
        f"{phase_word(phase)}; later steps take {duration(typical['period_ns'])} "
        f"({percent(facts.part_of_wall(lost))} of the wall time).",
        {"phase": phase, "ns": first["period_ns"], "typical_ns": typical["period_ns"]},
        (first["step"],),
        (rank,) if facts.ranks > 1 else (),
        "Workers that start, compilation and caches do that; a compilation cache or fewer shapes help."
        if phase != "data"
        else "Workers start and fill their queues then: fewer of them, or a lighter dataset object.",
        facts.command("show"),
        lost,
    )
