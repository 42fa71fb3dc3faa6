"""All rules, and going through them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from stepwell.analysis.findings import (
    batches,
    checkpoints,
    clipping,
    data_bound,
    died,
    dropped,
    first_steps,
    frozen,
    garbage,
    generalising,
    goodput,
    gradients,
    hanging,
    learning_rate,
    loss,
    machine_load,
    memory,
    nonfinite,
    optimizer,
    overfitting,
    passes,
    pauses,
    rank_divergence,
    slow_steps,
    spikes,
    stalls,
    straggling,
    stuck,
    throughput,
    validation_mode,
    validation_time,
)
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding, by_weight
from stepwell.reading import RecordedRun

Rule = Callable[[Facts], Iterator[Finding]]

RULES: dict[str, Rule] = {
    module.__name__.rpartition(".")[2]: module.rule
    for module in (
        died,
        hanging,
        nonfinite,
        optimizer,
        clipping,
        passes,
        loss,
        validation_mode,
        overfitting,
        stuck,
        generalising,
        gradients,
        rank_divergence,
        frozen,
        learning_rate,
        batches,
        spikes,
        straggling,
        data_bound,
        pauses,
        validation_time,
        slow_steps,
        throughput,
        stalls,
        checkpoints,
        garbage,
        memory,
        goodput,
        machine_load,
        first_steps,
        dropped,
    )
}
"""By the name of the file that each is in, in the order in which they are told among equals."""

LEAST_COST_NS = 300_000_000
"""What cost less time than this in all is not worth a sentence, whatever share of a tiny run it is."""


NOT_LEARNING = {
    "flat-loss",
    "at-chance",
    "frozen-layers",
    "vanishing-gradients",
    "learning-rate",
    "not-generalising",
}
CONSEQUENCES: dict[str, set[str]] = {
    # The time that it hangs is part of a phase, too.
    "hang": {"data-bound", "low-goodput", "uncovered-time", "validation-time"},
    "validation-time": {"low-goodput"},
    "uncovered-time": {"low-goodput"},
    "optimizer-parameters": {*NOT_LEARNING, "zero-learning-rate"},
    "zero-learning-rate": NOT_LEARNING,
    "stopped-passes": {"overfitting", "not-generalising", "at-chance"},
    "clipping": {"flat-loss", "at-chance", "frozen-layers"},
    "not-finite": {
        "diverged",
        "rising-loss",
        "loss-jump",
        "loss-spikes",
        "exploding-gradients",
        "overfitting",
    },
    "diverged": {
        "exploding-gradients",
        "loss-jump",
        "loss-spikes",
        "overfitting",
        "not-generalising",
    },
    "exploding-gradients": {"rising-loss", "loss-jump", "loss-spikes"},
    "loss-jump": {"rising-loss", "loss-spikes"},
    "rising-loss": {"loss-spikes"},
    "vanishing-gradients": {"flat-loss", "at-chance"},
    "frozen-layers": {"flat-loss", "at-chance"},
}
"""By rule, the findings that follow from it and are left out beside it: one cause, one finding."""

LASTING = (
    "clipping",
    "hang",
    "loss-jump",
    "rising-loss",
    "uncovered-time",
    "validation-time",
)
"""Rules that explain others also with findings that are not critical."""


def findings(run: RecordedRun | Facts) -> list[Finding]:
    """All that is wrong with a run, what matters most first; nothing for a healthy one.

    A rule that fails says so as a finding of its own: one of them does not take the others away.
    """
    facts = run if isinstance(run, Facts) else Facts(run)
    found: list[Finding] = []
    for name, rule in RULES.items():
        try:
            found += rule(facts)
        except Exception as error:
            if os.environ.get("STEPWELL_STRICT") == "1":
                raise
            text = f"The rule {name} could not be applied: {type(error).__name__}: {error}"
            found.append(Finding("rule-failed", "note", text, {"metric": name}))
    found = [f for f in found if not f.cost_ns or f.cost_ns >= LEAST_COST_NS]
    return sorted(_without_consequences(found), key=by_weight)


def _without_consequences(found: list[Finding]) -> list[Finding]:
    """The findings without those that others explain; warnings and notes of most rules explain nothing."""
    causes = {f.rule for f in found if f.severity == "critical" or f.rule in LASTING}
    explained = set().union(*(CONSEQUENCES.get(rule, set()) for rule in causes))
    return [f for f in found if f.rule not in explained]
