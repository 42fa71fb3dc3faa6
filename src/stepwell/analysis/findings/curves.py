"""The metrics of a run as curves, and which of them belong together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SYSTEM = "system/"
VALIDATION = {"val", "valid", "validation", "eval", "evaluation", "dev", "holdout", "test"}
TRAINING = {"train", "training", "tr"}
FILLERS = {"epoch", "step", "overall", "mean", "avg", "batch", "running"}
"""Parts of a name that do not say what is measured."""


@dataclass(frozen=True)
class Curve:
    """A metric over steps, the mean over ranks.

    Attributes:
        steps: ascending, those at which it is finite.
        values: one for each.
        odd: the steps at which it was NaN or infinite on any rank.
    """

    name: str
    steps: Ints
    values: Floats
    odd: Ints

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def smooth(self) -> Floats:
        """A running median over about a twentieth of the values, which a single one cannot move."""
        count = len(self.values)
        half = min(count // 40, 250)
        if half == 0:
            return self.values
        padded = np.pad(self.values, half, mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
        found: Floats = np.median(windows, axis=1)
        return found

    @cached_property
    def noise(self) -> float:
        """How far one value is from the next as a rule, as a standard deviation."""
        if len(self.values) < 3:
            return 0.0
        return float(np.median(np.abs(np.diff(self.values)))) / 0.954

    def at(self, step: int) -> float:
        """The smoothed value at the last step up to this one, else the first."""
        place = int(np.searchsorted(self.steps, step, side="right")) - 1
        return float(self.smooth[max(0, place)])

    def level(self, begin: float, end: float) -> float:
        """Median of a part of the values: ``level(0.9, 1)`` is that of the last tenth."""
        count = len(self.values)
        low = min(int(begin * count), count - 1)
        return float(np.median(self.values[low : max(low + 1, round(end * count))]))


@dataclass(frozen=True)
class Pair:
    """The same quantity in training and in validation."""

    training: Curve
    validation: Curve
    sign: float
    """1 where lower is better, -1 where higher is."""


class Curves:
    """All metrics of a run but those of the machine."""

    def __init__(self, everything: pl.DataFrame) -> None:
        self.everything = everything
        """All that was logged, that of the machine too: name, rank, attempt, step, time_ns, value."""

    @cached_property
    def table(self) -> pl.DataFrame:
        """The same without the machine's, in the order of steps."""
        own = ~pl.col("name").str.starts_with(SYSTEM) & pl.col("step").is_not_null()
        return self.everything.filter(own).sort("step", "time_ns", maintain_order=True)

    @cached_property
    def _parts(self) -> dict[str, pl.DataFrame]:
        parts = self.table.partition_by("name", maintain_order=True, as_dict=True)
        return {str(key[0]): part for key, part in parts.items()}

    @property
    def names(self) -> list[str]:
        """In the order in which they were logged."""
        return list(self._parts)

    def matching(self, pattern: str) -> list[Curve]:
        """Those with a name that a regular expression finds, with any finite value."""
        found = [self.curve(n) for n in self.names if re.search(pattern, n, re.IGNORECASE)]
        return [curve for curve in found if len(curve)]

    def curve(self, name: str) -> Curve:
        """One of them."""
        known: dict[str, Curve] = self.__dict__.setdefault("_curves", {})
        if name not in known:
            known[name] = _curve(name, self._parts[name])
        return known[name]

    def by_rank(self, name: str) -> dict[int, Curve]:
        """One of them, rank by rank."""
        parts = self._parts[name].partition_by("rank", as_dict=True)
        return {int(key[0]): _curve(name, part) for key, part in sorted(parts.items())}

    def rows(self, name: str) -> pl.DataFrame:
        """Its rows in the table."""
        return self._parts[name]

    @cached_property
    def losses(self) -> list[Curve]:
        """Losses of the training."""
        found = self.matching(r"(^|[/_.-])loss([/_.-]|$)")
        return [curve for curve in found if split_of(curve.name) != "validation"]

    def is_whole_loss(self, name: str) -> bool:
        """Whether this is the loss of the training as a whole, not a part of it or one of several."""
        return [word for word in _subject(name) if word != "total"] == ["loss"]

    @cached_property
    def pairs(self) -> list[Pair]:
        """What was logged both for training and for validation, and has a better and a worse."""
        curves = [self.curve(name) for name in self.names if _goal(name)]
        validation = [c for c in curves if len(c) and split_of(c.name) == "validation"]
        training = [c for c in curves if len(c) and split_of(c.name) != "validation"]
        found = []
        for curve in validation:
            same = [c for c in training if _subject(c.name) == _subject(curve.name)]
            if same:
                # Of several the one that was logged most often.
                partner = max(same, key=len)
                sign = 1.0 if _goal(curve.name) == "lower" else -1.0
                found.append(Pair(partner, curve, sign))
        return found


def _curve(name: str, part: pl.DataFrame) -> Curve:
    steps, values = part["step"].to_numpy(), part["value"].to_numpy()
    if len(steps) > 1 and not (steps[1:] > steps[:-1]).all():
        mean = part.group_by("step").agg(pl.col("value").mean()).sort("step")
        steps, values = mean["step"].to_numpy(), mean["value"].to_numpy()
    finite = np.isfinite(values)
    return Curve(name, steps[finite], values[finite], steps[~finite])


def words_of(name: str) -> list[str]:
    """The words that a name consists of."""
    return [word for word in re.split(r"[/_.\-\s:]+", name.lower()) if word]


def split_of(name: str) -> str | None:
    """Which data a metric is about by its name: training, validation, or it does not say."""
    words = set(words_of(name))
    if words & VALIDATION:
        return "validation"
    return "training" if words & TRAINING else None


def _subject(name: str) -> tuple[str, ...]:
    """What is measured, on whichever data."""
    dull = VALIDATION | TRAINING | FILLERS
    words = ["accuracy" if word == "acc" else word for word in words_of(name)]
    return tuple(word for word in words if word not in dull)


def _goal(name: str) -> str | None:
    from stepwell.analysis.compare.metrics import goal_of

    return goal_of(name)


def as_number(value: Any) -> float | None:
    """A positive number from a configuration, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if np.isfinite(value) and value > 0 else None
