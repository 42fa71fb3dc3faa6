"""Training improves, validation gets worse."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepwell.analysis.findings.curves import Pair
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import number

FEWEST = 5
AFTER = 3
"""Values of validation that there must be after the best one."""
WORSE = 0.1
"""By so much of what training has gained in all, and of the best value, validation must be worse …"""
NOISES = 3.0
"""… and by so many times its noise."""
STILL = 0.05
"""Training must have gained so much of its own value since."""


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for each quantity that was logged for both."""
    for pair in facts.curves.pairs:
        found = _judge(facts, pair)
        if found is not None:
            yield found


def _judge(facts: Facts, pair: Pair) -> Finding | None:
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
        WORSE * gained,
        WORSE * abs(float(smooth[best])),
        NOISES * validation.noise / np.sqrt(max(1, len(smooth) // 20)),
    )
    improved = pair.sign * (then - now)
    if worse < limit or improved < STILL * abs(then):
        return None
    # As a person reads it off: the best single value near the best of the smoothed ones.
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
        f"It overfits since step {best_step}: {validation.name} was best there "
        f"({number(best_value)}) and {way} to {number(final)}, while {training.name} goes on "
        f"improving ({number(then)} to {number(now)}).",
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
        advice=f"Stop at step {best_step} or take its checkpoint; more data or augmentation, weight "
        "decay, dropout.",
        link=facts.command("plot", training.name, validation.name),
    )
