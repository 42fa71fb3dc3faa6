"""The report of a run: how it is, what is wrong with it, where its time went, what it reached."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.analysis.engine import Engine, choose_engine
from stepwell.analysis.findings import (
    SEVERITIES,
    Facts,
    Finding,
    Unchecked,
    findings,
    unchecked,
)
from stepwell.analysis.findings.curves import Curve
from stepwell.analysis.findings.wording import percent, phase_title
from stepwell.analysis.overview import own_summary
from stepwell.analysis.progress import TimeLeft, time_left
from stepwell.analysis.ranks.grid import BETWEEN
from stepwell.analysis.recording_cost import RecordingCost, recording_cost
from stepwell.analysis.throughput import Throughput, throughput
from stepwell.analysis.time import background
from stepwell.analysis.undone import Undone, completed, undone_steps
from stepwell.reading import RecordedRun

MOST_VALUES = 10
MUCH = 0.3
"""Of the wall time: if code in no span takes more, the report says how to find out what it is."""
ENDED_BY = ("died", "hang")
"""The rules that say how it ended, or why it does not go on."""


@dataclass(frozen=True)
class PhaseLine:
    """A line of the time table, the mean of all ranks, and its typical and slowest time in a step.

    ``phase`` is a phase, or the name of a span of the user's own.
    """

    phase: str
    ns: int
    share: float
    p50_ns: int | None = None
    p95_ns: int | None = None


@dataclass(frozen=True)
class BackgroundLine:
    """Work beside the training thread, for as long as at least one was at it."""

    kind: str
    ns: int


@dataclass(frozen=True)
class StepLine:
    """How long steps take, from one to the next: the first few of each attempt left out, and validation,
    testing and checkpoints that come after some of them.

    A step that no rank completed, under way or not, is none.
    """

    count: int
    p50_ns: int
    p95_ns: int
    max_ns: int
    max_step: int
    epochs: int | None = None
    """Epochs that were begun; None where none is recorded."""


@dataclass(frozen=True)
class ValueLine:
    """A metric: its last value, and its best where more or less of it is better."""

    name: str
    last: float
    last_step: int
    best: float | None = None
    best_step: int | None = None
    nonfinite: int = 0


@dataclass(frozen=True)
class Hint:
    """Something that was not recorded, and the lines that record it."""

    text: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What ``stepwell report`` tells."""

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
    """What was set with ``run.summary[…]``."""
    hints: list[Hint] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)


def report(
    run: RecordedRun, *, engine: str | Engine | None = None, scheduler: str | None = None
) -> Report:
    """Read a run once and sum it up.

    Args:
        run: the run.
        engine: who reads it: ``local`` (as without), ``dask``, or anything that does tasks.
        scheduler: the address of the Dask cluster's; without one a cluster is started here.
    """
    facts = Facts(run, choose_engine(engine, scheduler))
    undone = undone_steps(facts)
    found = _ends_first(findings(facts))
    processes = facts.processes.filter(pl.col("role") != "worker")
    latest = processes.filter(pl.col("attempt") == max(processes["attempt"], default=0))
    metrics = facts.curves.everything.height
    walls = sum(part.wall_ns for part in facts.accounts.parts)
    needs_goodput = facts.attempts > 1 and facts.steps.height > 0
    return Report(
        id=run.id,
        name=run.name,
        path=run.folder,
        status=facts.status,
        wall_ns=facts.wall_ns,
        step=_highest(latest, "step"),
        epoch=_highest(latest, "epoch"),
        ranks=facts.ranks,
        attempts=facts.attempts,
        findings=found,
        time=_time(facts),
        background=_background(facts),
        steps=_steps(facts, undone),
        values=_values(facts),
        left=_left(facts, undone, found),
        cost=recording_cost(run, facts.summary.spans, metrics, walls, facts.documents),
        goodput=facts.goodput.share if needs_goodput else None,
        throughput=throughput(facts.summary.updates),
        summary=own_summary(run),
        hints=_hints(facts, {finding.rule for finding in found}),
        unchecked=unchecked(facts),
    )


def _ends_first(found: list[Finding]) -> list[Finding]:
    """How a run ended comes first."""
    return sorted(found, key=lambda f: (f.rule not in ENDED_BY, SEVERITIES.index(f.severity)))


def _left(facts: Facts, undone: Undone, found: list[Finding]) -> TimeLeft | None:
    left = time_left(facts, undone) if facts.status == "running" else None
    if left is not None and any(finding.rule == "hang" for finding in found):
        # Nobody knows: at the pace of before it would be soon, and it is not.
        left = replace(left, ns=None)
    return left


def _highest(table: pl.DataFrame, column: str) -> int | None:
    value = table[column].max()
    return int(value) if isinstance(value, int) else None


def _time(facts: Facts) -> list[PhaseLine]:
    """All of the wall time: what took longest first, ``other`` last."""
    lines = []
    order = sorted(facts.table.items(), key=lambda line: (line[0] == "other", -line[1]))
    for phase, ns in order:
        each = (
            facts.steady[phase] if phase in facts.steady.columns else pl.Series([], dtype=pl.Int64)
        )
        each = each.filter(each > 0)
        # Rare ones are no part of a step.
        typical = each.len() >= 20 and each.len() >= facts.steady.height / 2
        lines.append(
            PhaseLine(
                phase_title(phase),
                ns,
                facts.part_of_wall(ns),
                _quantile(each, 0.5) if typical else None,
                _quantile(each, 0.95) if typical else None,
            )
        )
    return lines


def _quantile(values: pl.Series, share: float) -> int:
    found = values.quantile(share, "nearest")
    return int(found) if found is not None else 0


def _background(facts: Facts) -> list[BackgroundLine]:
    table = background(facts.accounts).group_by("kind").agg(pl.col("ns").sum()).sort("kind")
    return [BackgroundLine(str(kind), int(ns)) for kind, ns in table.iter_rows()]


def _steps(facts: Facts, undone: Undone) -> StepLine | None:
    """Typical steps are those after the first few; the longest is the longest of all."""
    every = completed(facts.steps, undone)
    steady = completed(facts.steady, undone) if facts.steady.height >= 20 else every
    if steady.is_empty():
        return None
    # A step behind these is one that did not come to its end.
    every = every.filter(pl.col("step") <= pl.lit(steady["step"].max()))
    usual, ns = _own_ns(steady), _own_ns(every)
    longest = ns.arg_max() or 0
    return StepLine(
        _count_steps(facts) - sum(map(len, undone.values())),
        _quantile(usual, 0.5),
        _quantile(usual, 0.95),
        int(ns[longest]),
        int(every["step"][longest]),
        _count_epochs(facts),
    )


def _own_ns(steps: pl.DataFrame) -> pl.Series:
    """How long steps take, without validation and checkpoints between them."""
    return steps.select(pl.col("period_ns") - pl.sum_horizontal(BETWEEN)).to_series()


def _count_epochs(facts: Facts) -> int | None:
    """Those that were begun, however often their numbers begin anew; with restarts, the different ones."""
    parts = [part for part in facts.accounts.parts if part.iterations is not None]
    if not parts:
        return None
    epochs = [part.iterations.epochs for part in parts if part.iterations is not None]
    if facts.attempts > 1:
        count = len(np.setdiff1d(np.concatenate(epochs), [-1]))
    else:
        longest = max(epochs, key=len)
        known = longest[longest >= 0]
        count = int(np.count_nonzero(np.diff(known)) + 1) if len(known) else 0
    return count or None


def _count_steps(facts: Facts) -> int:
    """The different ones of each attempt, whichever ranks did them."""
    found: dict[int, NDArray[np.int64]] = {}
    for part in facts.accounts.parts:
        if part.iterations is not None:
            steps, known = part.iterations.steps, found.get(part.attempt)
            if known is None:
                found[part.attempt] = np.unique(steps) if (np.diff(steps) <= 0).any() else steps
            elif not np.array_equal(steps, known):
                found[part.attempt] = np.union1d(steps, known)
    return sum(len(steps) for steps in found.values())


def _values(facts: Facts) -> list[ValueLine]:
    """Those that have a better and a worse first, then what else was logged."""
    from stepwell.analysis.compare.metrics import goal_of

    names = facts.curves.names
    goals = {name: goal_of(name) for name in names}
    judged = [name for name in names if goals[name]]
    others = [name for name in names if not goals[name] and "/group_" not in name]
    chosen = (judged + others)[:MOST_VALUES]
    return [_value(facts, facts.curves.curve(name), goals[name]) for name in chosen]


def _value(facts: Facts, curve: Curve, goal: str | None) -> ValueLine:
    if len(curve.odd) and (not len(curve) or curve.odd[-1] > curve.steps[-1]):
        step = int(curve.odd[-1])
        rows = facts.curves.rows(curve.name).filter(pl.col("step") == step)
        last = float(np.mean(rows["value"].to_numpy()))
    else:
        last, step = float(curve.values[-1]), int(curve.steps[-1])
    if goal is None or not len(curve):
        return ValueLine(curve.name, last, step, nonfinite=len(curve.odd))
    choose = np.argmin if goal == "lower" else np.argmax
    place = int(choose(curve.values))
    best, best_step = float(curve.values[place]), int(curve.steps[place])
    return ValueLine(curve.name, last, step, best, best_step, len(curve.odd))


def _hints(facts: Facts, rules: set[str]) -> list[Hint]:
    """What would have to be recorded for more to be said; the two most useful ones."""
    hints = []
    if facts.steps.is_empty():
        hints.append(
            Hint(
                "No training step was recorded. With PyTorch, before the loop:",
                ("import stepwell", "stepwell.watch(model, optimizer, loader)"),
            )
        )
        hints.append(
            Hint(
                "In any other loop, for every step:",
                ("run.set_step(step)", 'with run.span("forward"): …'),
            )
        )
        return hints
    told = {"data", "forward", "backward", "optimizer"} & {
        phase
        for phase in facts.steps.columns
        if facts.steps[phase].dtype == pl.Int64 and facts.steps[phase].max()
    }
    if not told:
        hints.append(
            Hint(
                "What steps consist of was not recorded. Around its parts:",
                ('with run.span("wait for data"): …', 'with run.span("forward"): …'),
            )
        )
    is_much = facts.table.get("other", 0) >= MUCH * facts.wall_ns
    if told and is_much and not rules & {"pauses", "uncovered-time", "busy-machine"}:
        share = percent(facts.part_of_wall(facts.table["other"]))
        hints.append(
            Hint(
                f"{share} of the wall time is in no span. To see what it is, around parts of it:",
                ('with stepwell.span("a name of yours"): …',),
            )
        )
    if not facts.curves.names:
        hints.append(
            Hint("No value was logged. In the loop:", ('stepwell.log({"train/loss": loss})',))
        )
    elif not any(
        "val" in name or "eval" in name or "holdout" in name for name in facts.curves.names
    ):
        hints.append(
            Hint(
                "No validation was logged, so overfitting cannot be seen. After validating:",
                ('stepwell.log({"val/loss": loss})',),
            )
        )
    return hints[:2]
