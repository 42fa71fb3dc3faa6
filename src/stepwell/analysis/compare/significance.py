"""Whether two groups of numbers differ by more than their spread can bring about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TINY = 1e-300
ENOUGH = 1e-15
MOST_TERMS = 500
SIGNIFICANT = 0.05
"""Differences that chance alone brings about more rarely than this are told as more than noise."""


@dataclass(frozen=True)
class Test:
    """Welch's t-test of two means, which takes neither spread for the other's."""

    t: float
    freedom: float
    """Degrees of freedom."""
    p: float
    """How often a difference like this, or a greater one, comes about by chance alone."""


def welch(a: Sequence[float], b: Sequence[float]) -> Test | None:
    """Two-sided; None when nothing can be said: fewer than two numbers in a group, or no spread at all."""
    if len(a) < 2 or len(b) < 2:
        return None
    errors = [variance(group) / len(group) for group in (a, b)]
    total = sum(errors)
    if total <= 0:
        return None
    t = (mean(a) - mean(b)) / math.sqrt(total)
    parts = [e * e / (len(group) - 1) for e, group in zip(errors, (a, b), strict=True)]
    freedom = total * total / sum(parts)
    return Test(t, freedom, student_tails(t, freedom))


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Of a sample: divided by one less than its size."""
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def holm(ps: Sequence[float]) -> list[float]:
    """What several tests at once leave of each p: the least times their number, the next times one less."""
    found = [0.0] * len(ps)
    worst = 0.0
    for place, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        worst = max(worst, min(1.0, ps[i] * (len(ps) - place)))
        found[i] = worst
    return found


def student_tails(t: float, freedom: float) -> float:
    """The probability that Student's t is as far from 0 as this, on either side."""
    return beta_share(freedom / (freedom + t * t), freedom / 2, 0.5)


def beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        # There it converges quickly on the other side.
        return 1 - beta_share(1 - x, b, a)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log + a * math.log(x) + b * math.log1p(-x)) / a
    return front / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + …)), from its beginning on (the modified method of Lentz)."""
    value, c, d = 1.0, 1.0, 0.0
    for term in range(1, MOST_TERMS):
        m = term // 2
        if term % 2:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _away_from_zero(1 + factor * d)
        c = _away_from_zero(1 + factor / c)
        value *= c * d
        if abs(c * d - 1) < ENOUGH:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY
