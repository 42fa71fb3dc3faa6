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
from stepwell.analysis.findings.curves import Floats, MetricCurve, as_number, at_common_steps
from stepwell.analysis.plots.curves import LARGEST
from stepwell.analysis.timeline import began_ns
from stepwell.reading import RecordedRun
from stepwell.vocabulary import StandardTrainingJobEventName

AXIS = one_of("step", "samples", "tokens", "time")
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
        before, beyond = steps < self.steps[0], steps > self.steps[-1]
        for end, near, is_outside in ((0, 1, before), (-1, -2, beyond)):
            rise = self.amounts[end] - self.amounts[near]
            rate = rise / (self.steps[end] - self.steps[near])
            outside = self.amounts[end] + rate * (steps - self.steps[end])
            result = np.where(is_outside, np.maximum(outside, 0), result)
        return result


def amounts_of(run: RecordedRun, by: str) -> Amounts:
    """Return the samples or tokens of the steps of a run. Raise StepwellError if they were not recorded."""
    amounts = amounts_if_known(run, by)
    if amounts is None:
        raise StepwellError(_unknown(run, by))
    return amounts


def amounts_if_known(run: RecordedRun, by: str) -> Amounts | None:
    """Return the samples or tokens of the steps of a run; None if they were not recorded."""
    return _from_telemetry(run, by) or _from_metric(run, by) or _from_config(run, by)


def _from_telemetry(run: RecordedRun, by: str) -> Amounts | None:
    """Return the amounts from the updates of the training telemetry, which count within a loop."""
    table = run.events().filter(pl.col("name") == UPDATE).select("rank", "time_ns", "attributes")
    rows = table.collect().sort("rank", "time_ns")
    rows = rows.filter(pl.col("rank") == pl.col("rank").min())
    key = "num_train_samples" if by == "samples" else "train_tokens"
    points = {0.0: 0.0}
    last = last_start = base = -1.0
    for text in rows["attributes"]:
        update = json.loads(text or "{}")
        now, amount = _count(update, "current_iteration"), _count(update, key)
        if now is None or amount is None:
            continue
        start = _count(update, "train_iterations_start") or 0.0
        if start != last_start or now <= last:
            # A loop starts. If it goes back to an earlier step, it replaces the amounts after that step.
            before = float(_amounts(points, "").after(np.array([start]))[0])
            given = _count(update, "train_samples_start") if by == "samples" else None
            base = before if given is None else given
            points = {step: value for step, value in points.items() if step < start} | {start: base}
        last, last_start = now, start
        points[now + 1] = base + amount
    return _amounts(points, "telemetry") if len(points) > 1 else None


def _count(update: dict[str, object], key: str) -> float | None:
    value = update.get(key)
    is_flag = isinstance(value, bool)
    return float(value) if isinstance(value, int | float) and not is_flag else None


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
    each = as_number(run.config.get("global_batch_size"))
    length = as_number(run.config.get("seq_length")) if by == "tokens" else 1.0
    return _amounts({0.0: 0.0, 1.0: each * length}, "config") if each and length else None


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
class Points(MetricCurve):
    """One metric of one run: ``positions`` are those of the values on the axis."""

    positions: Floats


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
    return {str(name): _points(run, str(name), part, by) for (name,), part in parts}


def _points(run: RecordedRun, name: str, part: pl.DataFrame, by: str) -> Points:
    steps, values = part["step"].to_numpy(), part["value"].to_numpy()
    at: Floats
    if by == "step":
        at = steps.astype(np.float64)
    elif by == "time":
        at = (part["time_ns"].to_numpy() - began_ns(run)) / 1e9
    else:
        # A step counts when it is completed.
        at = amounts_of(run, by).after(steps + 1.0)
    with np.errstate(invalid="ignore"):
        finite = np.abs(values) < LARGEST
    odd = steps[~finite]
    steps, at, values = steps[finite], at[finite], values[finite]
    # Positions must ascend: of values at the same or an earlier position, keep the later one.
    ahead = np.minimum.accumulate(at[::-1])[::-1] if len(at) else at
    keep: NDArray[np.bool_] = np.append(ahead[1:] > at[:-1], True) if len(at) else finite[:0]
    return Points(name, steps[keep], values[keep], odd, at[keep])


def aligned(curves: Mapping[int, Points], by: str) -> tuple[Floats, dict[int, Floats]]:
    """Return common positions, and the values of each curve there.

    By step these are the steps that all curves have. Otherwise they are the positions of the curve with the
    fewest values, in the range of all curves, and the other curves are interpolated linearly.
    """
    if not curves:
        return np.empty(0), {}
    if by == "step":
        common, values = at_common_steps(curves.values())
        return common.astype(np.float64), dict(zip(curves, values, strict=True))
    low = max(p.positions[0] for p in curves.values())
    high = min(p.positions[-1] for p in curves.values())
    if low > high:
        return np.empty(0), {i: np.empty(0) for i in curves}
    inside = [p.positions[(p.positions >= low) & (p.positions <= high)] for p in curves.values()]
    fewest = min(inside, key=len)
    grid = np.unique(np.concatenate((fewest, [low, high])))
    return grid, {i: np.interp(grid, p.positions, p.values) for i, p in curves.items()}
