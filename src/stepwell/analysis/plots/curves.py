"""Panels of curves as plain values, and the smoothing and thinning of a curve before it is drawn."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

Numbers = list[float]
MOST_POINTS = 1500
"""Most points of a curve; more cannot be distinguished on a page."""
SMOOTH_FROM = 300
"""From this number of values on, a curve is smoothed by default."""
LARGEST = 1e300
"""Larger values count as infinite, because their differences may overflow."""
LOG_FROM = 300.0
"""Positive values that differ by more than this factor get a logarithmic scale."""


@dataclass(frozen=True)
class Curve:
    """One line in a panel.

    Attributes:
        label: the name in the legend.
        x: the positions of the values.
        y: the logged values, all finite; the mean if there are several ranks.
        smooth: the smoothed values, or empty.
        low: the minimum over ranks, or empty.
        high: the maximum over ranks, or empty.
        nonfinite: the positions of NaN and infinite values.
        faint: whether it is drawn as background to other curves.
        count: the number of logged values.
        colour: the index of the colour. Curves of one run share it; -1 for the next free one.
    """

    label: str
    x: Numbers
    y: Numbers
    smooth: Numbers = field(default_factory=list)
    low: Numbers = field(default_factory=list)
    high: Numbers = field(default_factory=list)
    nonfinite: Numbers = field(default_factory=list)
    faint: bool = False
    count: int = 0
    colour: int = -1

    @property
    def drawn(self) -> Numbers:
        """The values of the main line: smoothed if there are any."""
        return self.smooth or self.y


@dataclass(frozen=True)
class Mark:
    """An event at one position of the x axis, such as a restart."""

    x: float
    label: str


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes."""

    title: str
    x_label: str
    curves: list[Curve]
    log: bool = False
    zero: bool = False
    marks: list[Mark] = field(default_factory=list)
    note: str = ""


def smoothed(values: Numbers, weight: float) -> Numbers:
    """Return the mean of the exponential moving averages from both ends, which has no lag.

    ``weight``, from 0 to below 1, is the share of the previous average that is kept at each value; with 0 the
    values are returned.
    """
    if not weight:
        return values
    forward = _average(values, weight)
    backward = _average(values[::-1], weight)[::-1]
    return [(a + b) / 2 for a, b in zip(forward, backward, strict=True)]


def _average(values: Numbers, weight: float) -> Numbers:
    """Return the exponential moving average, without a bias of the first values towards zero."""
    result: Numbers = []
    total = share = 0.0
    for value in values:
        total = total * weight + value * (1 - weight)
        share = share * weight + (1 - weight)
        result.append(total / share)
    return result


def default_weight(count: int) -> float:
    """Return the default smoothing weight for this number of values: over about 2 % of the curve."""
    return 0.0 if count < SMOOTH_FROM else 1 - 50 / count


def thinned(curve: Curve) -> Curve:
    """Return the curve with at most about ``MOST_POINTS``: the minimum and the maximum of each part."""
    if len(curve.x) <= MOST_POINTS:
        return curve
    size = math.ceil(2 * len(curve.x) / MOST_POINTS)
    kept: list[int] = []
    for begin in range(0, len(curve.x), size):
        stretch = range(begin, min(begin + size, len(curve.x)))
        least = min(stretch, key=curve.y.__getitem__)
        greatest = max(stretch, key=curve.y.__getitem__)
        kept += sorted({least, greatest})
    # Always keep the last value, which readers look for.
    if kept[-1] != len(curve.x) - 1:
        kept.append(len(curve.x) - 1)

    def pick(values: Numbers) -> Numbers:
        return [values[i] for i in kept] if values else []

    return dataclasses.replace(
        curve,
        x=pick(curve.x),
        y=pick(curve.y),
        smooth=pick(curve.smooth),
        low=pick(curve.low),
        high=pick(curve.high),
        nonfinite=curve.nonfinite[:MOST_POINTS],
    )


def wants_log(curves: list[Curve]) -> bool:
    """Return whether all values are positive and differ by a large factor."""
    values = [value for curve in curves for value in curve.y if not curve.faint]
    if len(values) < 2 or min(values) <= 0:
        return False
    ordered = sorted(values)
    # Ignore the extremes: a single spike should not decide the scale.
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    return high / low > LOG_FROM
