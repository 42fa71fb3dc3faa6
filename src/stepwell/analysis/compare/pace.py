"""The pace of runs: step time by phase, throughput and goodput, and the phases that make the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import polars as pl

from stepwell._core.errors import StepwellError
from stepwell.analysis.compare.axis import amounts_if_known
from stepwell.analysis.compare.variants import SIGNIFICANT, welch
from stepwell.analysis.goodput import goodput
from stepwell.analysis.goodput.job import Evidence
from stepwell.analysis.ranks.grid import make_grids
from stepwell.analysis.timeline import phase_columns, steps, timelines
from stepwell.analysis.timeline.tables import WARM_UP
from stepwell.reading import RecordedRun

STEP = "step"
FEWEST = 20
"""Least number of steps to judge which run is faster."""
BLOCKS = 10
"""Number of parts of a run whose means show how much its pace varies."""
CERTAIN = 0.01
"""Highest p-value for a difference between single runs."""
SLOWER = 1.1
"""Least ratio of step times of single runs: smaller ones may be due to the machines."""
SLOWER_AGAIN = 1.03
"""Least ratio if there are repeats, which show how much step times vary."""


@dataclass(frozen=True)
class PhaseTime:
    """The time of one phase in the steps of a run. The phase ``step`` is the whole step."""

    phase: str
    mean_ns: float
    p50_ns: float
    share: float


@dataclass(frozen=True)
class Pace:
    """The pace of a run without its first steps.

    Phases are means over steps and ranks, and sum to the step.
    """

    steps: int
    step_ns: float
    p50_ns: float
    p95_ns: float
    phases: list[PhaseTime]
    steps_per_second: float
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    goodput: float | None = None
    """Productive share of the wall time of all attempts."""


@dataclass(frozen=True)
class Cause:
    """A phase and its additional time per step in the slower run; negative if it takes less."""

    phase: str
    ns: float
    share: float
    """Share of the difference."""


@dataclass(frozen=True)
class PaceComparison:
    """The fastest variant against the slowest. Each may be several runs."""

    fast: tuple[int, ...]
    slow: tuple[int, ...]
    fast_ns: float
    slow_ns: float
    """Mean time of a step."""
    p: float
    causes: list[Cause]
    """The phases that make the difference, the largest first. They sum to it."""

    @property
    def more_ns(self) -> float:
        """The additional time of a step of the slow variant."""
        return self.slow_ns - self.fast_ns

    @property
    def ratio(self) -> float:
        """The ratio of the step times, slow to fast."""
        return self.slow_ns / self.fast_ns if self.fast_ns else 1.0


def compare_paces(
    runs: Sequence[RecordedRun], variants: Sequence[Sequence[int]]
) -> tuple[list[Pace | None], PaceComparison | None]:
    """Return the pace of each run, and the fastest variant against the slowest if there is a difference.

    The pace of a run that recorded no step is None. ``variants`` are groups of runs, by their index.
    """
    tables, every = [], []
    for run in runs:
        table, pace = _read(run)
        tables.append(table)
        every.append(pace)
    judged = {i: pace for i, pace in enumerate(every) if pace is not None and pace.steps >= FEWEST}
    groups = [tuple(group) for group in variants if all(i in judged for i in group)]
    if len(groups) < 2:
        return every, None
    means = {group: fmean([judged[i].step_ns for i in group]) for group in groups}
    fast, slow = min(groups, key=means.__getitem__), max(groups, key=means.__getitem__)
    if len(fast) > 1 and len(slow) > 1:
        p = welch([judged[i].step_ns for i in fast], [judged[i].step_ns for i in slow])
        most_p, least_ratio = SIGNIFICANT, SLOWER_AGAIN
    else:
        p = welch(_block_means(tables[fast[0]]), _block_means(tables[slow[0]]))
        most_p, least_ratio = CERTAIN, SLOWER
    causes = _causes([judged[i] for i in fast], [judged[i] for i in slow])
    # There are enough values. So without a p-value they do not vary at all: the difference is certain.
    comparison = PaceComparison(
        fast, slow, means[fast], means[slow], 0.0 if p is None else p, causes
    )
    is_slower = comparison.p < most_p and comparison.ratio >= least_ratio
    return every, comparison if is_slower else None


def _read(run: RecordedRun) -> tuple[pl.DataFrame, Pace | None]:
    """Return the steps of a run without the first ones, if enough are left, and its pace."""
    parts = timelines(run)
    table = steps(parts)
    steady = table.filter(pl.int_range(pl.len()).over("rank", "attempt") >= WARM_UP)
    try:
        share = goodput(run, evidence=Evidence(parts, make_grids(parts))).share
    except StepwellError:
        share = None
    table = steady if steady.height >= FEWEST else table
    return table, None if table.is_empty() else _pace(run, table, share)


def _pace(run: RecordedRun, table: pl.DataFrame, productive: float | None) -> Pace:
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
        productive,
    )


def _middle(values: pl.Series) -> float:
    return float(values.median() or 0)  # type: ignore[arg-type]


def _each(run: RecordedRun, by: str, table: pl.DataFrame, rate: float) -> float | None:
    """Return samples or tokens per second; None if the amount of a step is unknown."""
    amounts = amounts_if_known(run, by)
    if amounts is None:
        return None
    first, last = float(table["step"].min()), float(table["step"].max()) + 1  # type: ignore[arg-type]
    begin, end = amounts.after(np.array([first, last]))
    return float(end - begin) / (last - first) * rate


def _block_means(table: pl.DataFrame) -> list[float]:
    """Return the mean step time of parts of a run, so long that occasional validation is in all of them."""
    each = table.group_by("attempt", "step", maintain_order=True).agg(pl.col("period_ns").mean())
    parts = np.array_split(each["period_ns"].to_numpy(), BLOCKS)
    return [float(part.mean()) for part in parts if len(part)]


def _causes(fast: list[Pace], slow: list[Pace]) -> list[Cause]:
    before, after = _phases(fast), _phases(slow)
    more = sum(after.values()) - sum(before.values())
    causes = [
        Cause(phase, ns, ns / more if more else 0.0)
        for phase in dict.fromkeys([*after, *before])
        if (ns := after.get(phase, 0.0) - before.get(phase, 0.0))
    ]
    return sorted(causes, key=lambda cause: -abs(cause.ns))


def _phases(paces: list[Pace]) -> dict[str, float]:
    """Return the time of each phase in a step, the mean over runs."""
    times: dict[str, float] = {}
    for pace in paces:
        for phase in pace.phases[1:]:
            times[phase.phase] = times.get(phase.phase, 0.0) + phase.mean_ns / len(paces)
    return times
