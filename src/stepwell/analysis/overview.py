"""The overview of one run: status, duration, spans, metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from stepwell.analysis.ranks.stacks import stacks
from stepwell.analysis.recording_cost import disk_bytes
from stepwell.analysis.throughput import UPDATE_COLUMNS, Throughput, latest_update, throughput
from stepwell.analysis.timeline import run_wall_ns
from stepwell.analysis.tracebacks import root_error, shown_lines
from stepwell.reading import RecordedRun
from stepwell.reading.run import SYSTEM
from stepwell.vocabulary import RUNTIME


@dataclass(frozen=True)
class SpanLine:
    """All spans of one name within spans of another name, in main processes or in workers.

    ``inside`` is the name of the parent, "" at the top. Garbage collections may have any parent: they are one
    line.
    """

    name: str
    inside: str
    worker: bool
    depth: int
    count: int
    total_s: float
    p50_s: float
    p95_s: float
    max_s: float
    errors: int
    open: int


@dataclass(frozen=True)
class MetricLine:
    """One metric: its first, last, lowest and highest value."""

    name: str
    count: int
    first: float
    last: float
    last_step: int
    low: float
    low_step: int
    high: float
    high_step: int
    curve: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class OpenLine:
    """An open span of a thread, with the path to it."""

    rank: int
    process: str
    thread: str
    path: str
    seconds: float


@dataclass(frozen=True)
class Overview:
    """The content of ``stepwell show``."""

    id: str
    name: str
    path: Path
    status: str
    error: str | None
    lines: tuple[str, ...]
    """Lines of the traceback of the error."""
    attempts: int
    ranks: int
    workers: int
    wall_s: float
    last_step: int | None
    spans: list[SpanLine]
    span_count: int
    metrics: list[MetricLine]
    metric_count: int
    events: int
    artifacts: int
    dropped: int
    disk_bytes: int
    open: list[OpenLine]
    throughput: Throughput | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    """The values set with ``run.summary[…]``."""


MOST_LINES = 12
"""Lines of spans, and of metrics."""
CURVE_POINTS = 16
SHOWN = ("/cpu_percent", "/memory_rss_bytes", "/utilization_percent")
"""System metrics that are shown with those of the training."""


def overview(run: RecordedRun) -> Overview:
    """Read a run once and sum it up."""
    processes = run.processes().collect()
    mains = processes.filter(pl.col("role") != "worker")
    error, lines = _error(run)
    spans = _spans(run)
    metrics = run.metrics().collect()
    numbers = metrics.height
    if mains["rank"].n_unique() > 1:
        # One curve for each metric: the mean over ranks.
        step = metrics.group_by("name", "step")
        metrics = step.agg(pl.col("value").mean(), pl.col("time_ns").min())
    events = run.events().select(UPDATE_COLUMNS).collect()
    return Overview(
        id=run.id,
        name=run.name,
        path=run.path,
        status=run.status,
        error=error,
        lines=lines,
        attempts=mains["attempt"].n_unique(),
        ranks=mains["rank"].n_unique(),
        workers=processes.height - mains.height,
        wall_s=(run_wall_ns(run) or 0) / 1e9,
        last_step=mains["step"].max(),  # type: ignore[arg-type]
        spans=_longest(spans),
        span_count=sum(line.count for line in spans),
        metrics=_metrics(metrics)[:MOST_LINES],
        metric_count=numbers,
        events=events.height,
        artifacts=run.artifacts().select(pl.len()).collect().item(),
        dropped=int(processes["dropped"].sum() or 0),
        disk_bytes=disk_bytes(run.path),
        open=_open(run),
        throughput=throughput([latest_update([events])]),
        summary=own_summary(run),
    )


def own_summary(run: RecordedRun) -> dict[str, Any]:
    """Return the values that the training set with ``run.summary[…]``, without the last metrics."""
    own = run.document.get("summary")
    return dict(own) if isinstance(own, dict) else {}


def _error(run: RecordedRun) -> tuple[str | None, tuple[str, ...]]:
    """Return the error of the latest attempt and its traceback."""
    first = root_error(run.documents())
    if first is None:
        return None, ()
    where = f" (in {first['raised_in']})" if first["raised_in"] else ""
    return first["error"] + where, shown_lines(first["traceback"])


def _spans(run: RecordedRun) -> list[SpanLine]:
    worker = pl.col("process").str.contains(r"\.(?:worker-\d+|child)\.pid-").alias("worker")
    seconds = pl.col("duration_ns") / 1e9
    is_pause = pl.col("category") == RUNTIME
    spans = run.spans()
    above = spans.select("process", pl.col("id").alias("parent"), pl.col("name").alias("inside"))
    table = (
        spans.with_columns(worker)
        .join(above, on=("process", "parent"), how="left")
        .with_columns(pl.when(~is_pause).then("inside").fill_null(""))
        .group_by("name", "inside", "worker")
        .agg(
            pl.col("depth").min(),
            pl.len().alias("count"),
            seconds.sum().alias("total_s"),
            seconds.median().alias("p50_s"),
            seconds.quantile(0.95).alias("p95_s"),
            seconds.max().alias("max_s"),
            (pl.col("status") == "error").sum().alias("errors"),
            (pl.col("status") == "open").sum().alias("open"),
            pl.col("start_ns").min().alias("began"),
            # Pauses are listed after the spans of the training.
            is_pause.all().alias("pause"),
        )
        .sort("pause", "worker", "began", "depth", "name")
        .drop("began", "pause")
        .collect()
    )
    rows = table.with_columns(pl.col(pl.Float64).fill_null(0.0)).iter_rows(named=True)
    return _as_tree([SpanLine(**row) for row in rows])


def _as_tree(lines: list[SpanLine]) -> list[SpanLine]:
    """Sort lines so that each follows its parent and the earlier children of that parent."""
    ordered: list[SpanLine] = []
    left = list(lines)

    def take(inside: str, worker: bool) -> None:
        for line in [line for line in left if line.inside == inside and line.worker == worker]:
            # A line within spans of its own name may have been taken there.
            if line in left:
                left.remove(line)
                ordered.append(line)
                take(line.name, worker)

    for worker in (False, True):
        take("", worker)
    # The outermost spans of workers may have a parent in the main process.
    return ordered + left


def _longest(lines: list[SpanLine]) -> list[SpanLine]:
    """Return the lines with the most total time, in the order of their first start."""
    kept = sorted(lines, key=lambda line: line.total_s, reverse=True)[:MOST_LINES]
    return [line for line in lines if line in kept]


def _metrics(table: pl.DataFrame) -> list[MetricLine]:
    lines = []
    for (name,), part in table.sort("step", "time_ns").group_by("name", maintain_order=True):
        numbers = part.filter(pl.col("value").is_not_nan())
        if numbers.is_empty():
            continue
        low = numbers.row(int(numbers["value"].arg_min() or 0), named=True)
        high = numbers.row(int(numbers["value"].arg_max() or 0), named=True)
        lines.append(
            MetricLine(
                name=str(name),
                count=part.height,
                first=part["value"][0],
                last=part["value"][-1],
                last_step=part["step"][-1],
                low=low["value"],
                low_step=low["step"],
                high=high["value"],
                high_step=high["step"],
                curve=_curve(numbers["value"]),
            )
        )
    # System metrics come after those of the training.
    kept = [x for x in lines if not x.name.startswith(SYSTEM) or x.name.endswith(SHOWN)]
    return sorted(kept, key=lambda line: (line.name.startswith(SYSTEM), line.name))


def _curve(values: pl.Series) -> list[float]:
    """Return means of a few groups of values, for a small chart."""
    size = max(1, -(-len(values) // CURVE_POINTS))
    parts = [values[i : i + size].mean() for i in range(0, len(values), size)]
    return [float(v) for v in parts if isinstance(v, float)]


def _open(run: RecordedRun) -> list[OpenLine]:
    """Return the innermost open span of each thread of the latest attempt."""
    lines = []
    for stack in stacks(run):
        if stack.innermost is not None:
            path = " › ".join(frame.name for frame in stack.frames)
            seconds = stack.innermost.seconds
            lines.append(OpenLine(stack.rank, stack.process, stack.thread, path, seconds))
    return lines
