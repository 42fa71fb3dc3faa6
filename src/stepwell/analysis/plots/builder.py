"""Panels from the tables of runs: the choice of metrics for each, and their curves."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from stepwell._core.checks import one_of
from stepwell._core.errors import StepwellError
from stepwell.analysis.diagnostics import holdout_table
from stepwell.analysis.plots.curves import (
    LARGEST,
    Curve,
    Mark,
    Panel,
    default_weight,
    smoothed,
    thinned,
    wants_log,
)
from stepwell.analysis.timeline import began_ns
from stepwell.reading import RecordedRun
from stepwell.reading.run import SYSTEM

MOST_CURVES = 10
MOST_PANELS = 12


@dataclass(frozen=True)
class PanelChoice:
    """The title of a panel and its metrics; ``left_out`` is the number of metrics that did not fit."""

    title: str
    names: list[str]
    left_out: int = 0


FAMILIES = [
    ("Loss", r"(^|[/_.-])loss([/_.-]|$)"),
    ("Accuracy", r"(^|[/_.-])(acc|accuracy)([/_.@-]|$)"),
    ("Gradient norm", r"grad(ient)?s?[/_.-]*norm"),
    ("Weight delta", r"weight[/_.-]*delta"),
    ("Learning rate", r"(^|[/_.-])(lr|learning_?rates?)([/_.-]|$)"),
]
"""The default panels. A metric belongs to the first family that matches."""


def by_default(names: Sequence[str]) -> list[PanelChoice]:
    """Return a panel for each family that has metrics; if none has, one for each of the first metrics."""
    own = [name for name in names if not name.startswith(SYSTEM)]
    taken: set[str] = set()
    choices = []
    for title, pattern in FAMILIES:
        family = [n for n in own if n not in taken and re.search(pattern, n, re.IGNORECASE)]
        taken.update(family)
        if family:
            choices.append(_choice(title, family))
    if choices:
        return choices
    return [PanelChoice(name, [name]) for name in (own or list(names))[:MOST_PANELS]]


def by_request(names: Sequence[str], wanted: Sequence[str]) -> list[PanelChoice]:
    """Return a panel for each request: a name, a pattern such as ``val/*``, or a part of a name."""
    choices = []
    for word in wanted:
        matches = [name for name in names if name == word]
        matches = matches or [name for name in names if fnmatch.fnmatchcase(name, word)]
        matches = matches or [name for name in names if word.lower() in name.lower()]
        if not matches:
            raise StepwellError(f"there is no metric {word!r}; {_what_exists(names, word)}")
        choices.append(_choice(word, matches))
    return choices


def _choice(title: str, names: list[str]) -> PanelChoice:
    # Totals come before their parts.
    ordered = sorted(names, key=lambda name: (not name.endswith(("overall", "total")), name))
    return PanelChoice(title, ordered[:MOST_CURVES], max(0, len(ordered) - MOST_CURVES))


def _what_exists(names: Sequence[str], word: str) -> str:
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    own = [name for name in names if not name.startswith(SYSTEM)]
    others = [name for name in (*own, *names) if name not in near]
    shown = list(dict.fromkeys([*near, *others]))[:12]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"there are: {', '.join(shown)}{more}"


X_AXES = ("step", "epoch", "time")
MOST_EXAMPLES = 60


@dataclass(frozen=True)
class Options:
    """How curves are drawn.

    Attributes:
        x: "step", "epoch" (the mean of each epoch) or "time" (seconds since the run started).
        smooth: the smoothing weight, from 0 to below 1. None chooses it by the number of values.
        rank: draw only this rank. None draws the mean of all ranks, with minimum and maximum.
        by_rank: draw a curve for each rank instead.
        log: a logarithmic y axis. None chooses it if values differ by a large factor.
    """

    x: str = "step"
    smooth: float | None = None
    rank: int | None = None
    by_rank: bool = False
    log: bool | None = None

    def __post_init__(self) -> None:
        one_of(*X_AXES).check("x", self.x)
        if self.smooth is not None and not 0 <= self.smooth < 1:
            raise StepwellError(f"smooth must be a number from 0 to below 1, got {self.smooth!r}")


def metric_names(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the metrics that any of the runs has, in alphabetical order."""
    tables = [run.metrics().select(pl.col("name").unique()).collect() for run in runs]
    return sorted({name for table in tables for name in table["name"]})


def panels(
    runs: Sequence[RecordedRun], metrics: Sequence[str] = (), options: Options | None = None
) -> list[Panel]:
    """Return the curves of one run, or of several runs in the same axes.

    ``metrics`` are names or patterns; each gets a panel. By default these are loss, accuracy, gradient norm,
    weight delta, learning rates and holdout logits, as far as they were logged.
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
        # One metric per panel, so that a run has the same colour everywhere.
        each = dict.fromkeys(name for choice in choices for name in choice.names)
        choices = [PanelChoice(name, [name]) for name in each]
    wanted = {name for choice in choices for name in choice.names}
    tables = [_Table(run, wanted, options) for run in runs]
    result = [_panel(choice, tables, options) for choice in choices]
    if not metrics:
        result += _logits(runs, options)
    result = [panel for panel in result if panel.curves]
    if not result:
        raise StepwellError(
            f"no value was logged with a known {options.x}: use --x step, or record the epoch with "
            "run.set_step(step, epoch=…)"
        )
    return result


class _Table:
    """The values of the chosen metrics of one run, with their position on the x axis."""

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
            raise StepwellError(
                f"rank {options.rank} logged none of these metrics; the ranks are: {ranks}"
            )
        self.table = table.with_columns(x=self._x(table)).drop_nulls("x")

    def _x(self, table: pl.DataFrame) -> pl.Expr:
        if self.options.x != "time":
            return pl.col(self.options.x).cast(pl.Float64)
        # Diagnostics outside a run begin with their first value.
        return (pl.col("time_ns") - (began_ns(self.run) or table["time_ns"].min())) / 1e9

    def curves(self, name: str, label: str) -> list[Curve]:
        part = self.table.filter(name=name)
        ranks = sorted(part["rank"].unique().to_list())
        # Each rank reads system metrics at its own times, so they have no mean.
        has_no_mean = self.options.x == "time" and name.startswith(SYSTEM)
        if len(ranks) > 1 and (self.options.by_rank or has_no_mean):
            return [self._curve(part.filter(rank=r), f"{label} rank {r}", False) for r in ranks]
        return [self._curve(part, label, len(ranks) > 1)]

    def _curve(self, part: pl.DataFrame, label: str, several: bool) -> Curve:
        finite = pl.col("value").abs() < LARGEST
        if several or self.options.x == "epoch":
            value = pl.col("value")
            means = value.mean(), value.min().alias("low"), value.max().alias("high")
            good = part.filter(finite).group_by("x").agg(means).sort("x")
        else:
            # Values at the same position stay in the order in which they were logged.
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
        """Return a mark at the start of each attempt after the first."""
        attempts = self.table.group_by("attempt").agg(pl.col("x").min()).sort("attempt")
        return [Mark(x, f"attempt {attempt}") for attempt, x in attempts.rows()[1:]]


def _panel(choice: PanelChoice, tables: list[_Table], options: Options) -> Panel:
    several = len(tables) > 1
    curves: list[Curve] = []
    for number, table in enumerate(tables):
        for name in choice.names:
            own = table.curves(name, table.run.name if several else name)
            colour = number if several and len(own) == 1 else -1
            curves += [dataclasses.replace(curve, colour=colour) for curve in own]
    curves = [curve for curve in _with_distinct_labels(curves) if curve.x or curve.nonfinite]
    is_positive = all(value > 0 for curve in curves for value in curve.y)
    note = f"{choice.left_out} more not drawn: select metrics by name" if choice.left_out else ""
    return Panel(
        choice.title,
        "time (s)" if options.x == "time" else options.x,
        curves,
        wants_log(curves) if options.log is None else options.log and is_positive,
        marks=[] if several else tables[0].marks(),
        note=note,
    )


def _with_distinct_labels(curves: list[Curve]) -> list[Curve]:
    """Number the curves that have the same label."""
    seen: Counter[str] = Counter()
    result = []
    for curve in curves:
        seen[curve.label] += 1
        number = seen[curve.label]
        label = curve.label if number == 1 else f"{curve.label} #{number}"
        result.append(dataclasses.replace(curve, label=label))
    return result


def _logits(runs: Sequence[RecordedRun], options: Options) -> list[Panel]:
    """Return a panel with the margin of the right class for each holdout example, if there are any."""
    if len(runs) != 1 or options.x == "time":
        return []
    table = holdout_table(runs[0]).drop_nulls(["margin", options.x])
    table = table.filter(pl.col("margin").abs() < LARGEST)
    if table.is_empty():
        return []
    table = table.with_columns(x=pl.col(options.x).cast(pl.Float64))
    curves = []
    for example in table["example"].unique().sort().to_list()[:MOST_EXAMPLES]:
        part = table.filter(example=example).sort("x")
        x, y = part["x"].to_list(), part["margin"].to_list()
        curves.append(Curve(f"example {example}", x, y, faint=True, count=len(x)))
    margin = pl.col("margin")
    quantiles = (
        margin.median(),
        margin.quantile(0.1).alias("low"),
        margin.quantile(0.9).alias("high"),
    )
    by_x = table.group_by("x").agg(quantiles).sort("x")
    x, y, low, high = (column.to_list() for column in by_x)
    curves.append(Curve("median, 10–90 %", x, y, low=low, high=high, count=len(x)))
    title = "Holdout logits: right class minus best other"
    return [Panel(title, options.x, curves, zero=True)]
