"""The runs of a folder with all that their table shows: status, duration, goodput, findings, metrics."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from stepwell._core.errors import StepwellError
from stepwell.analysis.findings import Facts, findings
from stepwell.analysis.overview import wall_seconds
from stepwell.analysis.ranks.stacks import MAIN, stacks
from stepwell.reading import RecordedRun, list_runs
from stepwell.reading.documents import newer_format
from stepwell.reading.run import SYSTEM, joint_status
from stepwell.vocabulary import loss_names

MAX_KEYS = 200
"""Settings, and metrics, of one run."""
MAX_TEXT = 200
CURVE_POINTS = 32
CONTAINERS = ("application", "training_loop")
Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class LossSummary:
    """The training loss. ``curve`` has at most 32 finite values."""

    name: str
    last: float | None
    best: float | None
    curve: list[float]


@dataclass(frozen=True)
class RunEntry:
    """One run of a list. ``goodput``, ``findings`` and ``headline`` are None if not computed yet.

    Attributes:
        status_text: the status, with the place if the run died: "killed inside backward".
        config: the settings, with nested keys joined by dots.
        metrics: the last value of each metric.
        findings: the number of findings by severity.
        headline: the sentence of the most important finding.
    """

    id: str
    name: str
    status: str
    status_text: str
    created_ms: int | None
    duration_ns: int | None = None
    step: int | None = None
    tags: list[str] = field(default_factory=list)
    ranks: int | None = None
    attempts: int | None = None
    goodput: float | None = None
    findings: dict[str, int] | None = None
    headline: str | None = None
    loss: LossSummary | None = None
    config: dict[str, Scalar] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def list_summaries(
    dir: str | os.PathLike[str], *, budget_s: float = 0.5
) -> tuple[list[RunEntry], list[str]]:
    """Return the runs of a folder, newest first, and the ids of those that are incomplete.

    Summaries of ended runs are cached. Others are computed until the time is up; call ``compute_summary``
    for the rest.
    """
    until = time.monotonic() + budget_s
    summaries, pending = [], []
    for run in list_runs(dir):
        summary = _bare(run)
        is_readable = newer_format(run.about) is None and run.mirror is None
        if is_readable and time.monotonic() < until:
            summary = compute_summary(run)
        elif is_readable:
            pending.append(run.id)
        summaries.append(summary)
    return summaries, pending


def compute_summary(run: RecordedRun) -> RunEntry:
    """Return the complete summary of a run, and cache it if the run has ended."""
    bare = _bare(run)
    try:
        summary = _with_metrics(run, bare)
        return _with_findings(run, summary)
    except (StepwellError, OSError, pl.exceptions.PolarsError):
        # A damaged run is listed without details.
        return replace(bare, findings={})


def _bare(run: RecordedRun) -> RunEntry:
    newer = newer_format(run.about)
    documents = [] if newer is not None else [d for d in run.documents() if d["role"] != "worker"]
    status = joint_status(documents) if newer is None else f"format {newer}"
    return RunEntry(
        id=run.id,
        name=run.name[:MAX_TEXT],
        status=status,
        status_text=status,
        created_ms=run.created_ns // 1_000_000 or None,
        tags=[tag[:MAX_TEXT] for tag in run.tags[:MAX_KEYS]],
        ranks=len({d["rank"] for d in documents}) or None,
        attempts=len({d["attempt"] for d in documents}) or None,
        config=flat_config(run.config),
    )


def flat_config(config: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return settings with nested keys joined by dots: at most 200, with texts of at most 200 characters."""
    flat: dict[str, Scalar] = {}
    for key, value in _flattened(config, "", 0):
        if len(flat) >= MAX_KEYS:
            break
        flat[key[:MAX_TEXT]] = value
    return flat


def _flattened(value: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Scalar]]:
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, dict) and inner and depth < 20:
            yield from _flattened(inner, f"{name}.", depth + 1)
        elif isinstance(inner, bool | int | float) or inner is None:
            yield name, inner
        else:
            yield name, str(inner)[:MAX_TEXT]


def _with_metrics(run: RecordedRun, bare: RunEntry) -> RunEntry:
    processes = run.processes().collect().filter(pl.col("role") != "worker")
    latest = processes.filter(pl.col("attempt") == pl.col("attempt").max())
    table = (
        run.metrics()
        .filter(~pl.col("name").str.starts_with(SYSTEM))
        .group_by("name", "step")
        .agg(pl.col("value").mean(), pl.col("time_ns").max())
        .sort("name", "step")
        .collect()
    )
    last = table.group_by("name", maintain_order=True).agg(pl.col("value").last())
    name = next(iter(loss_names(last["name"])), None)
    step = latest["step"].max()
    seconds = wall_seconds(processes, table.select(pl.col("time_ns").max()).item())
    return replace(
        bare,
        duration_ns=None if seconds is None else int(seconds * 1e9),
        step=step if isinstance(step, int) else None,
        status_text=_status_text(run, bare.status),
        loss=None if name is None else _loss(name, table.filter(pl.col("name") == name)["value"]),
        metrics=dict(last.head(MAX_KEYS).iter_rows()),
    )


def _loss(name: str, values: pl.Series) -> LossSummary:
    finite = values.filter(values.is_finite())
    size = max(1, -(-len(finite) // CURVE_POINTS))
    curve = [finite[i : i + size].mean() for i in range(0, len(finite), size)]
    best = finite.min()
    return LossSummary(
        name,
        float(values[-1]),
        best if isinstance(best, float) else None,
        [mean for mean in curve if isinstance(mean, float)],
    )


def _status_text(run: RecordedRun, status: str) -> str:
    """Return the status, with the innermost span in which the run was killed."""
    if status != "killed":
        return status
    frames = [
        [frame.name for frame in stack.frames if frame.name not in CONTAINERS]
        for stack in stacks(run)
        if stack.status == "killed" and stack.thread == MAIN and stack.role != "worker"
    ]
    inside = next((names[-1] for names in frames if names), None)
    return status if inside is None else f"{status} inside {inside[:MAX_TEXT]}"


def _with_findings(run: RecordedRun, summary: RunEntry) -> RunEntry:
    facts = Facts(run)
    all_findings = findings(facts)
    counts = Counter(finding.severity for finding in all_findings)
    share = facts.goodput.share if facts.steps.height else None
    died = next((f for f in all_findings if f.rule == "died"), None)
    inside = None if died is None else died.evidence.get("inside")
    text = summary.status_text
    if inside and text == summary.status and summary.status not in ("running", "finished"):
        text = f"{summary.status} inside {str(inside).rpartition(' › ')[2][:MAX_TEXT]}"
    return replace(
        summary,
        status_text=text,
        goodput=share,
        findings={key: counts[key] for key in ("critical", "warning", "note")},
        headline=all_findings[0].sentence if all_findings else None,
    )
