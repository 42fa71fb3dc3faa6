"""The list of rules, and their application to a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from stepwell.analysis.findings import (
    batches,
    between_steps,
    coverage,
    data_bound,
    died,
    generalisation,
    goodput,
    gradients,
    hang,
    learning_rate,
    loop_setup,
    loss,
    machine_load,
    memory,
    nonfinite,
    pauses,
    rank_divergence,
    slow_steps,
    spikes,
    stragglers,
)
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding, by_weight
from stepwell.reading import RecordedRun

Rule = Callable[[Facts], Iterator[Finding]]

RULES: dict[str, Rule] = {
    "died": died.find_first_death,
    "hanging": hang.find_hang,
    "nonfinite": nonfinite.find_nonfinite,
    "optimizer": loop_setup.find_missing_parameters,
    "clipping": gradients.find_clipping,
    "passes": loop_setup.find_stopped_passes,
    "loss": loss.find_loss_problems,
    "validation_mode": loop_setup.find_validation_in_training_mode,
    "overfitting": generalisation.find_overfitting,
    "stuck": generalisation.find_stuck_validation,
    "generalising": generalisation.find_high_validation_loss,
    "gradients": gradients.find_exploding_or_vanishing,
    "rank_divergence": rank_divergence.find_rank_divergence,
    "frozen": gradients.find_frozen_layers,
    "learning_rate": learning_rate.find_wrong_learning_rate,
    "batches": batches.find_batch_problems,
    "spikes": spikes.find_spikes,
    "straggling": stragglers.find_stragglers,
    "data_bound": data_bound.find_waiting_for_data,
    "pauses": pauses.find_uncovered_time,
    "validation_time": between_steps.find_long_validation,
    "slow_steps": slow_steps.find_recurring_slow_steps,
    "throughput": slow_steps.find_slowdown,
    "stalls": slow_steps.find_stalls,
    "checkpoints": between_steps.find_checkpoint_stalls,
    "garbage": memory.find_garbage_collection,
    "memory": memory.find_memory_growth,
    "goodput": goodput.find_low_goodput,
    "machine_load": machine_load.find_busy_machine,
    "first_steps": slow_steps.find_slow_first_steps,
    "dropped": coverage.find_dropped_records,
}
"""Rules by name. Findings of the same severity and cost are shown in this order."""

LEAST_COST_NS = 300_000_000
"""A finding that cost less time than this is left out, even if that is a large share of a short run."""

NOT_LEARNING = {
    "flat-loss",
    "at-chance",
    "frozen-layers",
    "vanishing-gradients",
    "learning-rate",
    "not-generalising",
}
CONSEQUENCES: dict[str, set[str]] = {
    # The time spent hanging is also counted in some phase.
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
"""For a finding, its consequences, which are left out if it is present: one cause, one finding."""

LASTING = (
    "clipping",
    "hang",
    "loss-jump",
    "rising-loss",
    "uncovered-time",
    "validation-time",
)
"""Findings that explain their consequences even if they are not critical."""


def findings(run: RecordedRun | Facts) -> list[Finding]:
    """Return the problems of a run, the most important first; an empty list for a healthy run.

    A rule that raises is reported as a finding ``rule-failed``, and the other rules still apply.
    """
    facts = run if isinstance(run, Facts) else Facts(run)
    results: list[Finding] = []
    for name, rule in RULES.items():
        try:
            results += (_with_link(facts, finding) for finding in rule(facts))
        except Exception as error:
            if os.environ.get("STEPWELL_STRICT") == "1":
                raise
            text = f"The rule {name!r} failed: {type(error).__name__}: {error}"
            results.append(Finding("rule-failed", "note", text, {"metric": name}))
    results = [f for f in results if not f.cost_ns or f.cost_ns >= LEAST_COST_NS]
    return sorted(_without_consequences(results), key=by_weight)


def _with_link(facts: Facts, finding: Finding) -> Finding:
    """Return the finding with a link to its metric or to the run's spans, if its rule gave none."""
    metric, phase = finding.evidence.get("metric"), finding.evidence.get("phase")
    if finding.link or not (metric or phase):
        return finding
    return replace(finding, link=facts.command("plot", metric) if metric else facts.command("show"))


def _without_consequences(results: list[Finding]) -> list[Finding]:
    """Leave out the consequences of other findings. Only critical ones and ``LASTING`` have any."""
    causes = {f.rule for f in results if f.severity == "critical" or f.rule in LASTING}
    explained = set().union(*(CONSEQUENCES.get(rule, set()) for rule in causes))
    return [f for f in results if f.rule not in explained]
