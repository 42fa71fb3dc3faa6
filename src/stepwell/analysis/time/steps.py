"""The table of steps: how long each one took, and in which phases."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.analysis.time.account import Accounts, RankTime, account
from stepwell.analysis.time.words import OWN_SPAN, PHASES
from stepwell.reading import RecordedRun

STEPS = pl.Schema(
    {
        "rank": pl.Int32(),
        "attempt": pl.Int32(),
        "step": pl.Int64(),
        "epoch": pl.Int64(),
        "start_ns": pl.Int64(),
        "duration_ns": pl.Int64(),
        "gap_ns": pl.Int64(),
        "period_ns": pl.Int64(),
        **{name: pl.Int64() for name in PHASES},
    }
)
NULLABLE = ("epoch", "gap_ns")
"""Columns in which a number below 0 stands for none."""
LARGE = 50_000
Columns = dict[str, NDArray[Any]]
QUANTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p95_ns": 0.95, "p99_ns": 0.99}


def steps(run: RecordedRun | Accounts) -> pl.DataFrame:
    """One row for each rank, attempt and step, in the order in which they were done.

    ``start_ns`` and ``duration_ns`` are those of the training iteration, ``gap_ns`` is what lies between the
    one before and this. ``period_ns`` is all of the time that belongs to the step, and what the phases, a
    column each, sum to: from when its batch was waited for until the same of the next step. So validation,
    checkpoints and pauses belong to the step that they come after. After the phases there is a column
    for each of the user's own spans that are in no phase, such as ``span:rollout``.

    Micro-batches are one row; a step that is done twice in one attempt has two.
    """
    parts = [part for part in account(run).parts if part.iterations is not None]
    if not parts:
        return pl.DataFrame(schema=STEPS)
    count = sum(len(part.steps) for part in parts)
    # Large parts stay where they are; many small ones are better laid out in one piece.
    groups = [[part] for part in parts] if count >= LARGE * len(parts) else [parts]
    own = dict.fromkeys(name for part in parts for name in part.own)
    schema = pl.Schema({**STEPS, **{name: pl.Int64() for name in own}})
    return pl.concat([_frame([_columns(part) for part in group], schema) for group in groups])


def phase_columns(table: pl.DataFrame) -> list[str]:
    """The columns of a table of steps that sum to ``period_ns``: phases and the user's own spans."""
    return [*PHASES, *(name for name in table.columns if name.startswith(OWN_SPAN))]


def _frame(parts: list[Columns], schema: pl.Schema) -> pl.DataFrame:
    """These parts below each other."""
    nothing = np.zeros(sum(len(part["step"]) for part in parts), np.int64)
    columns = {}
    for name, kind in schema.items():
        found = [part.get(name) for part in parts]
        if all(values is None for values in found):
            # Shared: phases that never come up take no memory.
            columns[name] = pl.Series(name, nothing, dtype=kind)
            continue
        known = [
            np.zeros(len(part["step"]), np.int64) if values is None else values
            for part, values in zip(parts, found, strict=True)
        ]
        series = pl.Series(name, known[0] if len(known) == 1 else np.concatenate(known), kind)
        if name in NULLABLE and bool((series < 0).any()):
            series = series.set(series < 0, None)
        columns[name] = series
    return pl.DataFrame(columns)


def _columns(part: RankTime) -> Columns:
    found = part.iterations
    assert found is not None
    cells = part.cells[:, 1:-1]
    count = len(found)
    used = np.flatnonzero(part.cells.any(axis=1)).tolist()
    period = np.zeros(count, np.int64)
    for code in used:
        period += cells[code]
    gaps = np.concatenate(([-1], found.starts[1:] - found.ends[:-1]))
    return {
        "rank": np.full(count, part.rank, np.int32),
        "attempt": np.full(count, part.attempt, np.int32),
        "step": found.steps,
        "epoch": found.epochs,
        "start_ns": found.starts,
        "duration_ns": found.ends - found.starts,
        "gap_ns": gaps,
        "period_ns": period,
        **{part.phases[code]: cells[code] for code in used},
    }


def percentiles(table: pl.DataFrame) -> pl.DataFrame:
    """How the times of steps are spread: of each rank, a row for each phase that ever took time.

    ``phase`` is also ``step`` (the iteration), ``gap`` and ``period``. Nothing is left out, warm-up neither.
    """
    values = {"step": "duration_ns", "gap": "gap_ns", "period": "period_ns"}
    values |= {name: name for name in phase_columns(table) if table[name].max()}
    found = []
    for phase, column in values.items():
        value = pl.col(column)
        quantiles = [
            value.quantile(q, "nearest").cast(pl.Int64).alias(name) for name, q in QUANTILES.items()
        ]
        found.append(
            table.group_by("rank")
            .agg(
                pl.lit(phase).alias("phase"),
                value.count().cast(pl.Int64).alias("count"),
                value.mean().alias("mean_ns"),
                *quantiles,
                value.max().alias("max_ns"),
            )
            .sort("rank")
        )
    order = pl.Enum(list(values))
    return pl.concat(found).with_columns(pl.col("phase").cast(order)).sort("rank", "phase")
