"""A loss that jumps up, and comes down again (a spike) or stays there (a jump)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell._core.text import listed, number
from stepwell.analysis.findings.curves import MetricCurve
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.loss import is_not_meant_to_fall, judged_losses

FEWEST = 30
WINDOW = 25
TIMES = 2.0
"""A high value is at least this many times the level just before …"""
NOISES = 10.0
"""… above it by this many times the noise …"""
LOG_NOISES = 6.0
"""… and the noise of the logarithms …"""
OF_RANGE = 0.2
"""… and by this share of the total decrease of the loss."""
LATE = 10
"""The first values are ignored: a loss may vary strongly there."""
RARE = 0.05
"""Share of the values: a loss with more spikes is just noisy."""
FEWEST_AFTER = 10
"""Least number of values after a rise to judge whether it lasts."""
APART = 2.0
"""Spikes are this many times as high as other rises. With small batches losses of all heights occur."""


def find_spikes(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding, a jump or else spikes, for the training loss logged most often."""
    losses = [curve for curve in judged_losses(facts) if len(curve) >= FEWEST]
    if not losses or is_not_meant_to_fall(facts):
        return
    curve = max(losses, key=len)
    high = _high(curve)
    jump = next((at for at in high.starts.tolist() if _stays(curve, high, at)), None)
    if jump is not None:
        yield _jump(curve, high, jump)
    elif len(at := _spikes(curve, high)):
        yield _spiking(curve, high, at)


@dataclass(frozen=True)
class HighValues:
    """The values of a loss that are far above the level just before.

    Attributes:
        starts: the index at which each group of high values starts.
        is_high: whether each value is high.
        usual: the level before each value.
        rise: the difference of each value from that level.
    """

    starts: NDArray[np.intp]
    is_high: NDArray[np.bool_]
    usual: NDArray[np.float64]
    rise: NDArray[np.float64]


def _high(curve: MetricCurve) -> HighValues:
    values = curve.values
    padded = np.concatenate([np.full(WINDOW, values[0]), values[:-1]])
    before = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)
    usual: NDArray[np.float64] = np.median(before, axis=1)
    came_down = float(np.median(values[:LATE]) - np.median(values[-LATE:]))
    rise = values - usual
    is_high = (values > TIMES * np.maximum(usual, 0)) & (rise > OF_RANGE * abs(came_down))
    # Few values are left, so the noise before each of them is computed for these only.
    at = np.flatnonzero(is_high)
    spread = np.median(np.abs(before[at] - usual[at, None]), axis=1) * 1.4826
    is_high[at] = rise[at] > NOISES * np.maximum(spread, curve.noise)
    if values.min() > 0:
        # If the noise is proportional to the loss, only its logarithm has a constant noise.
        logs, usual_logs = np.log(values), np.log(usual[at])
        log_spread = np.median(np.abs(np.log(before[at]) - usual_logs[:, None]), axis=1) * 1.4826
        log_noise = float(np.median(np.abs(np.diff(logs)))) / 0.954
        is_high[at] &= logs[at] - usual_logs > LOG_NOISES * np.maximum(log_spread, log_noise)
    starts = np.flatnonzero(is_high & ~np.concatenate([[False], is_high[:-1]]))
    is_high[:LATE] = False
    return HighValues(starts[starts >= LATE], is_high, usual, rise)


def _stays(curve: MetricCurve, high: HighValues, at: int) -> bool:
    """Return whether the loss stays above half of the rise until the end."""
    after = curve.values[at:]
    if len(after) < FEWEST_AFTER:
        return False
    limit = high.usual[at] + 0.5 * high.rise[at]
    parts = np.array_split(after, min(5, len(after) // 4))
    return all(float(np.median(part)) > limit for part in parts)


def _jump(curve: MetricCurve, high: HighValues, at: int) -> Finding:
    step, before = int(curve.steps[at]), float(high.usual[at])
    after = float(np.median(curve.values[at:]))
    return Finding(
        "loss-jump",
        "critical",
        f"{curve.name} jumps from {number(before)} to {number(after)} at step {step} and stays there "
        f"until step {curve.steps[-1]}.",
        {"metric": curve.name, "before": before, "after": after, "since": step},
        (step, curve.span[1]),
        advice=f"Go back to a checkpoint before step {step}. Check the batch, the learning rate and the data "
        "from that step on.",
    )


def _spiking(curve: MetricCurve, high: HighValues, at: NDArray[np.intp]) -> Finding:
    steps = curve.steps[at].tolist()
    worst = int(at[high.rise[at].argmax()])
    usual, value = float(high.usual[worst]), float(curve.values[worst])
    return Finding(
        "loss-spikes",
        "warning",
        f"{curve.name} spikes at {listed(steps)}: it jumps from {number(usual)} to "
        f"{number(value)} at step {int(curve.steps[worst])}.",
        {"metric": curve.name, "count": len(steps), "highest": value, "usual": usual},
        tuple(steps[:1000]),
        advice="Check the batches of these steps. Then try gradient clipping, a lower learning rate or a "
        "warm-up.",
    )


def _spikes(curve: MetricCurve, high: HighValues) -> NDArray[np.intp]:
    """Return the indices at which spikes start."""
    values, is_high, rise = curve.values, high.is_high, high.rise
    # A loss that rises and stays there does not have a spike.
    if is_high[-1] and is_high.sum() > len(values) // 10:
        return np.empty(0, np.intp)
    starts = high.starts
    if not len(starts):
        return starts
    peaks = np.maximum.reduceat(np.where(is_high, rise, 0.0), starts)
    starts = starts[peaks >= _least_peak(peaks, rise[LATE:][~is_high[LATE:]])]
    return starts[:0] if len(starts) > RARE * len(values) else starts


def _least_peak(peaks: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the height above which peaks are spikes: above the widest gap; infinite if there is none."""
    heights = np.sort(np.append(peaks, others.max(initial=0.0)))
    ratios = heights[1:] / np.maximum(heights[:-1], 1e-300)
    widest = int(ratios.argmax())
    return float(heights[widest + 1]) if ratios[widest] >= APART else float("inf")
