"""The metrics of a run as curves, and their classification by name: losses, validation, lower is better."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.reading.run import SYSTEM

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


LOSS = r"(^|[/_.-])loss([/_.-]|$)"
GRADIENT = r"grad(ient)?s?[/_.-]*norm"
"""Patterns of names."""
VALIDATION = {"val", "valid", "validation", "eval", "evaluation", "dev", "holdout", "test"}
TRAINING = {"train", "training", "tr"}
FILLERS = {"epoch", "step", "overall", "mean", "avg", "batch", "running"}
"""Words in a name that do not say what is measured."""
LOWER = r"(loss|error|err|perplexity|ppl|nll|mse|rmse|mae|wer|cer|bpb|fid)"
HIGHER = (
    r"(acc|accuracy|top\d|f1|auc|auroc|bleu|rouge|r2|precision|recall|map|iou|dice|score|reward"
    r"|psnr|ssim)"
)
"""Words in a name that show whether lower or higher values are better."""


@dataclass(frozen=True)
class MetricCurve:
    """A metric over steps, the mean over ranks.

    Attributes:
        steps: the steps with a finite value, ascending.
        values: the value at each of these steps.
        odd: the steps at which it was NaN or infinite on any rank.
    """

    name: str
    steps: Ints
    values: Floats
    odd: Ints

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last step."""
        return int(self.steps[0]), int(self.steps[-1])

    @property
    def start(self) -> float:
        """The median of the first tenth of the values."""
        return self.level(0.0, 0.1)

    @property
    def end(self) -> float:
        """The median of the last tenth of the values."""
        return self.level(0.9, 1.0)

    @cached_property
    def smooth(self) -> Floats:
        """A running median over about 5 % of the values, which ignores single outliers."""
        count = len(self.values)
        half = min(count // 40, 250)
        if half == 0:
            return self.values
        padded = np.pad(self.values, half, mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
        medians: Floats = np.median(windows, axis=1)
        return medians

    @cached_property
    def noise(self) -> float:
        """The standard deviation of a value, estimated from the median difference of neighbours."""
        if len(self.values) < 3:
            return 0.0
        return float(np.median(np.abs(np.diff(self.values)))) / 0.954

    def at(self, step: int) -> float:
        """Return the smoothed value at the last step up to this one, or the first value."""
        place = int(np.searchsorted(self.steps, step, side="right")) - 1
        return float(self.smooth[max(0, place)])

    def level(self, begin: float, end: float) -> float:
        """Return the median of a part of the values: ``level(0.9, 1)`` for the last tenth."""
        count = len(self.values)
        low = min(int(begin * count), count - 1)
        return float(np.median(self.values[low : max(low + 1, round(end * count))]))


@dataclass(frozen=True)
class Pair:
    """The same quantity in training and in validation."""

    training: MetricCurve
    validation: MetricCurve
    sign: float
    """1 where lower is better, -1 where higher is."""


class Curves:
    """The metrics of a run, without system metrics."""

    def __init__(self, everything: pl.DataFrame) -> None:
        self.everything = everything
        """All metrics, with system metrics: name, rank, attempt, step, time_ns, value."""
        self._curves: dict[str, MetricCurve] = {}

    @cached_property
    def table(self) -> pl.DataFrame:
        """The metrics that have a step, without system metrics, in the order of steps."""
        own = ~pl.col("name").str.starts_with(SYSTEM) & pl.col("step").is_not_null()
        return self.everything.filter(own).sort("step", "time_ns", maintain_order=True)

    @cached_property
    def parts(self) -> dict[str, pl.DataFrame]:
        """The rows of each metric in the table."""
        parts = self.table.partition_by("name", maintain_order=True, as_dict=True)
        return {str(key[0]): part for key, part in parts.items()}

    @property
    def names(self) -> list[str]:
        """The names of the metrics, in the order in which they were first logged."""
        return list(self.parts)

    def matching(self, pattern: str) -> list[MetricCurve]:
        """Return the curves with any finite value whose name contains a match of a regular expression."""
        curves = [self.curve(n) for n in self.names if re.search(pattern, n, re.IGNORECASE)]
        return [curve for curve in curves if len(curve)]

    def curve(self, name: str) -> MetricCurve:
        """Return the curve of a metric, the mean over ranks."""
        if name not in self._curves:
            self._curves[name] = _curve(name, self.parts[name])
        return self._curves[name]

    def by_rank(self, name: str) -> dict[int, MetricCurve]:
        """Return the curve of a metric on each rank."""
        parts = self.parts[name].partition_by("rank", as_dict=True)
        return {int(key[0]): _curve(name, part) for key, part in sorted(parts.items())}

    @cached_property
    def losses(self) -> list[MetricCurve]:
        """The training losses."""
        return [c for c in self.matching(LOSS) if split_of(c.name) != "validation"]

    def is_whole_loss(self, name: str) -> bool:
        """Return whether this is the total training loss, not a term of it or one of several losses."""
        return [word for word in _subject(name) if word != "total"] == ["loss"]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Quantities logged both in training and in validation whose name shows which values are better."""
        training: dict[tuple[str, ...], MetricCurve] = {}
        validation = []
        for curve in map(self.curve, filter(goal_of, self.names)):
            if len(curve) and split_of(curve.name) == "validation":
                validation.append(curve)
            # Of several with the same subject, the one that was logged most often.
            elif len(curve) > len(training.get(_subject(curve.name), ())):
                training[_subject(curve.name)] = curve
        return [
            Pair(training[_subject(c.name)], c, 1.0 if goal_of(c.name) == "lower" else -1.0)
            for c in validation
            if _subject(c.name) in training
        ]


def _curve(name: str, part: pl.DataFrame) -> MetricCurve:
    steps, values = part["step"].to_numpy(), part["value"].to_numpy()
    if len(steps) > 1 and not (steps[1:] > steps[:-1]).all():
        mean = part.group_by("step").agg(pl.col("value").mean()).sort("step")
        steps, values = mean["step"].to_numpy(), mean["value"].to_numpy()
    finite = np.isfinite(values)
    return MetricCurve(name, steps[finite], values[finite], steps[~finite])


def at_common_steps(curves: Collection[MetricCurve]) -> tuple[Ints, list[Floats]]:
    """Return the steps that all curves have, and the values of each curve there."""
    common = reduce(np.intersect1d, (curve.steps for curve in curves))
    return common, [curve.values[np.isin(curve.steps, common)] for curve in curves]


def spread(values: Floats) -> float:
    """Return the standard deviation, estimated from the median distance to the median."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def words_of(name: str) -> list[str]:
    """Return the words of a metric name in lower case."""
    return [word for word in re.split(r"[/_.\-\s:]+", name.lower()) if word]


def split_of(name: str) -> str | None:
    """Return "training" or "validation" if the name of a metric says so, else None."""
    words = set(words_of(name))
    if words & VALIDATION:
        return "validation"
    return "training" if words & TRAINING else None


def _subject(name: str) -> tuple[str, ...]:
    """Return the words of a name that say what is measured, without the data it is measured on."""
    dull = VALIDATION | TRAINING | FILLERS
    words = ["accuracy" if word == "acc" else word for word in words_of(name)]
    return tuple(word for word in words if word not in dull)


def as_number(value: Any) -> float | None:
    """Return a positive finite number from a configuration, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if np.isfinite(value) and value > 0 else None


def goal_of(name: str) -> str | None:
    """Return "lower" or "higher" if the name of a metric shows which values are better, else None."""
    words = [word for word in re.split(r"[/_.\-@ ]+", name.lower()) if word]
    if any(re.fullmatch(LOWER, word) for word in words):
        return "lower"
    if any(re.fullmatch(HIGHER, word) for word in words):
        return "higher"
    return None
