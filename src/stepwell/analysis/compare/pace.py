"""How fast runs were: the time of a step by phase, throughput, goodput, and what makes the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepwell.analysis.compare.axis import amounts_if_known
from stepwell.analysis.compare.significance import SIGNIFICANT, mean, welch
from stepwell.analysis.goodput import goodput
from stepwell.analysis.time import phase_columns, steps
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun

STEP = "step"
WARM_UP = 3
"""Steps at the beginning of an attempt that are slow as a rule."""
FEWEST = 20
"""Steps that there must be to say which run was faster."""
BLOCKS = 10
"""Into so many stretches the steps of a run are cut, to see how much its pace varies by itself."""
CERTAIN = 0.01
SLOWER = 1.1
"""A step of a single run that takes less than this times as long is as fast: machines vary."""
SLOWER_AGAIN = 1.03
"""The same where there are repeats, which tell how much they vary."""


@dataclass(frozen=True)
class PhaseTime:
    """One phase in the steps of a run; ``step`` is all of them together."""

    phase: str
    mean_ns: float
    p50_ns: float
    share: float


@dataclass(frozen=True)
class Pace:
    """How fast a run was, its first steps left out. Phases are means over steps and ranks; they sum to it."""

    steps: int
    step_ns: float
    p50_ns: float
    p95_ns: float
    phases: list[PhaseTime]
    steps_per_second: float
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    goodput: float | None = None
    """Of the whole wall time of all attempts, what was productive."""


@dataclass(frozen=True)
class Cause:
    """A phase and how much more of a step it takes in the slower run; negative where it is less."""

    phase: str
    ns: float
    share: float
    """Of the difference."""


@dataclass(frozen=True)
class PaceComparison:
    """The fastest against the slowest: of variants, each of which may be several runs."""

    fast: tuple[int, ...]
    slow: tuple[int, ...]
    fast_ns: float
    slow_ns: float
    """How long a step takes."""
    p: float
    causes: list[Cause]
    """The phases that make the difference, the greatest first; they sum to it."""

    @property
    def more_ns(self) -> float:
        """By how much a step of the slow one takes longer."""
        return self.slow_ns - self.fast_ns

    @property
    def ratio(self) -> float:
        """So many times as long."""
        return self.slow_ns / self.fast_ns if self.fast_ns else 1.0


def paces(runs: Sequence[RecordedRun]) -> list[Pace | None]:
    """The pace of each run; None where no step was recorded."""
    return [_pace(run, steady) for run, steady in zip(runs, _tables(runs), strict=True)]


def compare_paces(
    runs: Sequence[RecordedRun], variants: Sequence[Sequence[int]]
) -> tuple[list[Pace | None], PaceComparison | None]:
    """The pace of each run; and the fastest variant against the slowest, if there is a difference.

    ``variants`` are groups of runs, by their places.
    """
    tables = _tables(runs)
    found = [_pace(run, steady) for run, steady in zip(runs, tables, strict=True)]
    known = {i: pace for i, pace in enumerate(found) if pace is not None and pace.steps >= FEWEST}
    groups = [tuple(group) for group in variants if all(i in known for i in group)]
    if len(groups) < 2:
        return found, None
    means = {group: mean([known[i].step_ns for i in group]) for group in groups}
    fast, slow = min(groups, key=means.__getitem__), max(groups, key=means.__getitem__)
    repeated = len(fast) > 1 and len(slow) > 1
    if repeated:
        test = welch([known[i].step_ns for i in fast], [known[i].step_ns for i in slow])
    else:
        test = welch(_stretches(tables[fast[0]]), _stretches(tables[slow[0]]))
    # There are enough of both, so without a test they do not vary at all: what differs is no chance.
    p = 0.0 if test is None else test.p
    causes = _causes([known[i] for i in fast], [known[i] for i in slow])
    made = PaceComparison(fast, slow, means[fast], means[slow], p, causes)
    limits = (SIGNIFICANT, SLOWER_AGAIN) if repeated else (CERTAIN, SLOWER)
    is_slower = made.p < limits[0] and made.ratio >= limits[1]
    return found, made if is_slower else None


def _tables(runs: Sequence[RecordedRun]) -> list[pl.DataFrame]:
    order = pl.int_range(pl.len()).over("rank", "attempt")
    tables = [steps(run) for run in runs]
    steady = [table.filter(order >= WARM_UP) for table in tables]
    return [s if s.height >= FEWEST else t for s, t in zip(steady, tables, strict=True)]


def _pace(run: RecordedRun, table: pl.DataFrame) -> Pace | None:
    if table.is_empty():
        return None
    each = table["period_ns"]
    whole = float(each.sum())
    count = table.select("attempt", "step").n_unique()
    each_ns = whole / table.height
    sums = {phase: float(table[phase].sum()) for phase in phase_columns(table)}
    phases = [
        PhaseTime(phase, ns / table.height, _middle(table[phase]), ns / whole)
        for phase, ns in sums.items()
        if ns
    ]
    phases.sort(key=lambda phase: -phase.mean_ns)
    rate = 1e9 / each_ns if each_ns else 0.0
    return Pace(
        count,
        each_ns,
        _middle(each),
        float(each.quantile(0.95, "nearest") or 0),
        [PhaseTime(STEP, each_ns, _middle(each), 1.0), *phases],
        rate,
        _each(run, "samples", table, rate),
        _each(run, "tokens", table, rate),
        _goodput(run),
    )


def _middle(values: pl.Series) -> float:
    return float(values.median() or 0)  # type: ignore[arg-type]


def _each(run: RecordedRun, by: str, table: pl.DataFrame, rate: float) -> float | None:
    """Samples or tokens a second; None where nobody knows how many a step has."""
    amounts = amounts_if_known(run, by)
    if amounts is None:
        return None
    first, last = float(table["step"].min()), float(table["step"].max()) + 1  # type: ignore[arg-type]
    begin, end = amounts.after(np.array([first, last]))
    return float(end - begin) / (last - first) * rate


def _goodput(run: RecordedRun) -> float | None:
    try:
        return goodput(run).share
    except StepwellError:
        return None


def _stretches(table: pl.DataFrame) -> list[float]:
    """Means of the step over stretches of a run, so that validation now and then is in all of them."""
    each = table.group_by("attempt", "step", maintain_order=True).agg(pl.col("period_ns").mean())
    parts = np.array_split(each["period_ns"].to_numpy(), BLOCKS)
    return [float(part.mean()) for part in parts if len(part)]


def _causes(fast: list[Pace], slow: list[Pace]) -> list[Cause]:
    before, after = _phases(fast), _phases(slow)
    more = sum(after.values()) - sum(before.values())
    found = [
        Cause(phase, ns, ns / more if more else 0.0)
        for phase in dict.fromkeys([*after, *before])
        if (ns := after.get(phase, 0.0) - before.get(phase, 0.0))
    ]
    return sorted(found, key=lambda cause: -abs(cause.ns))


def _phases(paces: list[Pace]) -> dict[str, float]:
    """The time of each phase in a step, the mean over runs."""
    found: dict[str, float] = {}
    for pace in paces:
        for phase in pace.phases[1:]:
            found[phase.phase] = found.get(phase.phase, 0.0) + phase.mean_ns / len(paces)
    return found
