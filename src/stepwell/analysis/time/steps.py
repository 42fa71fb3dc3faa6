"""The table of steps: how long each step took, by phase."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.analysis.time.account import Accounts, RankTime, account
from stepwell.analysis.time.phases import OWN_SPAN, PHASES
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
"""Columns in which a negative number means none."""
LARGE = 50_000
"""Average steps of a part from which on its columns are not copied."""
Columns = dict[str, NDArray[Any]]
QUANTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p95_ns": 0.95, "p99_ns": 0.99}


def steps(run: RecordedRun | Accounts) -> pl.DataFrame:
    """Return one row for each rank, attempt and step, in the order of execution.

    ``start_ns`` and ``duration_ns`` describe the training iteration, ``gap_ns`` the time since the iteration
    before it. ``period_ns`` is all of the time that belongs to the step, from the wait for its batch to the
    wait for the next batch. So validation, checkpoints and pauses belong to the step before them. Each phase
    has a column, and so has each of the user's own spans without a phase, such as ``span:rollout``; these
    columns sum to ``period_ns``.

    The micro-batches of a step are one row. A step that is repeated within an attempt has two rows.
    """
    parts = [part for part in account(run).parts if part.iterations is not None]
    if not parts:
        return pl.DataFrame(schema=STEPS)
    count = sum(len(part.steps) for part in parts)
    # Large parts are not copied; many small ones are faster in one piece.
    groups = [[part] for part in parts] if count >= LARGE * len(parts) else [parts]
    own = dict.fromkeys(name for part in parts for name in part.own)
    schema = pl.Schema({**STEPS, **{name: pl.Int64() for name in own}})
    return pl.concat([_frame([_columns(part) for part in group], schema) for group in groups])


def phase_columns(table: pl.DataFrame) -> list[str]:
    """Return the columns of a table of steps that sum to ``period_ns``: phases and the user's own spans."""
    return [*PHASES, *(name for name in table.columns if name.startswith(OWN_SPAN))]


def _frame(parts: list[Columns], schema: pl.Schema) -> pl.DataFrame:
    nothing = np.zeros(sum(len(part["step"]) for part in parts), np.int64)
    columns = {}
    for name, kind in schema.items():
        given = [part.get(name) for part in parts]
        if all(values is None for values in given):
            # One shared array: unused phases take no memory.
            columns[name] = pl.Series(name, nothing, dtype=kind)
            continue
        filled = [
            np.zeros(len(part["step"]), np.int64) if values is None else values
            for part, values in zip(parts, given, strict=True)
        ]
        series = pl.Series(name, filled[0] if len(filled) == 1 else np.concatenate(filled), kind)
        if name in NULLABLE and bool((series < 0).any()):
            series = series.set(series < 0, None)
        columns[name] = series
    return pl.DataFrame(columns)


def _columns(part: RankTime) -> Columns:
    iterations = part.iterations
    assert iterations is not None
    cells = part.cells[:, 1:-1]
    count = len(iterations)
    used = np.flatnonzero(part.cells.any(axis=1)).tolist()
    period = np.zeros(count, np.int64)
    for code in used:
        period += cells[code]
    gaps = np.concatenate(([-1], iterations.starts[1:] - iterations.ends[:-1]))
    return {
        "rank": np.full(count, part.rank, np.int32),
        "attempt": np.full(count, part.attempt, np.int32),
        "step": iterations.steps,
        "epoch": iterations.epochs,
        "start_ns": iterations.starts,
        "duration_ns": iterations.ends - iterations.starts,
        "gap_ns": gaps,
        "period_ns": period,
        **{part.phases[code]: cells[code] for code in used},
    }


def percentiles(table: pl.DataFrame) -> pl.DataFrame:
    """Return percentiles of the times of all steps, warm-up included, for each rank and phase that took time.

    ``phase`` may also be ``step`` (the iteration), ``gap`` or ``period``.
    """
    values = {"step": "duration_ns", "gap": "gap_ns", "period": "period_ns"}
    values |= {name: name for name in phase_columns(table) if table[name].max()}
    tables = []
    for phase, column in values.items():
        value = pl.col(column)
        quantiles = [
            value.quantile(q, "nearest").cast(pl.Int64).alias(name) for name, q in QUANTILES.items()
        ]
        tables.append(
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
    return pl.concat(tables).with_columns(pl.col("phase").cast(order)).sort("rank", "phase")
