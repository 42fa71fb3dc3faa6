"""The loss of validation ends far above that of training, and higher than without training."""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.analysis.findings import overfitting, stuck
from stepwell.analysis.findings.curves import Pair
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.loss import SMALL, is_not_meant_to_fall
from stepwell.analysis.findings.wording import number
from stepwell.vocabulary import StandardTrainingJobSpanName

LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value
FEWEST = 5
FEWEST_VALIDATIONS = 3
BEHIND = 3.0
"""Times the loss of training: what that of validation must be …"""
ABOVE = 1.1
"""… and times what training began with, or else validation."""
LEFT = 0.7
"""Of that, what the loss of training has come down to at least."""
AT_ONCE = 10
"""A loss that was logged before this step is that of a model that has learnt next to nothing."""


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for the first loss that shows it, unless another rule says how it came to that."""
    if is_not_meant_to_fall(facts):
        return
    found = next((f for pair in facts.curves.pairs if (f := _judge(facts, pair))), None)
    if found is not None and not any(overfitting.rule(facts)) and not any(stuck.rule(facts)):
        yield found


def _judge(facts: Facts, pair: Pair) -> Finding | None:
    training, validation = pair.training, pair.validation
    if (
        not facts.curves.is_whole_loss(training.name)
        or len(validation) < FEWEST_VALIDATIONS
        or len(training) < FEWEST
        or float(validation.values.min()) <= 0
    ):
        return None
    # Of sorted data, what is fair is the mean over all that was trained on since the last validation.
    since = int(validation.steps[-2])
    recent = training.values[training.steps > since]
    now = float(recent.mean()) if len(recent) else float(training.values[-1])
    last = float(validation.values[-2:].min())
    if training.steps[0] < min(AT_ONCE, validation.steps[0]):
        start, origin = float(training.values[:3].max()), f"{training.name} was at first"
    else:
        start, origin = float(validation.values[0]), "it was at first"
    if last < ABOVE * start or last < BEHIND * now or now > LEFT * start or last < SMALL:
        return None
    loops = facts.loops(LOOP)
    is_sequential = any(loop.attributes.get("shuffle") is False for loop in loops)
    cause = " The training loader does not shuffle." if is_sequential else ""
    step = int(validation.steps[-1])
    return Finding(
        "not-generalising",
        "warning",
        f"{validation.name} is {number(float(validation.values[-1]))} at step {step}, more than {origin} "
        f"({number(start)}), while {training.name} is {number(now)} on average since step {since}: the model "
        f"does not generalise.{cause}",
        {
            "metric": validation.name,
            "training_metric": training.name,
            "training_then": start,
            "training_now": now,
            "level": float(validation.values[-1]),
        },
        (int(validation.steps[0]), step),
        advice=(
            "Shuffle the training data"
            if is_sequential
            else "Check that the training data are shuffled"
        )
        + "; check how the data were split, and that both losses are means of the same quantity.",
        link=facts.command("plot", training.name, validation.name),
    )
