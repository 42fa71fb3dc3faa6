"""Mistakes in the training loop that its recorded attributes show.

Parameters missing in the optimizer, passes over the data that stop after a few batches, and validation
with the model in training mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepwell._core.text import listed, number
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.timeline.lanes import Loop
from stepwell.vocabulary import StandardTrainingJobSpanName

VALIDATION_LOOP = StandardTrainingJobSpanName.VALIDATION_LOOP.value
FEWEST = 10
"""Least number of stopped passes …"""
NEARLY_ALL = 0.9
"""… and their least share of all passes."""
USED = 0.1
"""Share of the batches of the loader: passes that use more are long enough."""
FEW_BATCHES = 2
"""Passes over shuffled data that use more batches than this are intended: they sample the data."""


def find_missing_parameters(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding, for the latest training loop that recorded the optimizer's parameters."""
    for loop in reversed(facts.training_loops):
        trainable = loop.attributes.get("trainable_parameters")
        optimized = loop.attributes.get("optimized_parameters")
        if isinstance(trainable, int) and isinstance(optimized, int):
            if trainable > 0 and optimized < trainable:
                yield _missing_parameters(trainable, optimized, loop.attributes)
            return


def _missing_parameters(trainable: int, optimized: int, attributes: Mapping[str, Any]) -> Finding:
    evidence = {"trainable": trainable, "optimized": optimized}
    if optimized == 0:
        return Finding(
            "optimizer-parameters",
            "critical",
            f"The optimizer updates none of the model's {trainable} trainable parameter tensors: the model "
            "does not learn.",
            evidence,
            advice="Create the optimizer from the parameters of the model that is trained. Do it after the "
            "last time that the model is replaced or copied.",
        )
    missing = trainable - optimized
    return Finding(
        "optimizer-parameters",
        "warning",
        f"The optimizer updates {optimized} of the model's {trainable} trainable parameter tensors; "
        f"{missing} {'is' if missing == 1 else 'are'} never updated{_which(missing, attributes)}.",
        evidence,
        advice="Add the others to the optimizer. If they are frozen on purpose, set requires_grad=False, "
        "which saves computing their gradients.",
    )


def _which(missing: int, attributes: Mapping[str, Any]) -> str:
    """Return the names and total size of the missing parameters, or "" if they were not recorded."""
    names, size = attributes.get("not_optimized"), attributes.get("not_optimized_numbers")
    if not isinstance(names, list) or not isinstance(size, int):
        return ""
    shown = ", ".join(map(str, names)) + (" and others" if missing > len(names) else "")
    return f": {shown} ({size:,} values)"


def find_stopped_passes(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding, for the latest training loop with stopped passes."""
    for loop in reversed(facts.training_loops):
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
            yield _stopped_passes(length, stopped, used, is_same)
        return


def _stopped_passes(length: int, stopped: int, used: float, is_same: bool) -> Finding:
    first = "first batch" if used <= 1 else f"first {number(used)} batches"
    result = (
        f"the loader does not shuffle, so training always gets its {first}"
        if is_same
        else "each pass starts again, and the sampler decides which part of the data is used"
    )
    return Finding(
        "stopped-passes",
        "critical" if is_same else "note",
        f"Passes over the loader stop after {number(used)} of {length:,} batches ({stopped:,} times): "
        f"{result}.",
        {"batches": used, "batches_per_epoch": length, "passes": stopped, "is_same": is_same},
        advice="Iterate over the loader, or keep one iterator for many steps, instead of calling "
        "next(iter(loader)) in each step.",
    )


def find_validation_in_training_mode(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding for all validations, counted on one rank."""
    loops = facts.loops(VALIDATION_LOOP)
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
