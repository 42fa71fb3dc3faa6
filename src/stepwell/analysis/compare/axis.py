"""What curves are aligned by: steps, samples, tokens or time."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun
from stepwell.vocabulary import StandardTrainingJobEventName

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

AXES = ("step", "samples", "tokens", "time")
UPDATE = StandardTrainingJobEventName.TRAINING_METRICS_UPDATE.value
COUNTED = {
    "samples": r"(^|[/.])(num_|total_|consumed_|train_|trained_)*(samples|examples)(_seen)?$",
    "tokens": r"(^|[/.])(num_|total_|consumed_|train_|input_)*tokens(_seen)?$",
}
"""Metrics that people log as a running count."""


@dataclass(frozen=True)
class Amounts:
    """How many samples or tokens were trained on after so many steps."""

    steps: Floats
    amounts: Floats
    source: str
    """Where that was found: telemetry, metric or config."""

    def after(self, steps: Floats) -> Floats:
        """The same for any number of steps; before and after what is known, at the rate there."""
        known: Floats = np.interp(steps, self.steps, self.amounts)
        if len(self.steps) < 2:
            return known
        for end, near in ((0, 1), (-1, -2)):
            rise = self.amounts[end] - self.amounts[near]
            rate = rise / (self.steps[end] - self.steps[near])
            beyond = steps < self.steps[0] if end == 0 else steps > self.steps[-1]
            outside = self.amounts[end] + rate * (steps - self.steps[end])
            known = np.where(beyond, np.maximum(outside, 0), known)
        return known


def check_axis(by: str) -> None:
    """Refuse what runs cannot be aligned by."""
    if by not in AXES:
        raise StepwellError(f"by is {by!r}: write one of {', '.join(AXES)}")


def places(run: RecordedRun, by: str, steps: Ints, times: Ints) -> Floats:
    """Where on the axis something lies that was logged in these steps at these times."""
    if by == "step":
        return steps.astype(np.float64)
    if by == "time":
        found: Floats = (times - began_ns(run)) / 1e9
        return found
    # A step counts when it is done.
    return amounts_of(run, by).after(steps.astype(np.float64) + 1)


def began_ns(run: RecordedRun) -> int:
    """When its first process began to record."""
    return min((int(d["started"]) for d in run.documents() if d["started"]), default=0)


def amounts_of(run: RecordedRun, by: str) -> Amounts:
    """How many samples or tokens the steps of a run had; an error where nobody knows."""
    found = _told(run, by) or _logged(run, by) or _configured(run, by)
    if found is None:
        raise StepwellError(_unknown(run, by))
    return found


def amounts_if_known(run: RecordedRun, by: str) -> Amounts | None:
    """The same; None where nobody knows."""
    try:
        return amounts_of(run, by)
    except StepwellError:
        return None


def _told(run: RecordedRun, by: str) -> Amounts | None:
    """From the updates of the training telemetry, which count through a loop."""
    table = run.events().filter(pl.col("name") == UPDATE).select("rank", "time_ns", "attributes")
    rows = table.collect().sort("rank", "time_ns")
    rows = rows.filter(pl.col("rank") == pl.col("rank").min())
    counted = _Counted(by)
    for text in rows["attributes"]:
        counted.add(json.loads(text or "{}"))
    return _amounts(counted.points, "telemetry") if len(counted.points) > 1 else None


class _Counted:
    """Amounts by steps done, from what loop after loop tells of itself."""

    def __init__(self, by: str) -> None:
        self.points: dict[float, float] = {0.0: 0.0}
        self._key, self._start_key = (
            ("num_train_samples", "train_samples_start")
            if by == "samples"
            else ("train_tokens", "")
        )
        self._start = self._last = self._base = -1.0

    def add(self, update: dict[str, object]) -> None:
        """Take one update; one that does not tell the amount is passed over."""
        now, amount = _count(update, "current_iteration"), _count(update, self._key)
        if now is None or amount is None:
            return
        start = _count(update, "train_iterations_start") or 0.0
        if start != self._start or now <= self._last:
            self._begin(start, _count(update, self._start_key))
        self._last = now
        self.points[now + 1] = self._base + amount

    def _begin(self, start: float, base: float | None) -> None:
        """A loop; where it goes back to an earlier step, it does again what came after that."""
        if base is None:
            before = _amounts(self.points, "")
            base = float(before.after(np.array([start]))[0]) if len(self.points) > 1 else 0.0
        self.points = {step: value for step, value in self.points.items() if step < start}
        self.points[start] = self._base = base
        self._start = start


def _count(update: dict[str, object], key: str) -> float | None:
    value = update.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _logged(run: RecordedRun, by: str) -> Amounts | None:
    """From a running count that was logged as a metric."""
    counted = pl.col("name").str.contains(COUNTED[by]) & pl.col("step").is_not_null()
    table = run.metrics().filter(counted).group_by("name", "step").agg(pl.col("value").max())
    for _, part in table.collect().sort("name", "step").group_by("name", maintain_order=True):
        values = part["value"].to_numpy()
        if len(values) > 1 and np.isfinite(values).all() and (np.diff(values) >= 0).all():
            steps = part["step"].to_list()
            points = {step + 1.0: float(v) for step, v in zip(steps, values, strict=True)}
            return _amounts(points, "metric")
    return None


def _configured(run: RecordedRun, by: str) -> Amounts | None:
    """From the size of a batch, which then is taken to be the same in all steps."""
    each = _positive(run, "global_batch_size")
    if by == "tokens":
        each = each * _positive(run, "seq_length")
    return _amounts({0.0: 0.0, 1.0: each}, "config") if each else None


def _positive(run: RecordedRun, key: str) -> float:
    value = run.config.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else 0.0  # type: ignore[operator, arg-type]


def _amounts(points: dict[float, float], source: str) -> Amounts:
    steps = sorted(points)
    return Amounts(np.array(steps), np.array([points[step] for step in steps]), source)


def _unknown(run: RecordedRun, by: str) -> str:
    needed = (
        "global_batch_size" if by == "samples" else "global_batch_size and seq_length (tokens each)"
    )
    keys = [key for key in run.config if re.search(r"batch_?size|seq(uence)?_?len", key)]
    has = f" (its config has {', '.join(keys)}, which may be of one rank)" if keys else ""
    example = '"global_batch_size": 256' + (', "seq_length": 2048' if by == "tokens" else "")
    return (
        f"{run.name!r} did not record how many {by} its steps had: give {needed} in its config{has}, "
        f"stepwell.init(config={{{example}}}), or log a running count as {by!r}; "
        "or compare by step or time"
    )
