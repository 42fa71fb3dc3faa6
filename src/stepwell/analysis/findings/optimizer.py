"""An optimizer that does not have the model's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.vocabulary import StandardTrainingJobSpanName

LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding, for the latest training loop that says what the optimizer updates."""
    for loop in reversed(facts.loops(LOOP)):
        trainable = loop.attributes.get("trainable_parameters")
        optimized = loop.attributes.get("optimized_parameters")
        if isinstance(trainable, int) and isinstance(optimized, int):
            if trainable > 0 and optimized < trainable:
                yield _finding(trainable, optimized, loop.attributes)
            return


def _finding(trainable: int, optimized: int, about: Mapping[str, Any]) -> Finding:
    evidence = {"trainable": trainable, "optimized": optimized}
    if optimized == 0:
        return Finding(
            "optimizer-parameters",
            "critical",
            f"The optimizer updates none of the model's {trainable} trainable parameter tensors: the model "
            "does not learn.",
            evidence,
            advice="Create the optimizer from the parameters of the model that is trained, after the model "
            "was replaced or copied for the last time.",
        )
    missing = trainable - optimized
    return Finding(
        "optimizer-parameters",
        "warning",
        f"The optimizer updates {optimized} of the model's {trainable} trainable parameter tensors; "
        f"{missing} {'is' if missing == 1 else 'are'} never updated{_which(missing, about)}.",
        evidence,
        advice="If that is intended, set requires_grad=False for the others, which saves their gradients; "
        "if not, add them to the optimizer.",
    )


def _which(missing: int, about: Mapping[str, Any]) -> str:
    """Their names and size, where they were recorded."""
    names, numbers = about.get("not_optimized"), about.get("not_optimized_numbers")
    if not isinstance(names, list) or not isinstance(numbers, int):
        return ""
    listed = ", ".join(map(str, names)) + (" and others" if missing > len(names) else "")
    return f": {listed} ({numbers:,} numbers)"
