"""The metrics of a run, and their curves with as many points as a screen has room for."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from stepwell._core import clock
from stepwell._core.checks import one_of
from stepwell.analysis.cache import cached_json, memory, shelf_path
from stepwell.analysis.compare.axis import COUNTED, Amounts, amounts_if_known
from stepwell.analysis.detail.columns import Floats, Values, metric_columns
from stepwell.analysis.detail.source import ProcessSource, RunSource
from stepwell.analysis.findings.curves import goal_of
from stepwell.analysis.timeline.intervals import Ints
from stepwell.journal.names import MAX_NAME
from stepwell.reading import RecordedRun
from stepwell.reading.run import SYSTEM
from stepwell.reading.tables import ProcessTables

AXES = ("step", "epoch", "samples", "tokens", "time")
WAYS = ("mean", "rank", "spread")
MAX_POINTS = 20_000
MAX_SERIES = 256
"""MetricSeries in one answer."""
MAX_METRICS = 10_000
MOST_LOADED = 20_000_000
"""Values of a run that are read at once; of more, each metric is read by itself."""
LIVE_AMOUNTS_NS = 10_000_000_000
"""Samples and tokens of a live run are read again after this time."""
MAX_ODD = 1000
"""Values that are not finite in one series: the first ones are kept."""


@dataclass(frozen=True)
class MetricInfo:
    """One metric. ``last`` and ``best`` are of the mean over ranks; ``best`` is None without a goal."""

    name: str
    count: int
    ranks: int
    first_step: int | None
    last_step: int | None
    last: float | None
    best: float | None
    best_step: int | None
    goal: str | None
    nonfinite: int


@dataclass(frozen=True)
class MetricList:
    """The metrics of a run in the order of their names, and the axes that they can be drawn over."""

    metrics: list[MetricInfo]
    axes: list[str]


@dataclass(frozen=True)
class OddValue:
    """A value that is not finite: ``nan``, ``inf`` or ``-inf``."""

    x: float
    value: str


@dataclass(frozen=True)
class MetricSeries:
    """One curve.

    Attributes:
        rank: its rank; None for the mean of all ranks, or their spread.
        count: the number of values before downsampling.
        is_downsampled: whether several values were merged into one point: then ``y`` is their mean, and
            ``low`` and ``high`` are the lowest and the highest of them.
        x: positions, ascending.
        y: finite values.
        low, high: the band around ``y``; None without one.
        odd: the values that are not finite, which are not in ``y``.
    """

    name: str
    rank: int | None
    count: int
    is_downsampled: bool
    x: Floats
    y: Floats
    low: Floats | None
    high: Floats | None
    odd: list[OddValue]


def metric_list(run: RecordedRun) -> MetricList:
    """Return the metrics of a run: those of the training by name, then those of the machine."""
    metrics = RunMetrics(run)
    path = shelf_path(run.folder, "metric list")
    if metrics.source.is_live:
        content = _listed(metrics)
    else:
        content = cached_json(path, metrics.source.signature(), lambda: _listed(metrics))
    return MetricList([MetricInfo(**info) for info in content["metrics"]], content["axes"])


def _listed(metrics: RunMetrics) -> dict[str, Any]:
    if sum(metrics.counts.values()) < MOST_LOADED:
        metrics.load()
    # Longer names are not from a recorder.
    names = [name for name in metrics.counts if len(name) <= MAX_NAME]
    names = sorted(names, key=lambda name: (name.startswith(SYSTEM), name))[:MAX_METRICS]
    infos = [asdict(_info(name, metrics.values(name))) for name in names]
    axes = {"step", "time"}
    axes |= {"epoch"} if metrics.epochs() is not None else set()
    axes |= {by for by in ("samples", "tokens") if metrics.amounts(by) is not None}
    return {"metrics": infos, "axes": [axis for axis in AXES if axis in axes]}


def _info(name: str, rows: Values) -> MetricInfo:
    curve = _grouped(rows, rows.steps)
    steps, values = curve.steps, curve.values
    goal, best, best_step = goal_of(name), None, None
    finite = np.flatnonzero(np.isfinite(values))
    if goal is not None and len(finite):
        choose = np.argmin if goal == "lower" else np.argmax
        place = finite[int(choose(values[finite]))]
        best, best_step = float(values[place]), int(steps[place])
    return MetricInfo(
        name=name,
        count=len(rows.values),
        ranks=len(np.unique(rows.ranks)),
        first_step=int(steps[0]) if len(steps) else None,
        last_step=int(steps[-1]) if len(steps) else None,
        last=float(values[-1]) if len(values) else None,
        best=best,
        best_step=best_step,
        goal=goal,
        nonfinite=int(np.count_nonzero(~np.isfinite(rows.values))),
    )


def series_at(
    run: RecordedRun,
    names: Sequence[str],
    *,
    x: str = "step",
    by: str = "mean",
    rank: int | None = None,
    start: float | None = None,
    end: float | None = None,
    points: int = 800,
) -> list[MetricSeries]:
    """Return the curves of some metrics. Names that the run does not have are left out.

    Args:
        run: the run.
        names: names of metrics.
        x: ``step``, ``epoch`` (with fractions), ``samples``, ``tokens``, or ``time`` in ns since the run
            began. Metrics of the machine are drawn value by value over time, others step by step.
        by: ``mean`` over ranks, each ``rank``, or ``spread``: the mean with the lowest and highest rank.
        rank: only this rank.
        start: the least position on the axis.
        end: the largest position on the axis.
        points: the maximum number of points of each curve.
    """
    one_of(*AXES).check("x", x)
    one_of(*WAYS).check("by", by)
    metrics = RunMetrics(run, None if rank is None else [rank])
    window = -np.inf if start is None else start, np.inf if end is None else end
    points = min(max(2, points), MAX_POINTS)
    series: list[MetricSeries] = []
    for name in dict.fromkeys(names):
        if name not in metrics.counts or len(series) >= MAX_SERIES:
            continue
        rows = metrics.values(name)
        if by == "rank":
            numbers = np.unique(rows.ranks)[: MAX_SERIES - len(series)].tolist()
            parts = [(number, rows.where(rows.ranks == number)) for number in numbers]
        else:
            parts = [(rank, rows)]
        for number, part in parts:
            is_timed = x == "time" and name.startswith(SYSTEM)
            curve = _grouped(part, part.times if is_timed else part.steps)
            at = metrics.places(x, curve)
            series.append(_series(name, number, curve, at, window, points, by == "spread"))
    return series


# Values


@dataclass(frozen=True)
class StepCurve:
    """One value for each step, or for each time: the mean, the lowest and the highest."""

    steps: Ints
    times: Ints
    values: Floats
    low: Floats
    high: Floats
    is_single: bool
    """Whether all values are of one rank."""


class RunMetrics:
    """The metrics of a run, or of some of its ranks. See ``ProcessMetrics`` for ``is_cached``."""

    def __init__(
        self, run: RecordedRun, ranks: Sequence[int] | None = None, is_cached: bool = True
    ) -> None:
        self._run = run
        self._ranks = None if ranks is None else tuple(ranks)
        self.source = RunSource(run)
        self.columns = metric_columns(self.source, ranks, is_cached)

    @cached_property
    def counts(self) -> Counter[str]:
        """The number of values of each metric."""
        counts: Counter[str] = Counter()
        for columns in self.columns:
            counts.update(columns.counts)
        return counts

    def load(self) -> None:
        """Read all metrics at once, if they are all needed."""
        for columns in self.columns:
            columns.load()

    def values(self, name: str) -> Values:
        """Return the values of a metric without those that a later attempt logged again at the same step.

        Those of ended runs are remembered.
        """
        key = "values", str(self._run.folder), self._signature, self._ranks, name

        def read() -> Values:
            return _latest([(c.source, c.values(name)) for c in self.columns])

        if self.source.is_live:
            return read()
        return memory.kept(key, read, lambda rows: 32 * len(rows.values) + 500)

    def curve(self, name: str) -> StepCurve:
        """Return the mean over ranks of a metric, step by step."""
        rows = self.values(name)
        return _grouped(rows, rows.steps)

    def places(self, x: str, curve: StepCurve) -> Floats:
        """Return the position of each value of a curve on an axis, NaN for none."""
        steps = curve.steps.astype(np.float64)
        if x == "step":
            return steps
        if x == "time":
            return curve.times.astype(np.float64)
        amounts = self.epochs() if x == "epoch" else self.amounts(x)
        if amounts is None:
            return np.full(len(steps), np.nan)
        # The samples and tokens of a step count when it is completed.
        return amounts.after(steps if x == "epoch" else steps + 1)

    def epochs(self) -> Amounts | None:
        """Return the epoch at each step, with fractions; None if no epoch was recorded."""
        first: dict[int, int] = {}
        for columns in self.columns:
            if columns.source.is_worker or columns.source.rank != self.columns[0].source.rank:
                continue
            log = columns.steps
            known = np.flatnonzero((log.epochs >= 0) & (log.steps >= 0))
            epochs, places = np.unique(log.epochs[known], return_index=True)
            for epoch, place in zip(epochs.tolist(), known[places].tolist(), strict=True):
                first[int(log.steps[place])] = epoch
        steps = sorted(first)
        # Later attempts may have begun an epoch again: epochs must ascend with the steps.
        begun = np.maximum.accumulate(np.array([first[s] for s in steps], np.float64))
        return Amounts(np.array(steps, np.float64), begun, "epoch") if steps else None

    def amounts(self, by: str) -> Amounts | None:
        """Return the samples or tokens of the steps of all ranks; None if they were not recorded."""
        if self.source.is_live:
            key = "amounts", str(self._run.folder), by, int(clock.wall() / LIVE_AMOUNTS_NS)
            content = memory.kept(
                key, lambda: self._amounts(by), lambda made: 16 * len(made["steps"]) + 500
            )
        else:
            path = shelf_path(self._run.folder, "amounts", by)
            content = cached_json(path, self._signature, lambda: self._amounts(by))
        if not content["steps"]:
            return None
        return Amounts(np.array(content["steps"]), np.array(content["amounts"]), content["source"])

    def _amounts(self, by: str) -> dict[str, Any]:
        # The axis is the same whatever the ranks of the curves, and it is cached for all of them.
        whole = self if self._ranks is None else RunMetrics(self._run)
        amounts = amounts_if_known(_CountedRun(self._run, whole, by), by)
        if amounts is None:
            return {"steps": [], "amounts": [], "source": ""}
        steps, values = amounts.steps.tolist(), amounts.amounts.tolist()
        return {"steps": steps, "amounts": values, "source": amounts.source}

    @cached_property
    def _signature(self) -> str:
        return self.source.signature()


class _CountedRun(RecordedRun):
    """A run with only those metrics that count samples or tokens, which are few."""

    def __init__(self, run: RecordedRun, metrics: RunMetrics, by: str) -> None:
        super().__init__(run.folder, run.mirror, run.stored_bytes)
        self._metrics = metrics
        self._names = [name for name in metrics.counts if re.search(COUNTED[by], name)]

    def metrics(self, overwritten: bool = False) -> pl.LazyFrame:
        """Return name, step and value of these metrics."""
        schema = {"name": pl.String, "step": pl.Int64, "value": pl.Float64}
        frames = [pl.DataFrame(schema=schema)]
        for name in self._names:
            rows = self._metrics.values(name)
            columns = {"name": [name] * len(rows.steps), "step": rows.steps, "value": rows.values}
            frames.append(pl.DataFrame(columns, schema=schema))
        return pl.concat(frames).lazy()

    def by_process(self, rank: int | None = None, partial: bool = False) -> Iterator[ProcessTables]:
        """Yield the records of each process; steps are read only when needed."""
        yield from super().by_process(rank, partial=True)


def _latest(parts: list[tuple[ProcessSource, Values]]) -> Values:
    """Return the values of all processes without those that a later attempt logged again."""
    parts = sorted(parts, key=lambda part: -part[0].attempt)
    kept: list[Values] = []
    later: dict[int, list[Ints]] = {}
    for _, group in itertools.groupby(parts, key=lambda part: part[0].attempt):
        members = list(group)
        for source, values in members:
            if source.rank in later:
                again = np.isin(values.steps, np.concatenate(later[source.rank]))
                values = values.where(~again)
            kept.append(values)
        for source, values in members:
            later.setdefault(source.rank, []).append(values.steps)
    return Values.joined(kept)


def _grouped(rows: Values, key: Ints) -> StepCurve:
    """Return the mean, lowest and highest value for each key, in order."""
    is_single = not len(rows.ranks) or bool((rows.ranks == rows.ranks[0]).all())
    if (key[1:] > key[:-1]).all():
        return StepCurve(rows.steps, rows.times, rows.values, rows.values, rows.values, is_single)
    order = np.argsort(key, kind="stable")
    key, values = key[order], rows.values[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    counts = np.diff(np.append(first, len(key)))
    with np.errstate(invalid="ignore"):
        return StepCurve(
            rows.steps[order][first],
            np.maximum.reduceat(rows.times[order], first),
            np.add.reduceat(values, first) / counts,
            np.minimum.reduceat(values, first),
            np.maximum.reduceat(values, first),
            is_single,
        )


# Points


def _series(
    name: str,
    rank: int | None,
    curve: StepCurve,
    at: Floats,
    window: tuple[float, float],
    points: int,
    is_spread: bool,
) -> MetricSeries:
    # The band of a mean over ranks is that of the means. Several values of one rank at a step have their own.
    has_own_band = is_spread or curve.is_single
    low = curve.low if has_own_band else curve.values
    high = curve.high if has_own_band else curve.values
    inside = (at >= window[0]) & (at <= window[1])
    finite = np.isfinite(curve.values)
    strange = np.flatnonzero(inside & ~finite)[:MAX_ODD]
    chosen = np.flatnonzero(inside & finite)
    if (at[chosen][1:] < at[chosen][:-1]).any():
        chosen = chosen[np.argsort(at[chosen], kind="stable")]
    x, y, low, high = at[chosen], curve.values[chosen], low[chosen], high[chosen]
    count = len(x)
    if count > points:
        x, y, low, high = _merged(x, y, low, high, points)
    has_band = is_spread or count > points or bool((low != high).any())
    return MetricSeries(
        name=name,
        rank=rank,
        count=count,
        is_downsampled=count > points or (has_band and not is_spread),
        x=x,
        y=y,
        low=low if has_band else None,
        high=high if has_band else None,
        odd=[OddValue(float(at[i]), str(float(curve.values[i]))) for i in strange],
    )


def _merged(
    x: Floats, y: Floats, low: Floats, high: Floats, points: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """Merge values in buckets of equal width: mean of x and y, lowest low, highest high."""
    first, width = x[0], (x[-1] - x[0]) / points
    bucket = np.minimum(((x - first) / width).astype(np.int64), points - 1) if width else x * 0
    begin = np.flatnonzero(np.concatenate([[True], bucket[1:] != bucket[:-1]]))
    counts = np.diff(np.append(begin, len(x)))
    return (
        np.add.reduceat(x, begin) / counts,
        np.add.reduceat(y, begin) / counts,
        np.minimum.reduceat(low, begin),
        np.maximum.reduceat(high, begin),
    )
