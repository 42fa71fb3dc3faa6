"""The axis by which curves are aligned (step, samples, tokens or time), and the curves along it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell._core.checks import one_of
from stepwell._core.errors import StepwellError
from stepwell.analysis.plots.curves import LARGEST
from stepwell.analysis.timeline import began_ns
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
"""Names of metrics that are logged as a running count."""


@dataclass(frozen=True)
class Amounts:
    """The number of samples or tokens that were trained on after a number of steps."""

    steps: Floats
    amounts: Floats
    source: str
    """Origin of the numbers: telemetry, metric or config."""

    def after(self, steps: Floats) -> Floats:
        """Return the amounts after these numbers of steps: interpolated, and extrapolated at both ends."""
        result: Floats = np.interp(steps, self.steps, self.amounts)
        if len(self.steps) < 2:
            return result
        for end, near in ((0, 1), (-1, -2)):
            rise = self.amounts[end] - self.amounts[near]
            rate = rise / (self.steps[end] - self.steps[near])
            beyond = steps < self.steps[0] if end == 0 else steps > self.steps[-1]
            outside = self.amounts[end] + rate * (steps - self.steps[end])
            result = np.where(beyond, np.maximum(outside, 0), result)
        return result


def check_axis(by: str) -> None:
    """Raise StepwellError if there is no such axis."""
    one_of(*AXES).check("by", by)


def places(run: RecordedRun, by: str, steps: Ints, times: Ints) -> Floats:
    """Return the positions on the axis of values that were logged in these steps at these times."""
    if by == "step":
        return steps.astype(np.float64)
    if by == "time":
        seconds: Floats = (times - began_ns(run)) / 1e9
        return seconds
    # A step counts when it is completed.
    return amounts_of(run, by).after(steps.astype(np.float64) + 1)


def amounts_of(run: RecordedRun, by: str) -> Amounts:
    """Return the samples or tokens of the steps of a run. Raise StepwellError if they were not recorded."""
    amounts = _from_telemetry(run, by) or _from_metric(run, by) or _from_config(run, by)
    if amounts is None:
        raise StepwellError(_unknown(run, by))
    return amounts


def amounts_if_known(run: RecordedRun, by: str) -> Amounts | None:
    """Return the samples or tokens of the steps of a run; None if they were not recorded."""
    try:
        return amounts_of(run, by)
    except StepwellError:
        return None


def _from_telemetry(run: RecordedRun, by: str) -> Amounts | None:
    """Return the amounts from the updates of the training telemetry, which count within a loop."""
    table = run.events().filter(pl.col("name") == UPDATE).select("rank", "time_ns", "attributes")
    rows = table.collect().sort("rank", "time_ns")
    rows = rows.filter(pl.col("rank") == pl.col("rank").min())
    counted = _LoopCounts(by)
    for text in rows["attributes"]:
        counted.add(json.loads(text or "{}"))
    return _amounts(counted.points, "telemetry") if len(counted.points) > 1 else None


class _LoopCounts:
    """Amounts by the number of completed steps, from the updates of one loop after the other."""

    def __init__(self, by: str) -> None:
        self.points: dict[float, float] = {0.0: 0.0}
        self._key, self._start_key = (
            ("num_train_samples", "train_samples_start")
            if by == "samples"
            else ("train_tokens", "")
        )
        self._start = self._last = self._base = -1.0

    def add(self, update: dict[str, object]) -> None:
        """Add one update; ignore it if it has no amount."""
        now, amount = _count(update, "current_iteration"), _count(update, self._key)
        if now is None or amount is None:
            return
        start = _count(update, "train_iterations_start") or 0.0
        if start != self._start or now <= self._last:
            self._begin(start, _count(update, self._start_key))
        self._last = now
        self.points[now + 1] = self._base + amount

    def _begin(self, start: float, base: float | None) -> None:
        """Start a loop. If it goes back to an earlier step, it replaces the amounts after that step."""
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


def _from_metric(run: RecordedRun, by: str) -> Amounts | None:
    """Return the amounts from a running count that was logged as a metric."""
    counted = pl.col("name").str.contains(COUNTED[by]) & pl.col("step").is_not_null()
    table = run.metrics().filter(counted).group_by("name", "step").agg(pl.col("value").max())
    for _, part in table.collect().sort("name", "step").group_by("name", maintain_order=True):
        values = part["value"].to_numpy()
        if len(values) > 1 and np.isfinite(values).all() and (np.diff(values) >= 0).all():
            steps = part["step"].to_list()
            points = {step + 1.0: float(v) for step, v in zip(steps, values, strict=True)}
            return _amounts(points, "metric")
    return None


def _from_config(run: RecordedRun, by: str) -> Amounts | None:
    """Return the amounts from the configured batch size, assumed to be the same in all steps."""
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
    has = f" (its config has {', '.join(keys)}, which may be for one rank only)" if keys else ""
    example = '"global_batch_size": 256' + (', "seq_length": 2048' if by == "tokens" else "")
    return (
        f"{run.name!r} did not record the {by} of its steps: set {needed} in its config{has}, "
        f"stepwell.init(config={{{example}}}), or log a running count as {by!r}; "
        "or compare by step or time"
    )


@dataclass(frozen=True)
class Points:
    """One metric of one run, the mean over ranks.

    Attributes:
        steps: the step of each value.
        at: the position of each value on the axis.
        values: the finite values.
        nonfinite: the steps with NaN or infinite values.
    """

    steps: Ints
    at: Floats
    values: Floats
    nonfinite: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


def read_points(run: RecordedRun, names: Sequence[str], by: str = "step") -> dict[str, Points]:
    """Return the curves of these metrics along an axis."""
    wanted = pl.col("name").is_in(list(names)) & pl.col("step").is_not_null()
    table = (
        run.metrics()
        .filter(wanted)
        .group_by("name", "step")
        .agg(pl.col("value").mean(), pl.col("time_ns").max())
        .sort("name", "step")
        .collect()
    )
    parts = table.group_by("name", maintain_order=True)
    return {str(name): _points(run, part, by) for (name,), part in parts}


def _points(run: RecordedRun, part: pl.DataFrame, by: str) -> Points:
    steps, values = part["step"].to_numpy(), part["value"].to_numpy()
    at = places(run, by, steps, part["time_ns"].to_numpy())
    with np.errstate(invalid="ignore"):
        finite = np.abs(values) < LARGEST
    odd = tuple(steps[~finite].tolist())
    steps, at, values = steps[finite], at[finite], values[finite]
    # Positions must ascend: of values at the same or an earlier position, keep the later one.
    ahead = np.minimum.accumulate(at[::-1])[::-1] if len(at) else at
    keep: NDArray[np.bool_] = np.append(ahead[1:] > at[:-1], True) if len(at) else finite[:0]
    return Points(steps[keep], at[keep], values[keep], odd)


def aligned(curves: Mapping[int, Points], by: str) -> tuple[Floats, dict[int, Floats]]:
    """Return common positions, and the values of each curve there.

    By step these are the steps that all curves have. Otherwise they are the positions of the curve with the
    fewest values, in the range of all curves, and the other curves are interpolated linearly.
    """
    if not curves:
        return np.empty(0), {}
    if by == "step":
        common = _common_steps(list(curves.values()))
        return common.astype(np.float64), {
            i: p.values[np.isin(p.steps, common)] for i, p in curves.items()
        }
    low = max(p.at[0] for p in curves.values())
    high = min(p.at[-1] for p in curves.values())
    if low > high:
        return np.empty(0), {i: np.empty(0) for i in curves}
    inside = [p.at[(p.at >= low) & (p.at <= high)] for p in curves.values()]
    fewest = min(inside, key=len)
    grid = np.unique(np.concatenate((fewest, [low, high])))
    return grid, {i: np.interp(grid, p.at, p.values) for i, p in curves.items()}


def _common_steps(curves: list[Points]) -> Ints:
    common = curves[0].steps
    for other in curves[1:]:
        common = np.intersect1d(common, other.steps, assume_unique=True)
    return common
