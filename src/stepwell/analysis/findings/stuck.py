"""Training improves, validation does not: it stays where it was, maybe at what guessing gives."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from stepwell.analysis.findings.curves import Curve, Pair, as_number, words_of
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import number, percent

FEWEST = 5
IMPROVED = 0.3
"""Of its value at the time of the first validation: what training must have gained."""
GAP = 0.3
"""Of what training has gained in all: how far validation must be behind."""
WORSE = 0.25
"""Of its best value: what has gone up by more does not stay where it was."""
NEAR_CHANCE = 0.15
"""Of what guessing gives: closer than that is no better than guessing."""


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for the first quantity that shows it: accuracy first, if it is at chance level."""
    classes = class_count(facts)
    if classes:
        for curve in facts.curves.matching(r"(val|valid|eval|dev|test|holdout).*acc"):
            found = _at_chance(facts, curve, classes)
            if found is not None:
                yield found
                return
    for pair in facts.curves.pairs:
        found = _stays(facts, pair)
        if found is not None:
            yield found
            return


def class_count(facts: Facts) -> int | None:
    """How many classes there are, from the configuration or from what batches consisted of."""
    for key in ("num_classes", "n_classes", "classes", "num_labels"):
        known = as_number(facts.run.config.get(key))
        if known and known >= 2:
            return int(known)
    names = [n for n in facts.curves.names if re.fullmatch(r"batch/.*_\d+_pct", n)]
    return len(names) if len(names) >= 2 else None


def _at_chance(facts: Facts, curve: Curve, classes: int) -> Finding | None:
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
        advice="It learns by heart, or validation sees other data: compare preprocessing and labels "
        "of both; then more data or regularisation.",
        link=facts.command("plot", loss.name, curve.name),
    )


def _scale(*curves: Curve) -> float:
    """What is all of it: 100 where shares are given in per cent."""
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
        # It gets worse, which is another finding.
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
        advice="Check that both get the same preprocessing; then more data, or regularisation.",
        link=facts.command("plot", training.name, validation.name),
    )
