"""The curves of runs, and their values at the same places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.analysis.compare.axis import Floats, Ints, places
from stepwell.analysis.plots.curves import LARGEST
from stepwell.reading import RecordedRun


@dataclass(frozen=True)
class Points:
    """One metric of one run, the mean over ranks: finite values, and the steps where it was not finite."""

    steps: Ints
    at: Floats
    values: Floats
    nonfinite: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.values)


def read_points(run: RecordedRun, names: Sequence[str], by: str = "step") -> dict[str, Points]:
    """The curves of these metrics along an axis."""
    wanted = pl.col("name").is_in(list(names)) & pl.col("step").is_not_null()
    table = (
        run.metrics()
        .filter(wanted)
        .group_by("name", "step")
        .agg(pl.col("value").mean(), pl.col("time_ns").max())
        .sort("name", "step")
        .collect()
    )
    found = {}
    for (name,), part in table.group_by("name", maintain_order=True):
        found[str(name)] = _points(run, part, by)
    return found


def _points(run: RecordedRun, part: pl.DataFrame, by: str) -> Points:
    steps, values = part["step"].to_numpy(), part["value"].to_numpy()
    at = places(run, by, steps, part["time_ns"].to_numpy())
    with np.errstate(invalid="ignore"):
        finite = np.abs(values) < LARGEST
    odd = tuple(steps[~finite].tolist())
    steps, at, values = steps[finite], at[finite], values[finite]
    # An axis goes forward: of what lies at the same place, or before, the later one counts.
    ahead = np.minimum.accumulate(at[::-1])[::-1] if len(at) else at
    keep: NDArray[np.bool_] = np.append(ahead[1:] > at[:-1], True) if len(at) else finite[:0]
    return Points(steps[keep], at[keep], values[keep], odd)


def aligned(curves: Mapping[int, Points], by: str) -> tuple[Floats, dict[int, Floats]]:
    """The places that all curves have, and the values of each there.

    By step these are the steps that all logged. Else they are those of the curve with the fewest values,
    as far as all go; between two values of a curve lies a straight line.
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
