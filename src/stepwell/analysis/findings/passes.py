"""Passes over the training data that are stopped after a few batches, again and again."""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import number
from stepwell.vocabulary import StandardTrainingJobSpanName

LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value
FEWEST = 10
"""Passes that must have been stopped …"""
NEARLY_ALL = 0.9
"""… and their share of all passes."""
USED = 0.1
"""Of the batches of the loader: passes that use more are long enough."""
FEW_BATCHES = 2
"""Passes over shuffled data that use more batches than this are a choice: they sample the data."""


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding, for the latest training loop."""
    for loop in reversed(facts.loops(LOOP)):
        names = (
            "batches_per_epoch",
            "stopped_passes",
            "complete_passes",
            "batches_of_stopped_passes",
        )
        numbers = [loop.attributes.get(name) for name in names]
        length, stopped, complete, batches = (n if isinstance(n, int) else 0 for n in numbers)
        if stopped < FEWEST or stopped < NEARLY_ALL * (stopped + complete):
            continue
        used = batches / stopped
        is_same = loop.attributes.get("shuffle") is False
        if used < USED * length and (is_same or used <= FEW_BATCHES):
            yield _finding(length, stopped, used, is_same)
        return


def _finding(length: int, stopped: int, used: float, is_same: bool) -> Finding:
    which = "batch" if used <= 1 else "batches"
    first = f"first {which}" if used <= 1 else f"first {number(used)} batches"
    result = (
        f"the loader does not shuffle, so that training always gets its {first}"
        if is_same
        else "each pass begins anew, and which part of the data is used depends on the sampler"
    )
    return Finding(
        "stopped-passes",
        "critical" if is_same else "note",
        f"Passes over the loader stop after {number(used)} of {length:,} batches ({stopped:,} times): "
        f"{result}.",
        {"batches": used, "batches_per_epoch": length, "passes": stopped, "is_same": is_same},
        advice="Iterate over the loader, or keep one iterator for many steps, instead of "
        "next(iter(loader)) in each step.",
    )
