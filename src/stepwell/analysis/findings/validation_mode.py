"""Validation with the model in training mode."""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import listed
from stepwell.vocabulary import StandardTrainingJobSpanName

LOOP = StandardTrainingJobSpanName.VALIDATION_LOOP.value


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for all validations."""
    loops = facts.loop_attributes(LOOP)
    wrong = [loop for loop in loops if loop.get("model_mode") == "train"]
    if not wrong:
        return
    steps = sorted({int(loop["step"]) for loop in wrong if isinstance(loop["step"], int)})
    where = f" ({'after ' + listed(steps)})" if steps else ""
    which = "All" if len(wrong) == len(loops) else f"{len(wrong)} of"
    yield Finding(
        "validation-mode",
        "warning",
        f"{which} {len(loops)} validation loops run with the model in training mode{where}: dropout is "
        "active, and batch normalisation uses and updates the statistics of the validation batches.",
        {"wrong": len(wrong), "loops": len(loops)},
        tuple(steps[:1000]),
        advice="Call model.eval() before validation and model.train() after it.",
    )
