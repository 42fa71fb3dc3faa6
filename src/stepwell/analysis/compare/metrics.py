"""The metrics of several runs: last, best and common values, and from where on they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepwell.analysis.compare.axis import Points, aligned, read_points
from stepwell.analysis.findings.curves import goal_of
from stepwell.analysis.plots.builder import by_request, metric_names
from stepwell.analysis.plots.curves import default_weight, smoothed
from stepwell.reading import RecordedRun
from stepwell.reading.run import SYSTEM

LASTING = 0.05
"""Least difference, as a share of the range in the second half, which ignores a high start …"""
LEAST = 0.001
"""… and as a share of the values themselves."""
NOISE = 3.0
"""Least difference, as a multiple of the noise, for curves without smoothing …"""
SMOOTH_NOISE = 2.0
"""… and of the noise that smoothing leaves, for the others."""
ROUGH_FROM = 8
"""Least number of values in the second half to estimate their noise."""
LAST = 0.1
"""Least share of the common positions: a shorter difference may not last."""


@dataclass(frozen=True)
class Standing:
    """One metric in one run. ``common`` is its value at the last common position, smoothed if noisy."""

    count: int
    last: float | None
    last_step: int | None
    best: float | None
    best_step: int | None
    common: float | None
    nonfinite_step: int | None = None


@dataclass(frozen=True)
class MetricComparison:
    """One metric in all runs. Positions are steps, or positions on another axis.

    Attributes:
        goal: "lower" or "higher" values are better, as the name shows; None if it does not.
        runs: the standing of each run; None if it did not log the metric.
        common_count: the number of common positions.
        common_at: the last common position.
        first_at: the first common position.
        better: the run that is ahead from ``since`` to the end; None if there is no lasting difference.
        against: the next best run.
        since: the start of the lasting difference; approximate if values were smoothed.
        identical: whether all values at common positions are equal.
        is_smoothed: whether the values were smoothed before comparing them.
    """

    name: str
    goal: str | None
    runs: list[Standing | None]
    common_count: int = 0
    common_at: float | None = None
    first_at: float | None = None
    better: int | None = None
    against: int | None = None
    since: float | None = None
    identical: bool = False
    is_smoothed: bool = False


def compare_metrics(
    runs: Sequence[RecordedRun], metrics: Sequence[str] = (), by: str = "step"
) -> list[MetricComparison]:
    """Compare each metric that any of the runs has; system metrics only if they are requested."""
    names = chosen_names(runs, metrics)
    curves = [read_points(run, names, by) for run in runs]
    return [_compare(name, [curve.get(name) for curve in curves], by) for name in names]


def chosen_names(runs: Sequence[RecordedRun], metrics: Sequence[str] = ()) -> list[str]:
    """Return the requested metrics; by default all but system metrics."""
    names = metric_names(runs)
    if metrics:
        chosen = by_request(names, metrics)
        return list(dict.fromkeys(name for choice in chosen for name in choice.names))
    return [name for name in names if not name.startswith(SYSTEM)]


def _compare(name: str, curves_of_runs: list[Points | None], by: str) -> MetricComparison:
    goal = goal_of(name)
    points = {i: p for i, p in enumerate(curves_of_runs) if p is not None and len(p)}
    grid, values = aligned(points, by)
    curves = {i: y.tolist() for i, y in values.items()}
    weight = default_weight(len(grid))
    smooth = {i: smoothed(y, weight) for i, y in curves.items()}
    common = {i: y[-1] for i, y in smooth.items() if y}
    standings = [
        None if p is None else _standing(p, goal, common.get(i))
        for i, p in enumerate(curves_of_runs)
    ]
    places = [int(at) if by == "step" else float(at) for at in (grid[[0, -1]] if len(grid) else ())]
    first_at, common_at = places or (None, None)
    # A single common position of long curves proves nothing. A single value may be a test at the end.
    is_one_of_many = len(grid) == 1 and any(len(p) > 1 for p in points.values())
    result = MetricComparison(name, goal, standings, len(grid), common_at, first_at)
    if len(points) < 2 or not places or is_one_of_many:
        return result
    sign = -1.0 if goal == "lower" else 1.0
    first, second, *_ = sorted(common, key=lambda i: sign * common[i], reverse=True)
    since = lasting_since(curves[first], curves[second], weight)
    is_same = all(y == curves[first] for y in curves.values())
    result = replace(result, identical=is_same, is_smoothed=bool(weight))
    if since is None:
        return result
    at = int(grid[since]) if by == "step" else float(grid[since])
    return replace(result, better=first, against=second, since=at)


def lasting_since(a: list[float], b: list[float], weight: float = 0.0) -> int | None:
    """Return the index from which on two curves differ in one direction until the end; None if they do not.

    The difference must exceed 5 % of the range of both in their second half, and their noise after the same
    smoothing, for at least the last tenth of the positions.
    """
    smooth_a, smooth_b = smoothed(a, weight), smoothed(b, weight)
    differences = [x - y for x, y in zip(smooth_a, smooth_b, strict=True)]
    if not differences:
        return None
    half = len(a) // 2
    both = [*smooth_a[half:], *smooth_b[half:]]
    least = max(LASTING * (max(both) - min(both)), LEAST * max(map(abs, both)))
    if weight:
        noise = math.hypot(*(_taken(y[half:], s[half:]) for y, s in ((a, smooth_a), (b, smooth_b))))
        noise *= SMOOTH_NOISE * math.sqrt((1 - weight) / (1 + weight))
    else:
        noise = math.hypot(_rough(a[half:]), _rough(b[half:]))
    sign = math.copysign(1.0, differences[-1])
    ahead = [sign * difference for difference in differences]
    # At the end the difference must be certain; before that, it only has to exceed the noise.
    certain = _since(ahead, max(least, noise if weight else NOISE * noise))
    if len(ahead) - certain < LAST * len(ahead) or certain == len(ahead):
        return None
    return _since(ahead, max(least, noise))


def _since(ahead: list[float], least: float) -> int:
    """Return the index from which on all values are larger than ``least``."""
    place = len(ahead)
    while place and ahead[place - 1] > least:
        place -= 1
    return place


def _taken(raw: list[float], smooth: list[float]) -> float:
    """Return the standard deviation of the noise that smoothing removed."""
    return math.sqrt(sum((x - y) * (x - y) for x, y in zip(raw, smooth, strict=True)) / len(raw))


def _rough(values: list[float]) -> float:
    """Return the noise of a curve from its second differences, which a straight trend does not affect."""
    if len(values) < ROUGH_FROM:
        return 0.0
    bends = [x - 2 * y + z for x, y, z in zip(values, values[1:], values[2:], strict=False)]
    # A second difference has 1 + 4 + 1 times the variance of the noise. The median ignores single jumps.
    ordered = sorted(map(abs, bends))
    return ordered[len(ordered) // 2] / 0.6745 / math.sqrt(6)


def _standing(points: Points, goal: str | None, common: float | None) -> Standing:
    def at(index: int) -> tuple[float, int]:
        return float(points.values[index]), int(points.steps[index])

    count = len(points) + len(points.odd)
    first_odd = int(points.odd[0]) if len(points.odd) else None
    if not len(points):
        return Standing(count, None, None, None, None, None, first_odd)
    best: tuple[float | None, int | None] = None, None
    if goal is not None:
        best = at(int(points.values.argmin() if goal == "lower" else points.values.argmax()))
    return Standing(count, *at(-1), *best, common, first_odd)
