"""Everything about several runs side by side, and in a few sentences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepwell.analysis.compare.axis import check_axis
from stepwell.analysis.compare.facts import (
    Difference,
    code_differences,
    command_lines,
    config_differences,
    has_config,
    has_given_config,
)
from stepwell.analysis.compare.judging import ONE_EACH, pace_sentences, variant_sentences
from stepwell.analysis.compare.metrics import MetricComparison, compare_metrics
from stepwell.analysis.compare.pace import Pace, PaceComparison, compare_paces
from stepwell.analysis.compare.sentences import (
    better_sentences,
    config_sentence,
    metric_notes,
    rate_sentences,
)
from stepwell.analysis.compare.variants import (
    Variant,
    VariantComparison,
    compare_variants,
    group_runs,
    has_repeats,
)
from stepwell.analysis.compare.weights import WeightComparison, compare_weights
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun, open_run


@dataclass(frozen=True)
class RunLine:
    """One of the runs. ``label`` is its name, or its id where two have the same name."""

    id: str
    name: str
    label: str
    path: Path
    status: str
    last_step: int | None
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """What ``stepwell compare`` tells.

    Attributes:
        summary: the answer in sentences, what matters most first.
        by: what curves are aligned by: step, samples, tokens or time.
        variants: the runs in groups of repeats; each by itself where nothing was repeated.
        repeats: each metric over these groups; empty where nothing was repeated.
        paces: how fast each run was; None where no step was recorded, empty when it was not asked for.
        pace: the fastest against the slowest; None where they are as fast.
        weights: those of each run against the first.
    """

    runs: list[RunLine]
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
        runs: what was opened with ``open_run``, or the paths of run folders.
        metrics: names or patterns; else all that they logged.
        by: what curves are aligned by: step, samples, tokens, or time since the run began.
        group: what makes a variant: a key of the configuration (``optimizer.lr``), of the code
            (``code.commit``), or ``name``, a number at its end left out; else all of the configuration
            but seeds and names.
        time: whether to compare how long steps took, throughput and goodput.
        weights: whether to compare snapshots of the weights.
    """
    check_axis(by)
    chosen = [run if isinstance(run, RecordedRun) else open_run(run) for run in runs]
    if len(chosen) < 2:
        raise StepwellError("one run alone cannot be compared: give two or more")
    if len({run.path.resolve() for run in chosen}) < len(chosen):
        raise StepwellError("the same run is given twice: give two different ones")
    lines = _lines(chosen)
    labels = [line.label for line in lines]
    variants = group_runs(chosen, labels, group)
    found = compare_metrics(chosen, metrics, by)
    repeats = compare_variants(variants, found)
    # Repeats of one thing are compared one by one.
    groups = [v.runs for v in variants] if len(variants) > 1 else [(i,) for i in range(len(runs))]
    paces, pace = compare_paces(chosen, groups) if time else ([], None)
    config = config_differences(chosen)
    others = [compare_weights(chosen[0], run) for run in chosen[1:]] if weights else []
    repeated = has_repeats(variants)
    unknown = [label for label, run in zip(labels, chosen, strict=True) if not has_config(run)]
    answer = (
        variant_sentences(variants, repeats, found, by, all(map(has_given_config, chosen)))
        if repeated
        else better_sentences(labels, found, config, by)
    )
    summary = [
        *answer,
        *metric_notes(labels, found, by, repeated),
        *pace_sentences(_named(groups, variants, labels), paces, pace),
        *rate_sentences(labels, found, config, by),
        config_sentence(config, unknown, command_lines(chosen)),
        *([ONE_EACH] if answer and not repeated else []),
    ]
    return Comparison(
        lines,
        summary,
        found,
        config,
        code_differences(chosen),
        by,
        variants,
        repeats,
        paces,
        pace,
        [item for item in others if item is not None],
    )


def _named(
    groups: Sequence[tuple[int, ...]], variants: Sequence[Variant], labels: Sequence[str]
) -> dict[tuple[int, ...], str]:
    """What groups of runs are called."""
    names = {variant.runs: variant.label for variant in variants}
    return {group: names.get(group, labels[group[0]]) for group in groups}


def _lines(runs: Sequence[RecordedRun]) -> list[RunLine]:
    names = [run.name for run in runs]
    return [
        RunLine(
            run.id,
            run.name,
            run.name if names.count(run.name) == 1 else run.id,
            run.path,
            run.status,
            _last_step(run),
            _seconds(run),
        )
        for run in runs
    ]


def _last_step(run: RecordedRun) -> int | None:
    step = run.processes().collect()["step"].max()
    return step if isinstance(step, int) else None


def _seconds(run: RecordedRun) -> float:
    """From the first sign of life to the last."""
    table = run.processes().select("started_ns", "heartbeat_ns").drop_nulls().collect()
    if table.is_empty():
        return 0.0
    began, ended = table["started_ns"].min(), table["heartbeat_ns"].max()
    return (int(ended) - int(began)) / 1e9  # type: ignore[arg-type]
