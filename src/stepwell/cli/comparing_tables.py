"""The tables of ``stepwell compare``: metrics, repeats, and how long a step took."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from stepwell.analysis.compare import Comparison, Pace
from stepwell.analysis.compare.pace import STEP
from stepwell.analysis.compare.wording import chance, count, place
from stepwell.analysis.findings.wording import duration, percent, phase_title
from stepwell.cli.drawing import number, plain

MOST_METRICS = 20
MOST_REPEATS = 10
MOST_COLUMNS = 4
"""So many runs have a column each in the table of phases."""
LEAST_SHARE = 0.005
"""Phases that take less of a step in all runs are left out."""


def metric_rows(out: Console, labels: Sequence[str], comparison: Comparison) -> None:
    """A line for each metric and run."""
    if not comparison.metrics:
        return
    out.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("metrics", no_wrap=True, max_width=24)
    table.add_column("run", no_wrap=True, max_width=16)
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
        out.print(f"{more} more: choose with --metric, or use --json")
    places = sorted({m.common_at for m in comparison.metrics if m.common_at is not None})
    if places:
        where = place(comparison.by, places[0]) if len(places) == 1 else "as far as all go"
        out.print(plain(f"common: {where}, smoothed where noisy; * is better"))


def repeat_rows(out: Console, comparison: Comparison) -> None:
    """A line for each metric and variant: how many runs, mean and spread."""
    if not comparison.repeats:
        return
    out.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("repeats", no_wrap=True, max_width=22)
    table.add_column("variant", no_wrap=True, max_width=22)
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
        out.print(plain("p: against the best, Welch's t-test; below 0.05 is more than noise"))


def pace_rows(out: Console, labels: Sequence[str], paces: Sequence[Pace | None]) -> None:
    """How long a step took: a line for each phase, or for each run where these are many."""
    out.print()
    if len(labels) <= MOST_COLUMNS:
        _phase_lines(out, labels, paces)
    else:
        _run_lines(out, labels, paces)
    out.print("means over steps and ranks, the first 3 steps of each attempt left out")


def _phase_lines(out: Console, labels: Sequence[str], paces: Sequence[Pace | None]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("time of a step", no_wrap=True)
    for label in labels:
        table.add_column(plain(label), justify="right", no_wrap=True, max_width=14)
    two = len(labels) == 2 and all(paces)
    if two:
        table.add_column("difference", justify="right", no_wrap=True)
    times = [{p.phase: p for p in pace.phases} if pace else {} for pace in paces]
    phases = dict.fromkeys(phase for each in times for phase in each)
    for phase in phases:
        found = [each.get(phase) for each in times]
        if max(item.share for item in found if item) < LEAST_SHARE:
            continue
        cells = [duration(item.mean_ns) if item else "" for item in found]
        if two:
            more = (found[1].mean_ns if found[1] else 0.0) - (found[0].mean_ns if found[0] else 0.0)
            cells.append(f"{'+' if more >= 0 else '−'}{duration(abs(more))}")
        table.add_row(_name(phase), *cells)
    for name, values in _rates(paces):
        table.add_row(name, *values, *([""] if two else []))
    out.print(table)


def _run_lines(out: Console, labels: Sequence[str], paces: Sequence[Pace | None]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("time of a step", no_wrap=True, max_width=16)
    for heading in ("mean", "p95"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("most of it", no_wrap=True, max_width=36)
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
    """Lines of p95, throughput and goodput, where any run has them."""
    lines = {
        "p95": [duration(p.p95_ns) if p else "" for p in paces],
        "samples/s": [
            count(p.samples_per_second) if p and p.samples_per_second else "" for p in paces
        ],
        "tokens/s": [
            count(p.tokens_per_second) if p and p.tokens_per_second else "" for p in paces
        ],
        "goodput": [percent(p.goodput) if p and p.goodput is not None else "" for p in paces],
    }
    return [(name, values) for name, values in lines.items() if any(values)]


def _name(phase: str) -> str:
    return "all of it" if phase == STEP else f"  {phase_title(phase)}"


def _number(value: float | None) -> str:
    return "" if value is None else number(value)
