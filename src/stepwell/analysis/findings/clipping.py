"""Clipping that leaves next to nothing of the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.loss import is_not_meant_to_fall, main_loss
from stepwell.analysis.findings.wording import number

BEFORE = "gradient_norm_before_clipping"
AFTER = "gradient_norm/overall"
FEWEST = 20
"""Steps of which both norms must be known."""
FEWEST_LOSSES = 100
LEFT = 0.01
"""Of the norm before clipping: what is less has been clipped away …"""
MOST = 0.5
"""… if that is so in more than this share of the steps."""
FELL = 0.1
"""A loss that fell by this share shows that what is left of the gradients is enough."""


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for the run.

    Only for SGD: adaptive optimizers divide by the size of the gradients, so that it hardly matters there.
    """
    names = facts.curves.names
    if BEFORE not in names or AFTER not in names or not _is_plain(facts):
        return
    before, after = facts.curves.curve(BEFORE), facts.curves.curve(AFTER)
    steps, at_before, at_after = np.intersect1d(before.steps, after.steps, return_indices=True)
    old, new = before.values[at_before], after.values[at_after]
    cut = new < LEFT * old
    if len(steps) < FEWEST or cut.mean() <= MOST:
        return
    loss = main_loss(facts)
    if loss is None or len(loss) < FEWEST_LOSSES or is_not_meant_to_fall(facts):
        return
    first, last = loss.level(0.0, 0.1), loss.level(0.9, 1.0)
    if first - last >= FELL * abs(first):
        return
    typical, left = float(np.median(old[cut])), float(np.median(new[cut]))
    smaller = float(f"{typical / left:.3g}") if left > 0 else math.inf
    factor = f"{smaller:,.0f} times smaller than without clipping" if left > 0 else "zero"
    falls = "hardly falls" if last < first else "does not fall"
    yield Finding(
        "clipping",
        "warning",
        f"Clipping cuts the gradient norm from {number(typical)} to {number(left)} in {int(cut.sum())} of "
        f"{len(steps)} sampled steps: each gradient step is {factor}, and {loss.name} {falls} "
        f"({number(first)} at first, {number(last)} at last).",
        {
            "metric": BEFORE,
            "before": typical,
            "after": left,
            "cut": int(cut.sum()),
            "samples": len(steps),
        },
        (int(steps[0]), int(steps[-1])),
        advice="Raise max_norm of clip_grad_norm_, or clip after unscaling the gradients.",
        link=facts.command("plot", AFTER, BEFORE),
    )


def _is_plain(facts: Facts) -> bool:
    """Whether the optimizer's updates are proportional to the gradients."""
    optimizer = facts.run.config.get("optimizer")
    name = optimizer.get("class") if isinstance(optimizer, Mapping) else optimizer
    return isinstance(name, str) and "sgd" in name.lower()
