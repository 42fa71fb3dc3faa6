"""Validation that falls behind training: overfitting, validation without progress, a high validation loss."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from stepwell._core.text import number, percent
from stepwell.analysis.findings.curves import MetricCurve, Pair, words_of
from stepwell.analysis.findings.facts import Facts, class_count
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.loss import SMALL, is_not_meant_to_fall
from stepwell.vocabulary import StandardTrainingJobSpanName

FEWEST = 5
"""Least number of values of a curve."""
AFTER = 3
"""Least number of validation values after the best one."""
WORSE_SINCE_BEST = 0.1
"""Validation must be worse by this share of its best value and of the total gain of training …"""
NOISES = 3.0
"""… and by this many times its noise."""
STILL = 0.05
"""Training must have improved by this share of its value since then."""
IMPROVED = 0.3
"""Training must have improved by this share of its value at the first validation."""
GAP = 0.3
"""Validation must be behind training by this share of the total gain of training."""
WORSE = 0.25
"""Validation that has become worse by more than this share of its best value does not stay the same."""
NEAR_CHANCE = 0.15
"""Relative distance from chance level: closer values are no better than guessing."""
LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value
FEWEST_VALIDATIONS = 3
BEHIND = 3.0
"""The validation loss must be this many times the training loss …"""
ABOVE = 1.1
"""… and this many times the initial training loss, or else the initial validation loss."""
LEFT = 0.7
"""The training loss must have fallen to this share of that initial loss."""
AT_ONCE = 10
"""A loss logged before this step belongs to a model that has learnt almost nothing."""


def find_overfitting(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each quantity that overfits."""
    for pair in facts.curves.pairs:
        finding = _overfits(facts, pair)
        if finding is not None:
            yield finding


def _overfits(facts: Facts, pair: Pair) -> Finding | None:
    training, validation = pair.training, pair.validation
    if len(validation) < FEWEST or len(training) < FEWEST:
        return None
    smooth = pair.sign * validation.smooth
    best = int(smooth.argmin())
    last = float(np.median(smooth[-max(1, len(smooth) // 10) :]))
    if len(smooth) - 1 - best < max(AFTER, len(smooth) // 10):
        return None
    worse = last - float(smooth[best])
    step = int(validation.steps[best])
    then, now = training.at(step), training.level(0.9, 1.0)
    gained = abs(training.at(int(training.steps[0])) - now)
    limit = max(
        WORSE_SINCE_BEST * gained,
        WORSE_SINCE_BEST * abs(float(smooth[best])),
        NOISES * validation.noise / np.sqrt(max(1, len(smooth) // 20)),
    )
    improved = pair.sign * (then - now)
    if worse < limit or improved < STILL * abs(then):
        return None
    # Report the best single value near the smoothed optimum, as a reader sees it in the plot.
    near = abs(validation.steps - step) <= max(
        1, (validation.steps[-1] - validation.steps[0]) // 20
    )
    raw = int(np.flatnonzero(near)[(pair.sign * validation.values[near]).argmin()])
    best_step, best_value = int(validation.steps[raw]), float(validation.values[raw])
    way = "rises" if pair.sign > 0 else "falls"
    final = pair.sign * last
    return Finding(
        "overfitting",
        "warning" if worse < 3 * limit else "critical",
        f"The model overfits after step {best_step}: {validation.name} is best there "
        f"({number(best_value)}) and {way} to {number(final)}, while {training.name} still improves "
        f"({number(then)} to {number(now)}).",
        {
            "metric": validation.name,
            "training_metric": training.name,
            "best": best_value,
            "best_step": best_step,
            "last": final,
            "training_then": then,
            "training_now": now,
        },
        (best_step, int(validation.steps[-1])),
        advice=f"Stop at step {best_step} or use its checkpoint. To train longer, use more data, "
        "augmentation, weight decay or dropout.",
        link=facts.command("plot", training.name, validation.name),
    )


def find_stuck_validation(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for the first quantity without progress: an accuracy at chance level comes first."""
    classes = class_count(facts)
    if classes:
        for curve in facts.curves.matching(r"(val|valid|eval|dev|test|holdout).*acc"):
            finding = _at_chance(facts, curve, classes)
            if finding is not None:
                yield finding
                return
    for pair in facts.curves.pairs:
        finding = _stays(facts, pair)
        if finding is not None:
            yield finding
            return


def _at_chance(facts: Facts, curve: MetricCurve, classes: int) -> Finding | None:
    loss = max(facts.curves.losses, key=len, default=None)
    if len(curve) < FEWEST or loss is None or len(loss) < FEWEST:
        return None
    scale = _scale(curve)
    chance = scale / classes
    level = curve.level(0.5, 1.0)
    gained = 1 - loss.level(0.9, 1.0) / max(1e-12, loss.level(0.0, 0.1))
    if abs(level - chance) > NEAR_CHANCE * chance or gained < IMPROVED:
        return None
    return Finding(
        "at-chance",
        "critical",
        f"Validation is no better than guessing: {curve.name} stays at {percent(level / scale)} "
        f"with {classes} classes ({percent(1 / classes)} by chance), while {loss.name} falls from "
        f"{number(loss.level(0.0, 0.1))} to {number(loss.level(0.9, 1.0))}.",
        {"metric": curve.name, "level": level, "classes": classes, "training_metric": loss.name},
        (int(curve.steps[0]), int(curve.steps[-1])),
        advice="The model memorises the training data, or validation uses other data. Compare preprocessing "
        "and labels of both, then try more data or regularisation.",
        link=facts.command("plot", loss.name, curve.name),
    )


def _scale(*curves: MetricCurve) -> float:
    """Return the highest possible accuracy: 100 if the values are percentages, else 1."""
    return 100.0 if max(float(curve.values.max()) for curve in curves) > 1.0 else 1.0


def _stays(facts: Facts, pair: Pair) -> Finding | None:
    training, validation = pair.training, pair.validation
    if len(validation) < FEWEST or len(training) < FEWEST:
        return None
    first = int(validation.steps[0])
    then, now = training.at(first), training.level(0.9, 1.0)
    improved = pair.sign * (then - now)
    scale = _scale(training, validation)
    least = IMPROVED * abs(then) if pair.sign > 0 else IMPROVED * max(abs(scale - then), 1e-12)
    smooth = pair.sign * validation.smooth
    gained = float(smooth[0] - smooth.min())
    is_still = gained <= max(
        0.05 * improved, 2 * validation.noise / math.sqrt(max(1, len(smooth) // 20))
    )
    whole = abs(training.at(int(training.steps[0])) - now)
    behind = pair.sign * (float(np.median(validation.values[-3:])) - now)
    if improved < max(least, 1e-12) or not is_still or behind < GAP * whole:
        return None
    if float(smooth[-1] - smooth.min()) > WORSE * abs(float(smooth.min())):
        # It gets worse, which the rule for overfitting reports.
        return None
    if "acc" in " ".join(words_of(validation.name)) and validation.level(0.5, 1.0) > 0.9 * scale:
        return None
    return Finding(
        "not-generalising",
        "warning",
        f"Training improves, validation does not: {training.name} goes from {number(then)} to "
        f"{number(now)}, {validation.name} stays at {number(validation.level(0.5, 1.0))}.",
        {
            "metric": validation.name,
            "training_metric": training.name,
            "training_then": then,
            "training_now": now,
            "level": validation.level(0.5, 1.0),
        },
        (first, int(validation.steps[-1])),
        advice="Check that both use the same preprocessing, then try more data or regularisation.",
        link=facts.command("plot", training.name, validation.name),
    )


def find_high_validation_loss(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for the first such loss, unless another rule of this module explains it."""
    if is_not_meant_to_fall(facts):
        return
    finding = next((f for pair in facts.curves.pairs if (f := _high_loss(facts, pair))), None)
    if (
        finding is not None
        and not any(find_overfitting(facts))
        and not any(find_stuck_validation(facts))
    ):
        yield finding


def _high_loss(facts: Facts, pair: Pair) -> Finding | None:
    training, validation = pair.training, pair.validation
    if (
        not facts.curves.is_whole_loss(training.name)
        or len(validation) < FEWEST_VALIDATIONS
        or len(training) < FEWEST
        or float(validation.values.min()) <= 0
    ):
        return None
    # If the data are sorted, only the mean over all steps since the last validation is a fair comparison.
    since = int(validation.steps[-2])
    recent = training.values[training.steps > since]
    now = float(recent.mean()) if len(recent) else float(training.values[-1])
    last = float(validation.values[-2:].min())
    if training.steps[0] < min(AT_ONCE, validation.steps[0]):
        start, origin = float(training.values[:3].max()), f"{training.name} at the start"
    else:
        start, origin = float(validation.values[0]), "at the start"
    if last < ABOVE * start or last < BEHIND * now or now > LEFT * start or last < SMALL:
        return None
    loops = facts.loops(LOOP)
    is_sequential = any(loop.attributes.get("shuffle") is False for loop in loops)
    cause = " The training loader does not shuffle." if is_sequential else ""
    step = int(validation.steps[-1])
    return Finding(
        "not-generalising",
        "warning",
        f"The model does not generalise: {validation.name} is {number(float(validation.values[-1]))} at step "
        f"{step}, higher than {origin} ({number(start)}), while {training.name} is {number(now)} on average "
        f"since step {since}.{cause}",
        {
            "metric": validation.name,
            "training_metric": training.name,
            "training_then": start,
            "training_now": now,
            "level": float(validation.values[-1]),
        },
        (int(validation.steps[0]), step),
        advice=(
            "Shuffle the training data. Then check "
            if is_sequential
            else "Check that the training data are shuffled, "
        )
        + "how the data were split, and that both losses are means of the same quantity.",
        link=facts.command("plot", training.name, validation.name),
    )
