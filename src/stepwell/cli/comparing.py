"""``stepwell compare``: a comparison as text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from stepwell.analysis.compare import Comparison, Difference, MetricComparison, WeightComparison
from stepwell.cli.drawing import console, number, plain, seconds
from stepwell.cli.summary import COLOURS, _plain

MOST_METRICS = 20
MOST_DIFFERENCES = 20
MOST_LAYERS = 12


def show_comparison(comparison: Comparison, as_json: bool = False) -> None:
    """Print a comparison: the answer first, then the numbers behind it."""
    if as_json:
        print(json.dumps(_plain(dataclasses.asdict(comparison)), indent=1))
        return
    out = console()
    for line in comparison.runs:
        text = plain(line.label)
        text.stylize("bold")
        text.append(f"  {line.status}", COLOURS.get(line.status, "yellow"))
        text.append(f" after {seconds(line.seconds)}")
        text.append(f", step {line.last_step}" if line.last_step is not None else "")
        out.print(text)
    out.print()
    for sentence in comparison.summary:
        out.print(plain(sentence))
    labels = [line.label for line in comparison.runs]
    _print_metrics(out, labels, comparison.metrics)
    _print_differences(out, "config", labels, comparison.config)
    _print_differences(out, "code and machine", labels, comparison.code)
    for weights in comparison.weights:
        _print_weights(out, weights)


def _print_metrics(
    out: Console, labels: Sequence[str], metrics: Sequence[MetricComparison]
) -> None:
    if not metrics:
        return
    out.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("metrics", no_wrap=True, max_width=24)
    table.add_column("run", no_wrap=True, max_width=14)
    for heading in ("last", "at", "best", "at", "common"):
        table.add_column(heading, justify="right", no_wrap=True)
    for metric in metrics[:MOST_METRICS]:
        for i, (label, run) in enumerate(zip(labels, metric.runs, strict=True)):
            name = plain(metric.name if i == 0 else "")
            if run is None:
                table.add_row(name, plain(label), "—", "", "", "", "")
                continue
            better = metric.better == i and metric.goal is not None
            table.add_row(
                name,
                plain(label),
                _number(run.last),
                "" if run.last_step is None else f"{run.last_step}",
                _number(run.best),
                "" if run.best_step is None else f"{run.best_step}",
                _number(run.common) + (" *" if better else "  "),
            )
    out.print(table)
    if len(metrics) > MOST_METRICS:
        out.print(f"{len(metrics) - MOST_METRICS} more: choose with --metric, or use --json")
    steps = sorted({m.common_step for m in metrics if m.common_step is not None})
    if steps:
        where = f"step {steps[-1]}" if len(steps) == 1 else "the last step that all have"
        out.print(plain(f"common: at {where}, smoothed where noisy; * is better"))


def _print_differences(
    out: Console, title: str, labels: Sequence[str], differences: Sequence[Difference]
) -> None:
    if not differences:
        return
    out.print()
    table = Table(box=None, pad_edge=False)
    table.add_column(title, overflow="fold", max_width=28)
    for label in labels:
        table.add_column(plain(label), overflow="fold")
    for difference in differences[:MOST_DIFFERENCES]:
        table.add_row(plain(difference.key), *(plain(_value(v)) for v in difference.values))
    out.print(table)
    if len(differences) > MOST_DIFFERENCES:
        out.print(f"{len(differences) - MOST_DIFFERENCES} more with --json")


def _print_weights(out: Console, weights: WeightComparison) -> None:
    out.print()
    a, b = weights.snapshots
    where = a if a == b else f"{a} and {b}"
    out.print(plain(f"weights of {weights.runs[0]} and {weights.runs[1]}, {where}"))
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", no_wrap=True, max_width=40)
    for heading in ("distance", "relative", "cosine"):
        table.add_column(heading, justify="right", no_wrap=True)
    farthest = sorted(weights.layers, key=lambda layer: layer.relative or 0.0, reverse=True)
    for layer in [weights.overall, *farthest[:MOST_LAYERS]]:
        relative = "" if layer.relative is None else f"{layer.relative:.1%}"
        table.add_row(plain(layer.layer), number(layer.l2), relative, _number(layer.cosine))
    out.print(table)
    if len(weights.layers) > MOST_LAYERS:
        out.print(f"{len(weights.layers) - MOST_LAYERS} layers that are nearer: with --json")
    if weights.only:
        out.print(plain(f"not in both, or of another shape: {', '.join(weights.only[:10])}"))


def _number(value: float | None) -> str:
    return "" if value is None else number(value)


def _value(value: Any) -> str:
    if value is None:
        return "—"
    return value if isinstance(value, str) else json.dumps(value, default=str)
