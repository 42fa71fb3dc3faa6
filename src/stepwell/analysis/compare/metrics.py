"""Metrics of several runs side by side: last, best, at the same step, and since when they differ."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from stepwell.analysis.plots.choosing import SYSTEM, by_request
from stepwell.analysis.plots.curves import LARGEST, default_weight, smoothed
from stepwell.analysis.plots.making import metric_names
from stepwell.reading import RecordedRun

LOWER = r"(loss|error|err|perplexity|ppl|nll|mse|rmse|mae|wer|cer|bpb|fid)"
HIGHER = (
    r"(acc|accuracy|top\d|f1|auc|auroc|bleu|rouge|r2|precision|recall|map|iou|dice|score|reward"
    r"|psnr|ssim)"
)
LASTING = 0.05
"""Of the range of all values: less is no difference."""
LAST = 0.1
"""Of the common steps: a difference that has lasted no longer than these may be gone at the next."""

Points = dict[int, float]


@dataclass(frozen=True)
class Standing:
    """One metric in one run. ``common`` is its value, smoothed if noisy, at the last common step."""

    count: int
    last: float | None
    last_step: int | None
    best: float | None
    best_step: int | None
    common: float | None
    nonfinite_step: int | None = None


@dataclass(frozen=True)
class MetricComparison:
    """One metric in all runs.

    Attributes:
        goal: "lower" or "higher" is better, as its name tells; None where it does not.
        runs: a standing for each run; None where it was not logged.
        common_steps: at how many steps all that logged it did so.
        common_step: the last of these.
        first_step: the first of these.
        better: which run was ahead there, and stays so from ``since`` on; None: none was.
        against: the next best.
        since: the first step of the lasting difference; about, where values were smoothed.
        identical: whether all values at common steps are equal.
        is_smoothed: whether values were too many to be compared one by one.
    """

    name: str
    goal: str | None
    runs: list[Standing | None]
    common_steps: int = 0
    common_step: int | None = None
    first_step: int | None = None
    better: int | None = None
    against: int | None = None
    since: int | None = None
    identical: bool = False
    is_smoothed: bool = False


def compare_metrics(
    runs: Sequence[RecordedRun], metrics: Sequence[str] = ()
) -> list[MetricComparison]:
    """Each metric that any of the runs has; those of the machine only when they are asked for."""
    names = metric_names(runs)
    if metrics:
        chosen = by_request(names, metrics)
        names = list(dict.fromkeys(name for choice in chosen for name in choice.names))
    else:
        names = [name for name in names if not name.startswith(SYSTEM)]
    tables = [_values(run, names) for run in runs]
    return [_compare(name, [table.get(name) for table in tables]) for name in names]


def metric_table(runs: Sequence[RecordedRun], metrics: Sequence[str] = ()) -> pl.DataFrame:
    """A row for each metric and run: last and best value with their steps, and at the common step."""
    rows = [
        {
            "metric": metric.name,
            "goal": metric.goal,
            "run": run.id,
            "last": found.last,
            "last_step": found.last_step,
            "best": found.best,
            "best_step": found.best_step,
            "common_step": metric.common_step,
            "common": found.common,
            "better": None if metric.better is None else metric.better == number,
            "since": metric.since,
        }
        for metric in compare_metrics(runs, metrics)
        for number, (run, found) in enumerate(zip(runs, metric.runs, strict=True))
        if found is not None
    ]
    schema = {
        "metric": pl.String,
        "goal": pl.String,
        "run": pl.String,
        "last": pl.Float64,
        "last_step": pl.Int64,
        "best": pl.Float64,
        "best_step": pl.Int64,
        "common_step": pl.Int64,
        "common": pl.Float64,
        "better": pl.Boolean,
        "since": pl.Int64,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def goal_of(name: str) -> str | None:
    """Whether less or more of this is better, as its name says."""
    words = [word for word in re.split(r"[/_.\-@ ]+", name.lower()) if word]
    if any(re.fullmatch(LOWER, word) for word in words):
        return "lower"
    if any(re.fullmatch(HIGHER, word) for word in words):
        return "higher"
    return None


def _values(run: RecordedRun, names: list[str]) -> dict[str, tuple[Points, list[int]]]:
    """Of each metric the mean over ranks at each step, and the steps where it is not finite."""
    step = run.metrics().filter(pl.col("name").is_in(names)).drop_nulls("step")
    table = step.group_by("name", "step").agg(pl.col("value").mean()).sort("name", "step").collect()
    found: dict[str, tuple[Points, list[int]]] = {}
    for name, at, value in table.select("name", "step", "value").iter_rows():
        points, odd = found.setdefault(name, ({}, []))
        if abs(value) < LARGEST:
            points[at] = value
        else:
            odd.append(at)
    return found


def _compare(name: str, found: list[tuple[Points, list[int]] | None]) -> MetricComparison:
    goal = goal_of(name)
    there = [i for i, item in enumerate(found) if item is not None and item[0]]
    points = {i: item[0] for i, item in enumerate(found) if item is not None and i in there}
    common = sorted(set.intersection(*(set(p) for p in points.values()))) if points else []
    curves = {i: [p[step] for step in common] for i, p in points.items()}
    weight = default_weight(len(common))
    smooth = {i: smoothed(y, weight) if weight else y for i, y in curves.items()}
    standings = [
        _standing(item, goal, smooth[i][-1] if i in smooth and common else None)
        for i, item in enumerate(found)
    ]
    if len(there) < 2 or not common:
        ends = (common[-1], common[0]) if common else (None, None)
        return MetricComparison(name, goal, standings, len(common), *ends)
    identical = all(curves[i] == curves[there[0]] for i in there)
    sign = -1.0 if goal == "lower" else 1.0
    order = sorted(there, key=lambda i: sign * smooth[i][-1], reverse=True)
    first, second = order[0], order[1]
    since = lasting_since(curves[first], curves[second], weight)
    return MetricComparison(
        name,
        goal,
        standings,
        len(common),
        common[-1],
        common[0],
        first if since is not None else None,
        second if since is not None else None,
        common[since] if since is not None else None,
        identical,
        bool(weight),
    )


def lasting_since(a: list[float], b: list[float], weight: float = 0.0) -> int | None:
    """From which place on two curves differ for good, in one direction; None: they do not.

    A difference counts when it is more than a twentieth of the range of both, and twice what
    the noise of both, smoothed alike, can bring about, over at least the last tenth of the places.
    """
    smooth_a, smooth_b = (smoothed(y, weight) if weight else y for y in (a, b))
    both = [*smooth_a, *smooth_b]
    least = LASTING * (max(both) - min(both))
    noise = math.hypot(_noise(a, smooth_a), _noise(b, smooth_b))
    least = max(least, 2 * noise * math.sqrt((1 - weight) / (1 + weight)))
    differences = [x - y for x, y in zip(smooth_a, smooth_b, strict=True)]
    if not differences or abs(differences[-1]) <= least:
        return None
    sign = math.copysign(1.0, differences[-1])
    place = len(differences)
    while place and sign * differences[place - 1] > least:
        place -= 1
    return place if len(differences) - place >= LAST * len(differences) else None


def _noise(raw: list[float], smooth: list[float]) -> float:
    """Standard deviation of what smoothing took away; nothing where nothing was smoothed."""
    return math.sqrt(sum((x - y) * (x - y) for x, y in zip(raw, smooth, strict=True)) / len(raw))


def _standing(
    item: tuple[Points, list[int]] | None, goal: str | None, common: float | None
) -> Standing | None:
    if item is None:
        return None
    points, odd = item
    first_odd = odd[0] if odd else None
    if not points:
        return Standing(len(odd), None, None, None, None, None, first_odd)
    last = max(points)
    best: int | None = None
    if goal is not None:
        choose = min if goal == "lower" else max
        best = choose(points, key=points.__getitem__)
    return Standing(
        len(points) + len(odd),
        points[last],
        last,
        None if best is None else points[best],
        best,
        common,
        first_odd,
    )
