"""Everything about several runs side by side, and in a few sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepwell.analysis.compare.facts import Difference, code_differences, config_differences
from stepwell.analysis.compare.metrics import MetricComparison, compare_metrics
from stepwell.analysis.compare.sentences import summarise
from stepwell.analysis.compare.weights import WeightComparison, compare_weights
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun


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
    """What ``stepwell compare`` tells. Weights are those of each run against the first."""

    runs: list[RunLine]
    summary: list[str]
    metrics: list[MetricComparison]
    config: list[Difference]
    code: list[Difference]
    weights: list[WeightComparison] = field(default_factory=list)


def compare_runs(
    runs: Sequence[RecordedRun], metrics: Sequence[str] = (), *, weights: bool = True
) -> Comparison:
    """Compare two or more runs; ``metrics`` are names or patterns, else all that they logged."""
    if len(runs) < 2:
        raise StepwellError("one run alone cannot be compared: give two or more")
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise StepwellError("the same run is given twice: give two different ones")
    lines = _lines(runs)
    found = compare_metrics(runs, metrics)
    config = config_differences(runs)
    others = [compare_weights(runs[0], run) for run in runs[1:]] if weights else []
    labels = [line.label for line in lines]
    return Comparison(
        lines,
        summarise(labels, found, config),
        found,
        config,
        code_differences(runs),
        [item for item in others if item is not None],
    )


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
