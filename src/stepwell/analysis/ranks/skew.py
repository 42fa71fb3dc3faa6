"""How ranks differ on the whole, and who waits for whom."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepwell.analysis.ranks.arrivals import meeting_layers
from stepwell.analysis.ranks.grid import Grid, read_grids
from stepwell.reading import RecordedRun


def skew(run: RecordedRun, grids: list[Grid] | None = None) -> pl.DataFrame:
    """One row a phase and rank: its mean time in a step, and that against the rank in the middle.

    Columns: phase, rank, steps, mean_ns, relative. Over all attempts, completed steps alone.
    """
    sums: dict[tuple[str, int], list[int]] = {}
    for grid in read_grids(run) if grids is None else grids:
        done = grid.is_done
        for phase in grid.phases:
            total = np.where(done, grid.total(phase), 0).sum(axis=1)
            for place, rank in enumerate(grid.ranks):
                entry = sums.setdefault((phase, rank), [0, 0])
                entry[0] += int(total[place])
                entry[1] += int(done[place].sum())
    rows = [
        (phase, rank, steps, total / steps)
        for (phase, rank), (total, steps) in sums.items()
        if steps
    ]
    schema = {"phase": pl.String, "rank": pl.Int32, "steps": pl.Int64, "mean_ns": pl.Float64}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    middle = pl.col("mean_ns").quantile(0.5, "lower").over("phase")
    relative = pl.when(middle > 0).then(pl.col("mean_ns") / middle)
    return table.with_columns(relative.alias("relative"))


def waits(run: RecordedRun, grids: list[Grid] | None = None) -> pl.DataFrame:
    """Who waited for whom where ranks meet: rank, waited_for, steps, ns; the longest first."""
    grids = read_grids(run) if grids is None else grids
    ranks = sorted({rank for grid in grids for rank in grid.ranks})
    ns = np.zeros((len(ranks), len(ranks)), np.int64)
    steps = np.zeros_like(ns)
    for grid in grids:
        places = np.searchsorted(ranks, grid.ranks)
        for layer in meeting_layers(grid):
            complete = (layer.ns >= 0).all(axis=0)
            start, lasted = layer.start[:, complete], layer.ns[:, complete]
            last = start.argmax(axis=0)
            waited = np.minimum(start.max(axis=0) - start, lasted)
            who, step = np.nonzero(waited > 0)
            where = places[who], places[last[step]]
            np.add.at(ns, where, waited[who, step])
            np.add.at(steps, where, 1)
    waiter, waited_for = np.nonzero(ns)
    numbers = np.array(ranks, np.int32)
    table = pl.DataFrame(
        {
            "rank": numbers[waiter],
            "waited_for": numbers[waited_for],
            "steps": steps[waiter, waited_for],
            "ns": ns[waiter, waited_for],
        },
        schema={"rank": pl.Int32, "waited_for": pl.Int32, "steps": pl.Int64, "ns": pl.Int64},
    )
    return table.sort("ns", descending=True)
