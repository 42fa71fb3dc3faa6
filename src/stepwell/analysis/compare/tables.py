"""What a comparison tells, as tables to go on with."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stepwell.analysis.compare.axis import check_axis
from stepwell.analysis.compare.metrics import chosen_names, compare_metrics
from stepwell.analysis.compare.pace import paces
from stepwell.analysis.compare.points import aligned, read_points
from stepwell.reading import RecordedRun

METRICS = {
    "metric": pl.String,
    "goal": pl.String,
    "run": pl.String,
    "last": pl.Float64,
    "last_step": pl.Int64,
    "best": pl.Float64,
    "best_step": pl.Int64,
    "common_at": pl.Float64,
    "common": pl.Float64,
    "better": pl.Boolean,
    "since": pl.Float64,
}
CURVES = {"metric": pl.String, "run": pl.String, "at": pl.Float64, "value": pl.Float64}
TIMES = {
    "run": pl.String,
    "phase": pl.String,
    "mean_ns": pl.Float64,
    "p50_ns": pl.Float64,
    "share": pl.Float64,
}


def metric_table(
    runs: Sequence[RecordedRun], metrics: Sequence[str] = (), by: str = "step"
) -> pl.DataFrame:
    """A row for each metric and run: last and best value with their steps, and at the common place."""
    check_axis(by)
    rows = [
        {
            "metric": metric.name,
            "goal": metric.goal,
            "run": run.id,
            "last": found.last,
            "last_step": found.last_step,
            "best": found.best,
            "best_step": found.best_step,
            "common_at": metric.common_at,
            "common": found.common,
            "better": None if metric.better is None else metric.better == number,
            "since": metric.since,
        }
        for metric in compare_metrics(runs, metrics, by)
        for number, (run, found) in enumerate(zip(runs, metric.runs, strict=True))
        if found is not None
    ]
    return pl.DataFrame(rows, schema=METRICS, orient="row")


def curve_table(
    runs: Sequence[RecordedRun], metrics: Sequence[str] = (), by: str = "step"
) -> pl.DataFrame:
    """The curves themselves, at the places that all have: metric, run, ``at`` and value."""
    check_axis(by)
    names = chosen_names(runs, metrics)
    curves = [read_points(run, names, by) for run in runs]
    frames = [pl.DataFrame(schema=CURVES)]
    for name in names:
        there = {i: curve[name] for i, curve in enumerate(curves) if len(curve.get(name, ()))}
        grid, values = aligned(there, by)
        for i, y in values.items():
            columns = {"metric": name, "run": runs[i].id, "at": grid, "value": y}
            frames.append(pl.DataFrame(columns, schema=CURVES))
    return pl.concat(frames)


def time_table(runs: Sequence[RecordedRun]) -> pl.DataFrame:
    """A row for each run and phase: its mean and median in a step, and its share of the step.

    The phase ``step`` is all of it. Means of phases sum to it; medians do not.
    """
    rows = [
        (run.id, phase.phase, phase.mean_ns, phase.p50_ns, phase.share)
        for run, pace in zip(runs, paces(runs), strict=True)
        for phase in (pace.phases if pace is not None else ())
    ]
    return pl.DataFrame(rows, schema=TIMES, orient="row")
