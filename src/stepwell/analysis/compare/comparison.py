"""The comparison of several runs, as one value with a summary in sentences, and as tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from stepwell._core.errors import StepwellError
from stepwell.analysis.compare.axis import AXIS, aligned, read_points
from stepwell.analysis.compare.differences import (
    Difference,
    code_differences,
    command_lines,
    config_differences,
    has_config,
    has_given_config,
)
from stepwell.analysis.compare.metrics import MetricComparison, chosen_names, compare_metrics
from stepwell.analysis.compare.pace import Pace, PaceComparison, compare_paces
from stepwell.analysis.compare.sentences import (
    ONE_EACH,
    better_sentences,
    config_sentence,
    metric_notes,
    pace_sentences,
    rate_sentences,
    variant_sentences,
)
from stepwell.analysis.compare.variants import (
    Variant,
    VariantComparison,
    compare_variants,
    group_runs,
    has_repeats,
)
from stepwell.analysis.compare.weights import WeightComparison, compare_weights
from stepwell.analysis.timeline import run_wall_ns
from stepwell.reading import RecordedRun, open_run

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


@dataclass(frozen=True)
class ComparedRun:
    """One of the compared runs. ``label`` is its name, or its id if another run has the same name."""

    id: str
    name: str
    label: str
    path: Path
    status: str
    last_step: int | None
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        runs: the compared runs.
        summary: the result in sentences, the most important first.
        metrics: each metric in all runs.
        config: settings that differ.
        code: commit, versions, machine and arguments that differ.
        by: the axis by which curves are aligned: step, samples, tokens or time.
        variants: the runs in groups of repeats; one run each if nothing was repeated.
        repeats: each metric over these groups; empty if nothing was repeated.
        paces: the pace of each run; None if it recorded no step, empty if it was not requested.
        pace: the fastest variant against the slowest; None if there is no difference.
        weights: the weights of each other run against the first run.
    """

    runs: list[ComparedRun]
    summary: list[str]
    metrics: list[MetricComparison]
    config: list[Difference]
    code: list[Difference]
    by: str = "step"
    variants: list[Variant] = field(default_factory=list)
    repeats: list[VariantComparison] = field(default_factory=list)
    paces: list[Pace | None] = field(default_factory=list)
    pace: PaceComparison | None = None
    weights: list[WeightComparison] = field(default_factory=list)


def compare(
    runs: Sequence[RecordedRun | str | os.PathLike[str]],
    metrics: Sequence[str] = (),
    *,
    by: str = "step",
    group: str | None = None,
    time: bool = True,
    weights: bool = True,
) -> Comparison:
    """Compare two or more runs.

    Args:
        runs: runs opened with ``open_run``, or paths of run folders.
        metrics: names or patterns of metrics; by default all metrics.
        by: the axis by which curves are aligned: step, samples, tokens, or time since the run started.
        group: what makes a variant: a key of the configuration (``optimizer.lr``) or of the code
            (``code.commit``), or ``name``, without a number at its end. By default the whole configuration
            except for seeds and names.
        time: whether to compare step times, throughput and goodput.
        weights: whether to compare snapshots of the weights.
    """
    AXIS.check("by", by)
    chosen = [run if isinstance(run, RecordedRun) else open_run(run) for run in runs]
    if len(chosen) < 2:
        raise StepwellError(f"compare needs at least two runs, got {len(chosen)}")
    if len({run.path.resolve() for run in chosen}) < len(chosen):
        raise StepwellError("the same run is given twice: compare needs different runs")
    names = [run.name for run in chosen]
    labels = [run.name if names.count(run.name) == 1 else run.id for run in chosen]
    variants = group_runs(chosen, labels, group)
    compared = compare_metrics(chosen, metrics, by)
    repeats = compare_variants(variants, compared)
    # If all runs are repeats of one variant, their pace is compared run by run.
    groups = [v.runs for v in variants] if len(variants) > 1 else [(i,) for i in range(len(runs))]
    paces, pace = compare_paces(chosen, groups) if time else ([], None)
    config = config_differences(chosen)
    others = [compare_weights(chosen[0], run) for run in chosen[1:]] if weights else []
    of_variants = {variant.runs: variant.label for variant in variants}
    repeated = has_repeats(variants)
    unknown = [label for label, run in zip(labels, chosen, strict=True) if not has_config(run)]
    answer = (
        variant_sentences(variants, repeats, compared, by, all(map(has_given_config, chosen)))
        if repeated
        else better_sentences(labels, compared, config, by)
    )
    summary = [
        *answer,
        *metric_notes(labels, compared, by, repeated),
        *pace_sentences({g: of_variants.get(g, labels[g[0]]) for g in groups}, paces, pace),
        *rate_sentences(labels, compared, config, by),
        config_sentence(config, unknown, command_lines(chosen)),
        *([ONE_EACH] if answer and not repeated else []),
    ]
    return Comparison(
        list(map(_line, chosen, labels)),
        summary,
        compared,
        config,
        code_differences(chosen),
        by,
        variants,
        repeats,
        paces,
        pace,
        [item for item in others if item is not None],
    )


def _line(run: RecordedRun, label: str) -> ComparedRun:
    step = run.processes().select(pl.col("step").max()).collect().item()
    seconds = (run_wall_ns(run) or 0) / 1e9
    return ComparedRun(run.id, run.name, label, run.path, run.status, step, seconds)


def metric_table(
    runs: Sequence[RecordedRun], metrics: Sequence[str] = (), by: str = "step"
) -> pl.DataFrame:
    """Return a row for each metric and run: last, best and common value, with their steps."""
    AXIS.check("by", by)
    rows = [
        {
            **vars(standing),
            "metric": metric.name,
            "goal": metric.goal,
            "run": run.id,
            "common_at": metric.common_at,
            "better": None if metric.better is None else metric.better == number,
            "since": metric.since,
        }
        for metric in compare_metrics(runs, metrics, by)
        for number, (run, standing) in enumerate(zip(runs, metric.runs, strict=True))
        if standing is not None
    ]
    return pl.DataFrame(rows, schema=METRICS, orient="row")


def curve_table(
    runs: Sequence[RecordedRun], metrics: Sequence[str] = (), by: str = "step"
) -> pl.DataFrame:
    """Return the curves at common positions: metric, run, ``at`` and value."""
    AXIS.check("by", by)
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
    """Return a row for each run and phase: its mean and median time in a step, and its share of the step.

    The phase ``step`` is the whole step. The means of phases sum to it, the medians do not.
    """
    rows = [
        (run.id, phase.phase, phase.mean_ns, phase.p50_ns, phase.share)
        for run, pace in zip(runs, compare_paces(runs, ())[0], strict=True)
        for phase in (pace.phases if pace is not None else ())
    ]
    return pl.DataFrame(rows, schema=TIMES, orient="row")
