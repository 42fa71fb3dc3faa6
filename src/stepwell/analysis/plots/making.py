"""From the tables of runs to panels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from stepwell.analysis.diagnostics import holdout_table
from stepwell.analysis.plots.choosing import SYSTEM, Choice, by_default, by_request
from stepwell.analysis.plots.curves import (
    LARGEST,
    Curve,
    Mark,
    Numbers,
    Panel,
    default_weight,
    smoothed,
    thinned,
    wants_log,
)
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun

X_AXES = ("step", "epoch", "time")
MOST_EXAMPLES = 60


@dataclass(frozen=True)
class Options:
    """How curves are drawn.

    Attributes:
        x: "step", "epoch" (the mean of each) or "time" (seconds since the run began).
        smooth: how much of the moving average is kept at each value, from 0 to below 1; None: as
            much as suits the number of values.
        rank: only this rank; None: the mean of all, with the least and the greatest.
        by_rank: a curve for each rank instead.
        log: a logarithmic y axis; None: where values are far apart.
    """

    x: str = "step"
    smooth: float | None = None
    rank: int | None = None
    by_rank: bool = False
    log: bool | None = None

    def __post_init__(self) -> None:
        if self.x not in X_AXES:
            raise StepwellError(f"x is {self.x!r}: write one of {', '.join(X_AXES)}")
        if self.smooth is not None and not 0 <= self.smooth < 1:
            raise StepwellError(f"smooth is {self.smooth!r}: write a number from 0 to below 1")


def metric_names(runs: Sequence[RecordedRun]) -> list[str]:
    """The metrics that any of the runs has, in alphabetical order."""
    return sorted({name for run in runs for name in _names(run)})


def panels(
    runs: Sequence[RecordedRun], metrics: Sequence[str] = (), options: Options | None = None
) -> list[Panel]:
    """The curves of one run, or of several in the same axes.

    ``metrics`` are names or patterns, a panel each. Without any it is loss, accuracy, gradient norm,
    weight delta, learning rates and the logits of the holdout, whatever of these is there.
    """
    options = options or Options()
    names = metric_names(runs)
    if not names:
        which = "this run has" if len(runs) == 1 else "these runs have"
        raise StepwellError(
            f'{which} no metrics: log some with run.log({{"loss": loss}}) or stepwell.log(…)'
        )
    choices = by_request(names, metrics) if metrics else by_default(names)
    if len(runs) > 1:
        # A panel for each metric, so that a run has the same colour everywhere.
        each = dict.fromkeys(name for choice in choices for name in choice.names)
        choices = [Choice(name, [name]) for name in each]
    wanted = {name for choice in choices for name in choice.names}
    tables = [_Table(run, wanted, options) for run in runs]
    found = [_panel(choice, tables, options) for choice in choices]
    if not metrics:
        found += _logits(runs, options)
    found = [panel for panel in found if panel.curves]
    if not found:
        raise StepwellError(
            f"nothing was logged at a known {options.x}: write --x step, or say which epoch it is "
            "with run.set_step(step, epoch=…)"
        )
    return found


def _names(run: RecordedRun) -> list[str]:
    return run.metrics().select(pl.col("name").unique()).collect()["name"].to_list()


class _Table:
    """The values of the wanted metrics of one run, with their place on the x axis."""

    def __init__(self, run: RecordedRun, names: set[str], options: Options) -> None:
        self.run = run
        self.options = options
        columns = ["name", "rank", "attempt", "step", "epoch", "time_ns", "value"]
        lazy = run.metrics().filter(pl.col("name").is_in(list(names))).select(columns)
        if options.rank is not None:
            lazy = lazy.filter(pl.col("rank") == options.rank)
        table = lazy.collect()
        if options.rank is not None and table.is_empty():
            ranks = ", ".join(map(str, run.ranks()))
            raise StepwellError(f"rank {options.rank} logged none of this; there are: {ranks}")
        self.table = table.with_columns(x=self._x(table)).drop_nulls("x")

    def _x(self, table: pl.DataFrame) -> pl.Expr:
        if self.options.x != "time":
            return pl.col(self.options.x).cast(pl.Float64)
        documents = self.run.documents()
        began = min((d["started"] for d in documents if d.get("started")), default=None)
        first = table["time_ns"].min() if began is None else began
        return (pl.col("time_ns") - first) / 1e9

    def curves(self, name: str, label: str) -> list[Curve]:
        part = self.table.filter(name=name)
        ranks = sorted(part["rank"].unique().to_list())
        if self.options.by_rank and len(ranks) > 1:
            return [self._curve(part.filter(rank=r), f"{label} rank {r}", False) for r in ranks]
        if self.options.x == "time" and name.startswith(SYSTEM) and len(ranks) > 1:
            # Read at a moment of its own on each rank: there is no mean.
            return [self._curve(part.filter(rank=r), f"{label} rank {r}", False) for r in ranks]
        return [self._curve(part, label, len(ranks) > 1)]

    def _curve(self, part: pl.DataFrame, label: str, several: bool) -> Curve:
        finite = pl.col("value").abs() < LARGEST
        if several or self.options.x == "epoch":
            means = [pl.col("value").mean(), pl.col("value").min().alias("low")]
            means += [pl.col("value").max().alias("high")]
            good = part.filter(finite).group_by("x").agg(means).sort("x")
        else:
            # What stands at one place is in the order in which it was logged.
            good = part.filter(finite).sort("x", "time_ns")
        y = good["value"].to_list()
        weight = self.options.smooth
        weight = default_weight(len(y)) if weight is None else weight
        return thinned(
            Curve(
                label,
                good["x"].to_list(),
                y,
                smoothed(y, weight) if weight else [],
                good["low"].to_list() if several else [],
                good["high"].to_list() if several else [],
                sorted(set(part.filter(~finite)["x"].to_list())),
                count=part.height,
            )
        )

    def marks(self) -> list[Mark]:
        """Where attempts after the first begin."""
        attempts = self.table.group_by("attempt").agg(pl.col("x").min()).sort("attempt")
        rows = attempts.rows()[1:]
        return [Mark(x, f"attempt {attempt}") for attempt, x in rows]


def _panel(choice: Choice, tables: list[_Table], options: Options) -> Panel:
    curves: list[Curve] = []
    for number, table in enumerate(tables):
        for name in choice.names:
            if len(tables) == 1:
                curves += table.curves(name, name)
            else:
                found = table.curves(name, table.run.name)
                same = number if len(found) == 1 else -1
                curves += [dataclasses.replace(curve, colour=same) for curve in found]
    curves = [curve for curve in _told_apart(curves) if curve.x or curve.nonfinite]
    note = f"{choice.left_out} more are not drawn: name those you want" if choice.left_out else ""
    return Panel(
        choice.title,
        "time (s)" if options.x == "time" else options.x,
        curves,
        wants_log(curves) if options.log is None else options.log and _is_positive(curves),
        marks=tables[0].marks() if len(tables) == 1 else [],
        note=note,
    )


def _told_apart(curves: list[Curve]) -> list[Curve]:
    """Two runs of one name get a number."""
    seen: dict[str, int] = {}
    result = []
    for curve in curves:
        seen[curve.label] = seen.get(curve.label, 0) + 1
        number = seen[curve.label]
        label = curve.label if number == 1 else f"{curve.label} #{number}"
        result.append(dataclasses.replace(curve, label=label))
    return result


def _is_positive(curves: list[Curve]) -> bool:
    return all(value > 0 for curve in curves for value in curve.y)


def _logits(runs: Sequence[RecordedRun], options: Options) -> list[Panel]:
    """How sure the model is of the right answer, for each example of the holdout."""
    if len(runs) != 1 or options.x == "time":
        return []
    table = holdout_table(runs[0]).drop_nulls(["margin", options.x])
    table = table.filter(pl.col("margin").abs() < LARGEST)
    if table.is_empty():
        return []
    table = table.with_columns(x=pl.col(options.x).cast(pl.Float64))
    examples = table["example"].unique().sort().to_list()[:MOST_EXAMPLES]
    curves = [
        Curve(f"example {example}", *_columns(part), faint=True, count=part.height)
        for example in examples
        for part in [table.filter(example=example).sort("x")]
    ]
    quantiles = table.group_by("x").agg(
        pl.col("margin").median(),
        pl.col("margin").quantile(0.1).alias("low"),
        pl.col("margin").quantile(0.9).alias("high"),
    )
    ordered = quantiles.sort("x")
    x, y = _columns(ordered)
    low, high = ordered["low"].to_list(), ordered["high"].to_list()
    curves.append(Curve("median, 10–90 %", x, y, low=low, high=high, count=len(x)))
    title = "Holdout logits: right class minus best other"
    return [Panel(title, options.x, curves, zero=True)]


def _columns(table: pl.DataFrame) -> tuple[Numbers, Numbers]:
    return table["x"].to_list(), table["margin"].to_list()
