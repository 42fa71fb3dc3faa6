"""``stepwell compare``: the answer first, then tables that fit 80 columns for any number of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepwell._core.text import duration, number, percent, rate
from stepwell.analysis.compare import Comparison, Difference, Pace, WeightComparison
from stepwell.analysis.compare.pace import STEP
from stepwell.analysis.compare.sentences import chance, place
from stepwell.analysis.compare.variants import has_repeats
from stepwell.analysis.timeline.phases import phase_title
from stepwell.cli.output import print_json
from stepwell.cli.terminal import console, headline, lasted, plain, table_console, wrapped

MOST_DIFFERENCES = 20
MOST_LAYERS = 12
MOST_DIFFERENCE_COLUMNS = 3
"""With more runs, differences are listed by value instead of in columns."""
LABEL = 16
LONGEST = 24
"""If all runs have different values that are longer than this, the values are not printed."""


def show_comparison(comparison: Comparison, as_json: bool = False) -> None:
    """Print a comparison: the answer first, then the numbers."""
    if as_json:
        print_json(comparison)
        return
    out, tables = console(), table_console()
    for sentence in comparison.summary:
        out.print(Text(wrapped(sentence, out.width)))
    out.print()
    for line in comparison.runs:
        text = headline(line.label, line.status)
        text.append(f" {lasted(line.status, line.seconds * 1e9)}")
        text.append(f", step {line.last_step}" if line.last_step is not None else "")
        out.print(text)
    labels = [line.label for line in comparison.runs]
    if out.is_terminal:
        labels = shorten(labels)
    metric_rows(tables, labels, comparison)
    if has_repeats(comparison.variants):
        repeat_rows(tables, comparison)
    if any(comparison.paces):
        pace_rows(tables, labels, comparison.paces)
    _print_differences(tables, "config", labels, comparison.config)
    _print_differences(tables, "code and machine", labels, comparison.code)
    _print_weights(tables, comparison.weights)


def shorten(labels: Sequence[str], width: int = LABEL) -> list[str]:
    """Return labels of at most ``width`` characters that are still different."""
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
    if len(labels) <= MOST_DIFFERENCE_COLUMNS:
        _print_columns(out, title, labels, shown)
    else:
        out.print(plain(title))
        for difference in shown:
            out.print(plain(f"  {difference.key}"))
            for text in _by_value(labels, difference):
                out.print(Padding(plain(text), (0, 0, 0, 4), expand=False))
    if len(differences) > MOST_DIFFERENCES:
        out.print(f"{len(differences) - MOST_DIFFERENCES} more differences: use --json")


def _print_columns(
    out: Console, title: str, labels: Sequence[str], differences: Sequence[Difference]
) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column(title, overflow="fold", max_width=28 if out.is_terminal else None)
    for label in labels:
        table.add_column(plain(label), overflow="fold")
    for difference in differences:
        table.add_row(plain(difference.key), *(plain(_value(v)) for v in difference.values))
    out.print(table)


def _by_value(labels: Sequence[str], difference: Difference) -> list[str]:
    """Return each value with the runs that have it."""
    groups: dict[str, list[str]] = {}
    for label, value in zip(labels, difference.values, strict=True):
        groups.setdefault(_value(value), []).append(label)
    if len(groups) == len(labels) and max(map(len, groups)) > LONGEST:
        return ["different in every run; see --json"]
    return [f"{value}: {', '.join(group)}" for value, group in groups.items()]


def _print_weights(out: Console, weights: Sequence[WeightComparison]) -> None:
    if len(weights) == 1:
        _print_layers(out, weights[0])
    elif weights:
        out.print()
        table = _weights_table(out, "weights against the first run")
        for item in weights:
            table.add_row(plain(item.runs[1]), *_distances(item.overall))
        out.print(table)


def _print_layers(out: Console, weights: WeightComparison) -> None:
    out.print()
    a, b = weights.snapshots
    where = a if a == b else f"{a} and {b}"
    out.print(plain(f"weights of {weights.runs[0]} and {weights.runs[1]}, {where}"))
    table = _weights_table(out, "layer")
    farthest = sorted(weights.layers, key=lambda layer: layer.relative or 0.0, reverse=True)
    for layer in [weights.overall, *farthest[:MOST_LAYERS]]:
        table.add_row(plain(layer.layer), *_distances(layer))
    out.print(table)
    if len(weights.layers) > MOST_LAYERS:
        out.print(f"{len(weights.layers) - MOST_LAYERS} closer layers: use --json")
    if weights.only:
        out.print(
            plain(f"only in one run, or with different shapes: {', '.join(weights.only[:10])}")
        )


def _distances(layer: Any) -> list[str]:
    relative = "" if layer.relative is None else percent(layer.relative)
    # Cosines are close to 1, where the fourth decimal matters.
    return [number(layer.l2), relative, "" if layer.cosine is None else f"{layer.cosine:.4g}"]


def _weights_table(out: Console, title: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(title, no_wrap=True, max_width=max(40, out.width - 40))
    for heading in ("distance", "relative", "cosine"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    return table


def _value(value: Any) -> str:
    if value is None:
        return "—"
    return value if isinstance(value, str) else json.dumps(value, default=str)


MOST_METRICS = 20
MOST_REPEATS = 10
MOST_COLUMNS = 4
"""With more runs, the step time table has a row per run instead of a column."""
LEAST_SHARE = 0.005
"""Phases with a smaller share of the step in all runs are left out."""


def metric_rows(out: Console, labels: Sequence[str], comparison: Comparison) -> None:
    """Print a line for each metric and run."""
    if not comparison.metrics:
        return
    out.print()
    table = Table(box=None, pad_edge=False)
    longest = max(map(len, labels))
    table.add_column("metrics", no_wrap=True, max_width=max(20, out.width - longest - 42))
    table.add_column("run", no_wrap=True)
    for heading in ("last", "at", "best", "at", "common"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown = comparison.metrics[:MOST_METRICS]
    for metric in shown:
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
    if len(comparison.metrics) > MOST_METRICS:
        more = len(comparison.metrics) - MOST_METRICS
        out.print(f"{more} more metrics: use --metric or --json")
    places = sorted({m.common_at for m in comparison.metrics if m.common_at is not None})
    if places:
        where = (
            place(comparison.by, places[0])
            if len(places) == 1
            else "at the last point all runs reached"
        )
        out.print(plain(f"common: value {where}, smoothed if noisy; * is better"))


def repeat_rows(out: Console, comparison: Comparison) -> None:
    """Print a line for each metric and variant: number of runs, mean and spread."""
    if not comparison.repeats:
        return
    out.print()
    table = Table(box=None, pad_edge=False)
    room = max(22, (out.width - 36) // 2)
    table.add_column("repeats", no_wrap=True, max_width=room)
    table.add_column("variant", no_wrap=True, max_width=room)
    for heading in ("runs", "mean", "±", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for item in comparison.repeats[:MOST_REPEATS]:
        for i, (variant, spread) in enumerate(zip(comparison.variants, item.variants, strict=True)):
            p = item.p[i] if item.p else None
            table.add_row(
                plain(item.metric if i == 0 else ""),
                plain(variant.label),
                f"{spread.count}",
                _number(spread.mean),
                "" if spread.deviation is None else f"{spread.deviation:.2g}",
                "best" if item.best == i else "" if p is None else chance(p).removeprefix("p = "),
            )
    out.print(table)
    if any(p is not None for item in comparison.repeats for p in item.p):
        out.print(
            plain("p: Welch's t-test against the best variant; below 0.05 is more than noise")
        )


def pace_rows(out: Console, labels: Sequence[str], paces: Sequence[Pace | None]) -> None:
    """Print step times: a line per phase, or per run if there are many runs."""
    out.print()
    if len(labels) <= MOST_COLUMNS:
        _phase_lines(out, labels, paces)
    else:
        _run_lines(out, labels, paces)
    out.print("means over steps and ranks, without the first 3 steps of each attempt")


def _phase_lines(out: Console, labels: Sequence[str], paces: Sequence[Pace | None]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("step time", no_wrap=True)
    for label in labels:
        room = max(14, (out.width - 30) // len(labels))
        table.add_column(plain(label), justify="right", no_wrap=True, max_width=room)
    two = len(labels) == 2 and all(paces)
    if two:
        table.add_column("difference", justify="right", no_wrap=True)
    times = [{p.phase: p for p in pace.phases} if pace else {} for pace in paces]
    phases = dict.fromkeys(phase for each in times for phase in each)
    for phase in phases:
        items = [each.get(phase) for each in times]
        if max(item.share for item in items if item) < LEAST_SHARE:
            continue
        cells = [duration(item.mean_ns) if item else "" for item in items]
        if two:
            first, second = (item.mean_ns if item else 0.0 for item in items)
            sign = "+" if second >= first else "−"
            cells.append(f"{sign}{duration(abs(second - first))}")
        table.add_row(_name(phase), *cells)
    for name, values in _rates(paces):
        table.add_row(name, *values, *([""] if two else []))
    out.print(table)


def _run_lines(out: Console, labels: Sequence[str], paces: Sequence[Pace | None]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("step time", no_wrap=True)
    for heading in ("mean", "p95"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("largest phases", no_wrap=True, max_width=max(36, out.width - 44))
    table.add_column("goodput", justify="right", no_wrap=True)
    for label, pace in zip(labels, paces, strict=True):
        if pace is None:
            table.add_row(plain(label), "—", "", "", "")
            continue
        most = [f"{phase_title(p.phase)} {duration(p.mean_ns)}" for p in pace.phases[1:3]]
        share = "" if pace.goodput is None else percent(pace.goodput)
        row = duration(pace.step_ns), duration(pace.p95_ns), ", ".join(most), share
        table.add_row(plain(label), *row)
    out.print(table)


def _rates(paces: Sequence[Pace | None]) -> list[tuple[str, list[str]]]:
    """Return lines of p95, throughput and goodput, if any run has them."""
    lines = {
        "p95": [duration(p.p95_ns) if p else "" for p in paces],
        "samples/s": [
            rate(p.samples_per_second) if p and p.samples_per_second else "" for p in paces
        ],
        "tokens/s": [rate(p.tokens_per_second) if p and p.tokens_per_second else "" for p in paces],
        "goodput": [percent(p.goodput) if p and p.goodput is not None else "" for p in paces],
    }
    return [(name, values) for name, values in lines.items() if any(values)]


def _name(phase: str) -> str:
    return "total" if phase == STEP else f"  {phase_title(phase)}"


def _number(value: float | None) -> str:
    return "" if value is None else number(value)
