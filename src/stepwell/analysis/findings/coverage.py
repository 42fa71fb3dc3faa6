"""Gaps in the recorded data: subjects that no rule could check, and dropped records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from stepwell.analysis.findings.curves import GRADIENT, split_of
from stepwell.analysis.findings.facts import FEWEST, Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.learning_rate import RATE
from stepwell.analysis.findings.loss import FEWEST as FEWEST_LOSSES
from stepwell.analysis.findings.memory import PATTERN as MEMORY


@dataclass(frozen=True)
class Unchecked:
    """A subject that no rule could check.

    Attributes:
        subject: such as ``gradients``.
        reason: such as ``none recorded``.
    """

    subject: str
    reason: str


def unchecked(facts: Facts) -> Iterator[Unchecked]:
    """Yield the subjects that could not be checked in this run, the most important first."""
    curves = facts.curves
    most = max((len(curve) for curve in curves.losses), default=0)
    if not most:
        yield Unchecked("loss", "none recorded")
    elif most < FEWEST_LOSSES:
        yield Unchecked("loss", f"only {most} value{'s' if most > 1 else ''}")
    if not curves.matching(GRADIENT):
        yield Unchecked("gradients", "none recorded")
    if not curves.matching(RATE):
        yield Unchecked("learning rate", "none recorded")
    if not any(split_of(name) == "validation" for name in curves.names):
        yield Unchecked("validation", "no validation metric")
    if facts.steady.height < FEWEST:
        count = facts.steps.select("attempt", "step").n_unique()
        few = f"only {count} step{'s' if count > 1 else ''}" if count else "no steps"
        yield Unchecked("step times", few)
    if not facts.machine["name"].str.contains(MEMORY).any():
        yield Unchecked("memory", "no system metrics")
    if facts.ranks > 1 and not curves.matching(r"^(gradient_norm|weight_checksum)/overall$"):
        yield Unchecked("agreement of ranks", "no gradient norms")


def find_dropped_records(facts: Facts) -> Iterator[Finding]:
    """Yield one finding if any process dropped records."""
    table = facts.summary.processes.filter(pl.col("dropped") > 0)
    if table.is_empty():
        return
    count = int(table["dropped"].sum())
    yield Finding(
        "dropped-records",
        "warning",
        f"{count:,} record{'s were' if count > 1 else ' was'} dropped, so this report may be incomplete.",
        {"count": count},
        ranks=tuple(sorted(set(table["rank"].to_list()))),
        advice="Check whether the disk was full or the run reached its size limit.",
        link=facts.command("show"),
    )
