"""A loss that jumps up and comes down again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.findings.curves import Curve
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import listed, number

FEWEST = 30
WINDOW = 25
TIMES = 2.0
"""A spike is at least so many times what the loss was just before …"""
NOISES = 10.0
"""… and so many times farther away than values commonly are …"""
OF_RANGE = 0.2
"""… and that far up again of the way that the loss has come down."""
LATE = 10
"""Values at the beginning, when a loss may do anything."""
RARE = 0.05
"""Of the values: more of them are how this loss is."""
APART = 2.0
"""Spikes are so many times as high as what is no spike: small batches have losses of all heights."""


def rule(facts: Facts) -> Iterator[Finding]:
    """One finding for the training loss that was logged most often."""
    losses = [curve for curve in facts.curves.losses if len(curve) >= FEWEST]
    if not losses:
        return
    curve = max(losses, key=len)
    at, usual = _spikes(curve)
    if not len(at):
        return
    steps = curve.steps[at].tolist()
    worst = int(at[(curve.values[at] - usual[at]).argmax()])
    yield Finding(
        "loss-spikes",
        "warning",
        f"{curve.name} spikes at {listed(steps)}: it jumps from {number(float(usual[worst]))} to "
        f"{number(float(curve.values[worst]))} at step {int(curve.steps[worst])}.",
        {
            "metric": curve.name,
            "count": len(steps),
            "highest": float(curve.values[worst]),
            "usual": float(usual[worst]),
        },
        tuple(steps[:1000]),
        advice="Look at the batches of these steps; clip gradients, lower or warm up the learning rate.",
        link=facts.command("plot", curve.name),
    )


def _spikes(curve: Curve) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Where spikes begin, and what was usual before each value."""
    values = curve.values
    padded = np.concatenate([np.full(WINDOW, values[0]), values[:-1]])
    before = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)
    usual: NDArray[np.float64] = np.median(before, axis=1)
    spread = np.median(np.abs(before - usual[:, None]), axis=1) * 1.4826
    came_down = float(np.median(values[:LATE]) - np.median(values[-LATE:]))
    rise = values - usual
    is_high = (
        (rise > NOISES * np.maximum(spread, curve.noise))
        & (values > TIMES * np.maximum(usual, 0))
        & (rise > OF_RANGE * abs(came_down))
    )
    is_high[:LATE] = False
    # A loss that goes up and stays there is no spike.
    if is_high[-1] and is_high.sum() > len(values) // 10:
        return np.empty(0, np.intp), usual
    starts = np.flatnonzero(is_high & ~np.concatenate([[False], is_high[:-1]]))
    if not len(starts):
        return starts, usual
    peaks = np.maximum.reduceat(np.where(is_high, rise, 0.0), starts)
    starts = starts[peaks >= _least_peak(peaks, rise[LATE:][~is_high[LATE:]])]
    return starts[:0] if len(starts) > RARE * len(values) else starts, usual


def _least_peak(peaks: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """How high a peak must be: above the widest gap between them, or all the rest; infinite without one."""
    heights = np.sort(np.append(peaks, others.max(initial=0.0)))
    ratios = heights[1:] / np.maximum(heights[:-1], 1e-300)
    widest = int(ratios.argmax())
    return float(heights[widest + 1]) if ratios[widest] >= APART else float("inf")
