"""``stepwell compare``: a comparison as text, the answer first, in 80 columns for two runs or ten."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from stepwell.analysis.compare import Comparison, Difference, WeightComparison
from stepwell.analysis.compare.variants import has_repeats
from stepwell.cli.comparing_tables import metric_rows, pace_rows, repeat_rows
from stepwell.cli.drawing import console, number, plain, seconds
from stepwell.cli.output import print_json
from stepwell.cli.summary import COLOURS

MOST_DIFFERENCES = 20
MOST_LAYERS = 12
FEW = 3
"""So many runs can have a column each."""
LABEL = 16
LONGEST = 24
"""Values of this length that are all different say nothing at a glance."""


def show_comparison(comparison: Comparison, as_json: bool = False) -> None:
    """Print a comparison: the answer first, then the numbers behind it."""
    if as_json:
        print_json(comparison)
        return
    out = console()
    for sentence in comparison.summary:
        out.print(plain(sentence))
    out.print()
    for line in comparison.runs:
        text = plain(line.label)
        text.stylize("bold")
        text.append(f"  {line.status}", COLOURS.get(line.status, "yellow"))
        text.append(f" after {seconds(line.seconds)}")
        text.append(f", step {line.last_step}" if line.last_step is not None else "")
        out.print(text)
    labels = shorten([line.label for line in comparison.runs])
    metric_rows(out, labels, comparison)
    if has_repeats(comparison.variants):
        repeat_rows(out, comparison)
    if any(comparison.paces):
        pace_rows(out, labels, comparison.paces)
    _print_differences(out, "config", labels, comparison.config)
    _print_differences(out, "code and machine", labels, comparison.code)
    _print_weights(out, comparison.weights)


def shorten(labels: Sequence[str], width: int = LABEL) -> list[str]:
    """Labels of at most so many characters that can still be told apart."""
    if max(map(len, labels)) <= width:
        return list(labels)
    cut = [label if len(label) <= width else f"{label[: width - 1]}…" for label in labels]
    if len(set(cut)) == len(labels):
        return cut
    ends = [label if len(label) <= width else f"…{label[1 - width :]}" for label in labels]
    return ends if len(set(ends)) == len(labels) else [f"#{i}" for i in range(1, len(labels) + 1)]


def _print_differences(
    out: Console, title: str, labels: Sequence[str], differences: Sequence[Difference]
) -> None:
    if not differences:
        return
    out.print()
    shown = differences[:MOST_DIFFERENCES]
    if len(labels) <= FEW:
        _print_columns(out, title, labels, shown)
    else:
        out.print(plain(title))
        for difference in shown:
            out.print(plain(f"  {difference.key}"))
            for text in _by_value(labels, difference):
                out.print(Padding(plain(text), (0, 0, 0, 4)))
    if len(differences) > MOST_DIFFERENCES:
        out.print(f"{len(differences) - MOST_DIFFERENCES} more with --json")


def _print_columns(
    out: Console, title: str, labels: Sequence[str], differences: Sequence[Difference]
) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column(title, overflow="fold", max_width=28)
    for label in labels:
        table.add_column(plain(label), overflow="fold")
    for difference in differences:
        table.add_row(plain(difference.key), *(plain(_value(v)) for v in difference.values))
    out.print(table)


def _by_value(labels: Sequence[str], difference: Difference) -> list[str]:
    """Each value with the runs that have it."""
    groups: dict[str, list[str]] = {}
    for label, value in zip(labels, difference.values, strict=True):
        groups.setdefault(_value(value), []).append(label)
    if len(groups) == len(labels) and max(map(len, groups)) > LONGEST:
        return ["another one in each run; --json has them"]
    return [f"{value}: {', '.join(group)}" for value, group in groups.items()]


def _print_weights(out: Console, weights: Sequence[WeightComparison]) -> None:
    if len(weights) == 1:
        _print_layers(out, weights[0])
    elif weights:
        out.print()
        table = _table("weights against the first run", ("distance", "relative", "cosine"))
        for item in weights:
            table.add_row(plain(item.runs[1]), *_distances(item.overall))
        out.print(table)


def _print_layers(out: Console, weights: WeightComparison) -> None:
    out.print()
    a, b = weights.snapshots
    where = a if a == b else f"{a} and {b}"
    out.print(plain(f"weights of {weights.runs[0]} and {weights.runs[1]}, {where}"))
    table = _table("layer", ("distance", "relative", "cosine"))
    farthest = sorted(weights.layers, key=lambda layer: layer.relative or 0.0, reverse=True)
    for layer in [weights.overall, *farthest[:MOST_LAYERS]]:
        table.add_row(plain(layer.layer), *_distances(layer))
    out.print(table)
    if len(weights.layers) > MOST_LAYERS:
        out.print(f"{len(weights.layers) - MOST_LAYERS} layers that are nearer: with --json")
    if weights.only:
        out.print(plain(f"not in both, or of another shape: {', '.join(weights.only[:10])}"))


def _distances(layer: Any) -> list[str]:
    relative = "" if layer.relative is None else f"{layer.relative:.1%}"
    return [number(layer.l2), relative, "" if layer.cosine is None else number(layer.cosine)]


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(title, no_wrap=True, max_width=40)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _value(value: Any) -> str:
    if value is None:
        return "—"
    return value if isinstance(value, str) else json.dumps(value, default=str)
