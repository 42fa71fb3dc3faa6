"""Metrics of several runs side by side: last, best, at the same place, and since when they differ."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.analysis.compare.points import Points, aligned, read_points
from stepwell.analysis.plots.choosing import SYSTEM, by_request
from stepwell.analysis.plots.curves import default_weight, smoothed
from stepwell.analysis.plots.making import metric_names
from stepwell.reading import RecordedRun

LOWER = r"(loss|error|err|perplexity|ppl|nll|mse|rmse|mae|wer|cer|bpb|fid)"
HIGHER = (
    r"(acc|accuracy|top\d|f1|auc|auroc|bleu|rouge|r2|precision|recall|map|iou|dice|score|reward"
    r"|psnr|ssim)"
)
LASTING = 0.05
"""Of the range of values in the latter half, so that a high start does not hide how they end …"""
LEAST = 0.001
"""… and of the values themselves: less is no difference."""
NOISE = 3.0
"""Times the noise of curves that were not smoothed …"""
SMOOTH_NOISE = 2.0
"""… and what smoothing leaves of it in those that were."""
ROUGH_FROM = 8
"""Of fewer values in the latter half nobody can say how noisy they are."""
LAST = 0.1
"""Of the common places: a difference that has lasted no longer than these may be gone at the next."""


@dataclass(frozen=True)
class Standing:
    """One metric in one run. ``common`` is its value, smoothed if noisy, at the last common place."""

    count: int
    last: float | None
    last_step: int | None
    best: float | None
    best_step: int | None
    common: float | None
    nonfinite_step: int | None = None


@dataclass(frozen=True)
class MetricComparison:
    """One metric in all runs. A place is a step, or what else the curves are aligned by.

    Attributes:
        goal: "lower" or "higher" is better, as its name tells; None where it does not.
        runs: a standing for each run; None where it was not logged.
        common_count: at how many places the values of all that logged it are compared.
        common_at: the last of these.
        first_at: the first of these.
        better: which run was ahead there, and stays so from ``since`` on; None: none was.
        against: the next best.
        since: the first place of the lasting difference; about, where values were smoothed.
        identical: whether all values at common places are equal.
        is_smoothed: whether values were too many to be compared one by one.
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
    """Each metric that any of the runs has; those of the machine only when they are asked for."""
    names = chosen_names(runs, metrics)
    curves = [read_points(run, names, by) for run in runs]
    return [_compare(name, [curve.get(name) for curve in curves], by) for name in names]


def chosen_names(runs: Sequence[RecordedRun], metrics: Sequence[str] = ()) -> list[str]:
    """The metrics that are meant."""
    names = metric_names(runs)
    if metrics:
        chosen = by_request(names, metrics)
        return list(dict.fromkeys(name for choice in chosen for name in choice.names))
    return [name for name in names if not name.startswith(SYSTEM)]


def goal_of(name: str) -> str | None:
    """Whether less or more of this is better, as its name says."""
    words = [word for word in re.split(r"[/_.\-@ ]+", name.lower()) if word]
    if any(re.fullmatch(LOWER, word) for word in words):
        return "lower"
    if any(re.fullmatch(HIGHER, word) for word in words):
        return "higher"
    return None


def _compare(name: str, found: list[Points | None], by: str) -> MetricComparison:
    goal = goal_of(name)
    points = {i: p for i, p in enumerate(found) if p is not None and len(p)}
    grid, values = aligned(points, by)
    curves = {i: y.tolist() for i, y in values.items()}
    weight = default_weight(len(grid))
    smooth = {i: smoothed(y, weight) if weight else y for i, y in curves.items()}
    standings = [
        _standing(p, goal, smooth[i][-1] if i in smooth and len(grid) else None)
        for i, p in enumerate(found)
    ]
    places = [int(at) if by == "step" else float(at) for at in (grid[[0, -1]] if len(grid) else ())]
    first_at, common_at = places or (None, None)
    # One place of many says nothing; one of one may be a test at the end.
    is_one_of_many = len(grid) == 1 and any(len(p) > 1 for p in points.values())
    if len(points) < 2 or not places or is_one_of_many:
        return MetricComparison(name, goal, standings, len(grid), common_at, first_at)
    sign = -1.0 if goal == "lower" else 1.0
    first, second, *_ = sorted(points, key=lambda i: sign * smooth[i][-1], reverse=True)
    since = lasting_since(curves[first], curves[second], weight)
    return MetricComparison(
        name,
        goal,
        standings,
        len(grid),
        common_at,
        first_at,
        first if since is not None else None,
        second if since is not None else None,
        None if since is None else int(grid[since]) if by == "step" else float(grid[since]),
        identical=all(y == curves[first] for y in curves.values()),
        is_smoothed=bool(weight),
    )


def lasting_since(a: list[float], b: list[float], weight: float = 0.0) -> int | None:
    """From which place on two curves differ for good, in one direction; None: they do not.

    A difference counts when it is more than a twentieth of the range of both in their latter half, and more
    than their noise, smoothed alike, can bring about, over at least the last tenth of the places.
    """
    smooth_a, smooth_b = (smoothed(y, weight) if weight else y for y in (a, b))
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
    # At the end it must be beyond doubt; before, it need only go on being there.
    certain = _since(ahead, max(least, noise if weight else NOISE * noise))
    if len(ahead) - certain < LAST * len(ahead) or certain == len(ahead):
        return None
    return _since(ahead, max(least, noise))


def _since(ahead: list[float], least: float) -> int:
    """The place from which on all are more than this."""
    place = len(ahead)
    while place and ahead[place - 1] > least:
        place -= 1
    return place


def _taken(raw: list[float], smooth: list[float]) -> float:
    """Standard deviation of what smoothing took away."""
    return math.sqrt(sum((x - y) * (x - y) for x, y in zip(raw, smooth, strict=True)) / len(raw))


def _rough(values: list[float]) -> float:
    """The noise of a curve that is straight but for it: how far values are from between their neighbours."""
    if len(values) < ROUGH_FROM:
        return 0.0
    bends = [x - 2 * y + z for x, y, z in zip(values, values[1:], values[2:], strict=False)]
    # Each is noise three times over, of 1 + 4 + 1 times its variance; the median cares for no single jump.
    ordered = sorted(map(abs, bends))
    return ordered[len(ordered) // 2] / 0.6745 / math.sqrt(6)


def _standing(points: Points | None, goal: str | None, common: float | None) -> Standing | None:
    if points is None:
        return None
    first_odd = points.nonfinite[0] if points.nonfinite else None
    count = len(points) + len(points.nonfinite)
    if not len(points):
        return Standing(count, None, None, None, None, None, first_odd)
    best: int | None = None
    if goal is not None:
        best = int(points.values.argmin() if goal == "lower" else points.values.argmax())
    return Standing(
        count,
        float(points.values[-1]),
        int(points.steps[-1]),
        None if best is None else float(points.values[best]),
        None if best is None else int(points.steps[best]),
        common,
        first_odd,
    )
