"""Validation that falls behind training: overfitting, validation without progress, a high validation loss."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from stepwell._core.text import number, percent
from stepwell.analysis.findings.curves import MetricCurve, Pair, words_of
from stepwell.analysis.findings.facts import Facts, class_count
from stepwell.analysis.findings.finding import Finding, first_of
from stepwell.analysis.findings.loss import SMALL, is_not_meant_to_fall

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
    return filter(None, (_overfits(facts, pair) for pair in facts.curves.pairs))


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
    then, now = training.at(step), training.end
    gained = abs(float(training.smooth[0]) - now)
    limit = max(
        WORSE_SINCE_BEST * gained,
        WORSE_SINCE_BEST * abs(float(smooth[best])),
        NOISES * _smooth_noise(validation),
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
            **_names(pair),
            "best": best_value,
            "best_step": best_step,
            "last": final,
            "training_then": then,
            "training_now": now,
        },
        (best_step, validation.span[1]),
        advice=f"Stop at step {best_step} or use its checkpoint. To train longer, use more data, "
        "augmentation, weight decay or dropout.",
        link=facts.command("plot", training.name, validation.name),
    )


def _names(pair: Pair) -> dict[str, Any]:
    return {"metric": pair.validation.name, "training_metric": pair.training.name}


def _smooth_noise(curve: MetricCurve) -> float:
    """Return the standard deviation of a smoothed value."""
    return float(curve.noise / np.sqrt(max(1, len(curve) // 20)))


def find_stuck_validation(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for the first quantity without progress: an accuracy at chance level comes first."""
    accuracies = facts.curves.matching(r"(val|valid|eval|dev|test|holdout).*acc")
    at_chance = (_at_chance(facts, curve) for curve in accuracies)
    return first_of(chain(at_chance, (_stays(facts, pair) for pair in facts.curves.pairs)))


def _at_chance(facts: Facts, curve: MetricCurve) -> Finding | None:
    classes, loss = class_count(facts), max(facts.curves.losses, key=len, default=None)
    if not classes or len(curve) < FEWEST or loss is None or len(loss) < FEWEST:
        return None
    scale = _scale(curve)
    chance = scale / classes
    level = curve.level(0.5, 1.0)
    gained = 1 - loss.end / max(1e-12, loss.start)
    if abs(level - chance) > NEAR_CHANCE * chance or gained < IMPROVED:
        return None
    return Finding(
        "at-chance",
        "critical",
        f"Validation is no better than guessing: {curve.name} stays at {percent(level / scale)} "
        f"with {classes} classes ({percent(1 / classes)} by chance), while {loss.name} falls from "
        f"{number(loss.start)} to {number(loss.end)}.",
        {"metric": curve.name, "level": level, "classes": classes, "training_metric": loss.name},
        curve.span,
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
    then, now = training.at(first), training.end
    level = validation.level(0.5, 1.0)
    improved = pair.sign * (then - now)
    scale = _scale(training, validation)
    least = IMPROVED * abs(then) if pair.sign > 0 else IMPROVED * max(abs(scale - then), 1e-12)
    smooth = pair.sign * validation.smooth
    gained = float(smooth[0] - smooth.min())
    is_still = gained <= max(0.05 * improved, 2 * _smooth_noise(validation))
    whole = abs(float(training.smooth[0]) - now)
    behind = pair.sign * (float(np.median(validation.values[-3:])) - now)
    if improved < max(least, 1e-12) or not is_still or behind < GAP * whole:
        return None
    if float(smooth[-1] - smooth.min()) > WORSE * abs(float(smooth.min())):
        # It gets worse, which the rule for overfitting reports.
        return None
    if "acc" in " ".join(words_of(validation.name)) and level > 0.9 * scale:
        return None
    return Finding(
        "not-generalising",
        "warning",
        f"Training improves, validation does not: {training.name} goes from {number(then)} to "
        f"{number(now)}, {validation.name} stays at {number(level)}.",
        {**_names(pair), "training_then": then, "training_now": now, "level": level},
        validation.span,
        advice="Check that both use the same preprocessing, then try more data or regularisation.",
        link=facts.command("plot", training.name, validation.name),
    )


def find_high_validation_loss(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for the first such loss, unless another rule of this module explains it."""
    if is_not_meant_to_fall(facts):
        return
    for finding in first_of(_high_loss(facts, pair) for pair in facts.curves.pairs):
        if not any(find_overfitting(facts)) and not any(find_stuck_validation(facts)):
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
    is_sequential = any(loop.attributes.get("shuffle") is False for loop in facts.training_loops)
    cause = " The training loader does not shuffle." if is_sequential else ""
    level, step = float(validation.values[-1]), int(validation.steps[-1])
    return Finding(
        "not-generalising",
        "warning",
        f"The model does not generalise: {validation.name} is {number(level)} at step "
        f"{step}, higher than {origin} ({number(start)}), while {training.name} is {number(now)} on average "
        f"since step {since}.{cause}",
        {**_names(pair), "training_then": start, "training_now": now, "level": level},
        validation.span,
        advice=(
            "Shuffle the training data. Then check "
            if is_sequential
            else "Check that the training data are shuffled, "
        )
        + "how the data were split, and that both losses are means of the same quantity.",
        link=facts.command("plot", training.name, validation.name),
    )
