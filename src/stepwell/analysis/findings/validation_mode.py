"""Validation with the model in training mode."""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import listed
from stepwell.analysis.time.lanes import Loop
from stepwell.vocabulary import StandardTrainingJobSpanName

LOOP = StandardTrainingJobSpanName.VALIDATION_LOOP.value


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for all validations, counted on one rank."""
    loops = facts.loops(LOOP)
    rank = min((loop.rank for loop in loops if _is_wrong(loop)), default=None)
    if rank is None:
        return
    loops = [loop for loop in loops if loop.rank == rank]
    wrong = [loop for loop in loops if _is_wrong(loop)]
    steps = sorted({loop.step for loop in wrong if loop.step is not None})
    where = f" (after {listed(steps)})" if steps else ""
    if len(loops) == 1:
        which = "The validation loop runs"
    else:
        count = "All" if len(wrong) == len(loops) else f"{len(wrong)} of"
        which = f"{count} {len(loops)} validation loops run"
    yield Finding(
        "validation-mode",
        "warning",
        f"{which} with the model in training mode{where}: dropout is "
        "active, and batch normalisation uses and updates the statistics of the validation batches.",
        {"wrong": len(wrong), "loops": len(loops)},
        tuple(steps[:1000]),
        advice="Call model.eval() before validation and model.train() after it.",
    )


def _is_wrong(loop: Loop) -> bool:
    return loop.attributes.get("model_mode") == "train"
