"""The metrics of a run, and their curves with as many points as a screen has room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell._core.checks import one_of
from stepwell.analysis.compare.axis import amounts_if_known
from stepwell.analysis.detail.source import began_ns
from stepwell.analysis.findings.curves import goal_of
from stepwell.reading import RecordedRun
from stepwell.reading.run import SYSTEM

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

AXES = ("step", "epoch", "samples", "tokens", "time")
WAYS = ("mean", "rank", "spread")
MAX_POINTS = 20_000
MAX_SERIES = 256
"""MetricSeries in one answer."""
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
    """Return the metrics of a run."""
    table = run.metrics().select("name", "rank", "step", "epoch", "time_ns", "value").collect()
    infos = [_info(str(key[0]), part) for key, part in table.group_by("name")]
    axes = ["step", "time"]
    axes += ["epoch"] if table["epoch"].is_not_null().any() else []
    axes += [by for by in ("samples", "tokens") if amounts_if_known(run, by) is not None]
    infos.sort(key=lambda info: (info.name.startswith(SYSTEM), info.name))
    return MetricList(infos, [axis for axis in AXES if axis in axes])


def _info(name: str, rows: pl.DataFrame) -> MetricInfo:
    mean = rows.group_by("step").agg(pl.col("value").mean()).sort("step")
    steps, values = mean["step"].to_numpy(), mean["value"].to_numpy()
    finite = np.isfinite(values)
    goal, best, best_step = goal_of(name), None, None
    if goal is not None and finite.any():
        chosen = np.flatnonzero(finite)
        choose = np.argmin if goal == "lower" else np.argmax
        place = chosen[int(choose(values[chosen]))]
        best, best_step = float(values[place]), int(steps[place])
    return MetricInfo(
        name=name,
        count=rows.height,
        ranks=rows["rank"].n_unique(),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        last=float(values[-1]),
        best=best,
        best_step=best_step,
        goal=goal,
        nonfinite=int((~np.isfinite(rows["value"].to_numpy())).sum()),
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
            began.
        by: ``mean`` over ranks, each ``rank``, or ``spread``: the mean with the lowest and highest rank.
        rank: only this rank.
        start: the least position on the axis.
        end: the largest position on the axis.
        points: the maximum number of points of each curve.
    """
    one_of(*AXES).check("x", x)
    one_of(*WAYS).check("by", by)
    points = min(max(2, points), MAX_POINTS)
    wanted = pl.col("name").is_in(list(names))
    if rank is not None:
        wanted &= pl.col("rank") == rank
    columns = ("name", "rank", "step", "epoch", "time_ns", "value")
    table = run.metrics().filter(wanted).select(columns).collect()
    axis = _Axis(run, x)
    series: list[MetricSeries] = []
    for name in dict.fromkeys(names):
        rows = table.filter(pl.col("name") == name)
        if rows.is_empty():
            continue
        if by == "rank":
            for number in rows["rank"].unique().sort().to_list():
                part = rows.filter(pl.col("rank") == number)
                series.append(_series(name, number, part, axis, False, start, end, points))
        else:
            series.append(_series(name, rank, rows, axis, by == "spread", start, end, points))
    return series[:MAX_SERIES]


class _Axis:
    """Positions of values on an axis."""

    def __init__(self, run: RecordedRun, x: str) -> None:
        self._x = x
        self._began = began_ns(run.documents())
        self._amounts = amounts_if_known(run, x) if x in ("samples", "tokens") else None

    def at(self, table: pl.DataFrame) -> Floats:
        """Return the position of each row."""
        steps = table["step"].to_numpy().astype(np.float64)
        if self._x == "step":
            return steps
        if self._x == "time":
            return (table["time_ns"].to_numpy() - self._began).astype(np.float64)
        if self._x == "epoch":
            return table["epoch"].cast(pl.Float64).fill_null(np.nan).to_numpy()
        if self._amounts is None:
            return np.full(len(steps), np.nan)
        return self._amounts.after(steps + 1)


def _series(
    name: str,
    rank: int | None,
    rows: pl.DataFrame,
    axis: _Axis,
    is_spread: bool,
    start: float | None,
    end: float | None,
    points: int,
) -> MetricSeries:
    value = pl.col("value")
    table = (
        rows.group_by("step")
        .agg(
            value.mean(),
            value.min().alias("low"),
            value.max().alias("high"),
            pl.col("time_ns").max(),
            pl.col("epoch").max(),
        )
        .sort("step")
    )
    at = axis.at(table)
    values = table["value"].to_numpy()
    low = table["low"].to_numpy() if is_spread else values
    high = table["high"].to_numpy() if is_spread else values
    inside = ~np.isnan(at)
    inside &= at >= (-np.inf if start is None else start)
    inside &= at <= (np.inf if end is None else end)
    finite = np.isfinite(values)
    odd = [
        OddValue(float(place), _word(value))
        for place, value in zip(at[inside & ~finite], values[inside & ~finite], strict=True)
    ]
    chosen = inside & finite
    order = np.argsort(at[chosen], kind="stable")
    x, y, lows, highs = (part[chosen][order] for part in (at, values, low, high))
    count = len(x)
    is_downsampled = count > points
    if is_downsampled:
        x, y, lows, highs = downsample(x, y, lows, highs, points)
    has_band = is_downsampled or is_spread
    return MetricSeries(
        name,
        rank,
        count,
        is_downsampled,
        x,
        y,
        lows if has_band else None,
        highs if has_band else None,
        odd[:MAX_ODD],
    )


def downsample(
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


def _word(value: Any) -> str:
    if np.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"
