"""What is drawn: panels of curves, and what is done to the numbers of one before it is drawn."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

Numbers = list[float]
MOST_POINTS = 1500
"""Of one curve; more cannot be told apart on a page."""
SMOOTH_FROM = 300
"""A curve with so many values is smoothed unless something else is asked for."""
LARGEST = 1e300
"""What is larger counts as infinite: the difference of two such may be."""
LOG_FROM = 300.0
"""Positive values that differ by this factor are drawn on a logarithmic scale."""


@dataclass(frozen=True)
class Curve:
    """One line. ``y`` is as logged, ``smooth`` the same smoothed or empty; all finite.

    ``low`` and ``high`` are the least and the greatest over ranks, where ``y`` is their mean.
    ``nonfinite`` is where values are NaN or infinite. A ``faint`` one is background to the others.
    ``count`` is how many values there were. Curves of one ``colour`` belong together; -1: to nobody.
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
        """The values that are drawn strongly."""
        return self.smooth or self.y


@dataclass(frozen=True)
class Mark:
    """Something that happened at one place of the x axis, such as a restart."""

    x: float
    label: str


@dataclass(frozen=True)
class Panel:
    """A few curves that share their axes."""

    title: str
    x_label: str
    curves: list[Curve]
    log: bool = False
    zero: bool = False
    marks: list[Mark] = field(default_factory=list)
    note: str = ""


def smoothed(values: Numbers, weight: float) -> Numbers:
    """The mean of the exponential moving averages from both ends, which lags behind in no direction.

    ``weight`` from 0 to below 1 is how much of the average so far is kept at each value.
    """
    forward = _average(values, weight)
    backward = _average(values[::-1], weight)[::-1]
    return [(a + b) / 2 for a, b in zip(forward, backward, strict=True)]


def _average(values: Numbers, weight: float) -> Numbers:
    """The exponential moving average; early values are not drawn towards zero."""
    result: Numbers = []
    total = share = 0.0
    for value in values:
        total = total * weight + value * (1 - weight)
        share = share * weight + (1 - weight)
        result.append(total / share)
    return result


def default_weight(count: int) -> float:
    """How much a curve of so many values is smoothed by itself: over about a fiftieth of it."""
    return 0.0 if count < SMOOTH_FROM else 1 - 50 / count


def thinned(curve: Curve, most: int = MOST_POINTS) -> Curve:
    """The curve with at most about so many points: of every stretch the least and the greatest."""
    if len(curve.x) <= most:
        return curve
    size = math.ceil(2 * len(curve.x) / most)
    kept: list[int] = []
    for begin in range(0, len(curve.x), size):
        stretch = range(begin, min(begin + size, len(curve.x)))
        least = min(stretch, key=curve.y.__getitem__)
        greatest = max(stretch, key=curve.y.__getitem__)
        kept += sorted({least, greatest})
    # The last value is the one that people look for.
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
        nonfinite=curve.nonfinite[:most],
    )


def wants_log(curves: list[Curve]) -> bool:
    """Whether values are all positive and far apart."""
    values = [value for curve in curves for value in curve.y if not curve.faint]
    if len(values) < 2 or min(values) <= 0:
        return False
    ordered = sorted(values)
    # A single spike should not make the scale.
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    return high / low > LOG_FROM
