"""The report of a run: its status, its problems, its time, and the values it reached."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell._core.text import duration, percent, size
from stepwell._core.threads import map_arrays
from stepwell.analysis.engine import Engine, choose_engine
from stepwell.analysis.findings import (
    SEVERITIES,
    Facts,
    Finding,
    Unchecked,
    findings,
    unchecked,
)
from stepwell.analysis.findings.curves import MetricCurve, goal_of
from stepwell.analysis.overview import own_summary
from stepwell.analysis.progress import TimeLeft, drop_incomplete, time_left
from stepwell.analysis.recording_cost import RecordingCost, recording_cost
from stepwell.analysis.throughput import Throughput, throughput
from stepwell.analysis.timeline import background
from stepwell.analysis.timeline.phases import phase_title
from stepwell.analysis.timeline.step_phases import BETWEEN
from stepwell.analysis.timeline.tables import merge_steps
from stepwell.reading import RecordedRun

MOST_VALUES = 10
MUCH = 0.3
"""Share of the wall time in no span from which on the report suggests to add spans."""
ABOUT_OTHER = {"pauses", "uncovered-time", "busy-machine"}
"""Rules whose findings explain the time in no span."""
MOST_HINTS = 2
MANY = 500_000
"""Steps of all ranks from which on two threads are faster."""
ENDED_BY = ("died", "hang")
"""The rules that explain how the run ended, or why it makes no progress."""


@dataclass(frozen=True)
class PhaseLine:
    """A line of the time table: the mean of all ranks, and percentiles of the time in a step.

    ``phase`` is a phase, or the name of a user's own span.
    """

    phase: str
    ns: int
    share: float
    p50_ns: int | None = None
    p95_ns: int | None = None


@dataclass(frozen=True)
class BackgroundLine:
    """Work in the background: the time during which at least one thread or worker did it."""

    kind: str
    ns: int


@dataclass(frozen=True)
class StepLine:
    """The duration of steps, from one to the next, without validation, testing and checkpoints.

    Leaves out the first steps of each attempt, and steps that no rank completed.
    """

    count: int
    p50_ns: int
    p95_ns: int
    max_ns: int
    max_step: int
    epochs: int | None = None
    """Epochs that were begun; None if none was recorded."""


@dataclass(frozen=True)
class ValueLine:
    """A metric: its last value, and its best if lower or higher is better."""

    name: str
    last: float
    last_step: int
    best: float | None = None
    best_step: int | None = None
    nonfinite: int = 0


@dataclass(frozen=True)
class Hint:
    """Something that was not recorded, and the code that records it."""

    text: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The content of ``stepwell report``."""

    id: str
    name: str
    path: Path
    status: str
    wall_ns: int
    step: int | None
    epoch: int | None
    ranks: int
    attempts: int
    findings: list[Finding]
    time: list[PhaseLine]
    background: list[BackgroundLine]
    steps: StepLine | None
    values: list[ValueLine]
    left: TimeLeft | None
    cost: RecordingCost
    goodput: float | None
    throughput: Throughput | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    """The values set with ``run.summary[…]``."""
    hints: list[Hint] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)


def report(
    run: RecordedRun, *, engine: str | Engine | None = None, scheduler: str | None = None
) -> Report:
    """Read a run once and sum it up.

    Args:
        run: the run.
        engine: ``local`` (the default), ``dask``, or an ``Engine``.
        scheduler: the address of the Dask scheduler. Without it, a cluster is started on this machine.
    """
    facts = Facts(run, choose_engine(engine, scheduler))
    all_findings = _ends_first(findings(facts))
    processes = facts.summary.processes.filter(pl.col("role") != "worker")
    latest = processes.filter(pl.col("attempt") == max(processes["attempt"], default=0))
    metrics = facts.curves.everything.height
    walls = sum(part.wall_ns for part in facts.timelines)
    needs_goodput = facts.attempts > 1 and facts.steps.height > 0
    return Report(
        id=run.id,
        name=run.name,
        path=run.folder,
        status=facts.status,
        wall_ns=facts.wall_ns,
        step=highest(latest, "step"),
        epoch=highest(latest, "epoch"),
        ranks=facts.ranks,
        attempts=facts.attempts,
        findings=all_findings,
        time=_time(facts),
        background=_background(facts),
        steps=_steps(facts),
        values=_values(facts),
        left=_left(facts, all_findings),
        cost=recording_cost(run, facts.summary.spans, metrics, walls, facts.documents),
        goodput=facts.goodput.share if needs_goodput else None,
        throughput=throughput(facts.summary.updates),
        summary=own_summary(run),
        hints=list(islice(_hints(facts, {f.rule for f in all_findings}), MOST_HINTS)),
        unchecked=list(unchecked(facts)),
    )


def cost_sentence(result: Report) -> str:
    """Return how much was recorded, and the cost of recording it."""
    cost = result.cost
    ranks = max(1, result.ranks)
    each = cost.ns / (result.steps.count * ranks) if result.steps else 0.0
    per_rank = " per rank" if ranks > 1 else ""
    per_step = f", {duration(each)} per step" if each else ""
    background = ""
    if cost.beside_ns is not None:
        background = f"; background CPU: {duration(cost.beside_ns / ranks)}{per_rank}"
    return (
        f"Recorded {cost.spans:,} spans and {cost.metrics:,} numbers ({size(cost.bytes)}). Overhead: at "
        f"least {duration(cost.ns / ranks)}{per_rank} ({percent(cost.share)} of the time{per_step})"
        f"{background}."
    )


def _ends_first(unsorted: list[Finding]) -> list[Finding]:
    """Sort the findings that explain how the run ended first."""
    return sorted(unsorted, key=lambda f: (f.rule not in ENDED_BY, SEVERITIES.index(f.severity)))


def _left(facts: Facts, all_findings: list[Finding]) -> TimeLeft | None:
    left = time_left(facts) if facts.status == "running" else None
    is_hanging = any(finding.rule == "hang" for finding in all_findings)
    # While it hangs, the pace from before says nothing.
    return replace(left, ns=None) if left is not None and is_hanging else left


def highest(table: pl.DataFrame, column: str) -> int | None:
    """Return the largest integer of a column; None without any."""
    value = table[column].max()
    return int(value) if isinstance(value, int) else None


def _time(facts: Facts) -> list[PhaseLine]:
    """Return lines for all of the wall time, the longest first, ``other`` last."""
    order = sorted(facts.table.items(), key=lambda line: (line[0] == "other", -line[1]))
    in_step = map_arrays(
        partial(_time_in_step, facts.steady),
        (phase for phase, _ in order),
        facts.steady.height > MANY,
    )
    return [
        PhaseLine(phase_title(phase), ns, facts.part_of_wall(ns), *times)
        for (phase, ns), times in zip(order, in_step, strict=True)
    ]


def _time_in_step(steady: pl.DataFrame, phase: str) -> tuple[int, int] | tuple[()]:
    """Return the median and a high time of a phase in a step; nothing if most steps do without it."""
    if phase not in steady.columns:
        return ()
    each = steady[phase].filter(steady[phase] > 0)
    return _median_and_high(each) if each.len() >= max(20, steady.height / 2) else ()


def _median_and_high(values: pl.Series) -> tuple[int, int]:
    """Return the median and the 95th percentile: of two equally near values, the higher one."""
    at = [math.floor(share * (values.len() - 1) + 0.5) for share in (0.5, 0.95)]
    p50, p95 = np.partition(values.to_numpy(), at)[at].tolist()
    return p50, p95


def _background(facts: Facts) -> list[BackgroundLine]:
    table = background(facts.timelines).group_by("kind").agg(pl.col("ns").sum()).sort("kind")
    return [BackgroundLine(str(kind), int(ns)) for kind, ns in table.iter_rows()]


def _steps(facts: Facts) -> StepLine | None:
    """Return percentiles of the steps after the first few, and the longest of all steps."""
    every = drop_incomplete(_own_times(facts.steps), facts.incomplete)
    steady = every
    if facts.steady.height >= 20:
        steady = drop_incomplete(_own_times(facts.steady), facts.incomplete)
    if steady.is_empty():
        return None
    # A later step did not end.
    every = every.filter(pl.col("step") <= pl.lit(steady["step"].max()))
    ns = every["ns"]
    longest = ns.arg_max() or 0
    return StepLine(
        _count_steps(facts) - sum(map(len, facts.incomplete.values())),
        *_median_and_high(steady["ns"]),
        int(ns[longest]),
        int(every["step"][longest]),
        _count_epochs(facts),
    )


def _own_times(steps: pl.DataFrame) -> pl.DataFrame:
    """Return attempt, step and duration of steps, without validation and checkpoints between them."""
    return steps.select("attempt", "step", ns=pl.col("period_ns") - pl.sum_horizontal(BETWEEN))


def _count_epochs(facts: Facts) -> int | None:
    """Return the number of epochs begun, even if their numbers repeat; with restarts, of distinct ones."""
    epochs = [part.iterations.epochs for part in facts.timelines if part.iterations is not None]
    if not epochs:
        return None
    if facts.attempts > 1:
        count = len(set().union(*(np.unique(own).tolist() for own in epochs)) - {-1})
    else:
        longest = max(epochs, key=len)
        numbered = longest[longest >= 0]
        count = int(np.count_nonzero(np.diff(numbered)) + 1) if len(numbered) else 0
    return count or None


def _count_steps(facts: Facts) -> int:
    """Return the number of distinct steps of each attempt, over all ranks."""
    by_attempt: dict[int, list[NDArray[np.int64]]] = {}
    for part in facts.timelines:
        if part.iterations is not None:
            by_attempt.setdefault(part.attempt, []).append(part.iterations.steps)
    return sum(len(merge_steps(steps)) for steps in by_attempt.values())


def _values(facts: Facts) -> list[ValueLine]:
    """Return metrics that have a goal first (lower or higher is better), then the others."""
    names = facts.curves.names
    goals = {name: goal_of(name) for name in names}
    others = [name for name in names if not goals[name] and "/group_" not in name]
    judged = [name for name in names if goals[name]]
    chosen = [*judged, *others][:MOST_VALUES]
    return [_value(facts, facts.curves.curve(name), goals[name]) for name in chosen]


def _value(facts: Facts, curve: MetricCurve, goal: str | None) -> ValueLine:
    if len(curve.odd) and (not len(curve) or curve.odd[-1] > curve.steps[-1]):
        step = int(curve.odd[-1])
        rows = facts.curves.parts[curve.name].filter(pl.col("step") == step)
        last = float(np.mean(rows["value"].to_numpy()))
    else:
        last, step = float(curve.values[-1]), int(curve.steps[-1])
    if goal is None or not len(curve):
        return ValueLine(curve.name, last, step, nonfinite=len(curve.odd))
    choose = np.argmin if goal == "lower" else np.argmax
    place = int(choose(curve.values))
    best, best_step = float(curve.values[place]), int(curve.steps[place])
    return ValueLine(curve.name, last, step, best, best_step, len(curve.odd))


def _hints(facts: Facts, rules: set[str]) -> Iterator[Hint]:
    """Yield hints about what else to record, the most useful first."""
    if facts.steps.is_empty():
        yield Hint(
            "No training steps were recorded. With PyTorch, add before the loop:",
            ("import stepwell", "stepwell.watch(model, optimizer, loader)"),
        )
        yield Hint(
            "In any other loop, add for every step:",
            ("run.set_step(step)", 'with run.span("forward"): …'),
        )
        return
    other_ns = facts.table.get("other", 0)
    if not facts.has_parts and not facts.steps["data"].sum():
        yield Hint(
            "The parts of a step were not recorded. Add spans around them:",
            ('with run.span("wait for data"): …', 'with run.span("forward"): …'),
        )
    elif other_ns >= MUCH * facts.wall_ns and not rules & ABOUT_OTHER:
        share = percent(facts.part_of_wall(other_ns))
        yield Hint(
            f"{share} of the wall time is in no span. To see what it is, add spans:",
            ('with stepwell.span("a name of yours"): …',),
        )
    if not facts.curves.names:
        yield Hint(
            "No metrics were logged. Add in the loop:", ('stepwell.log({"train/loss": loss})',)
        )
    elif not any("val" in name or "holdout" in name for name in facts.curves.names):
        yield Hint(
            "No validation metric was logged, so overfitting cannot be detected. Add after validation:",
            ('stepwell.log({"val/loss": loss})',),
        )
