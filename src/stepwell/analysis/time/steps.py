"""The table of steps: how long each one took, and in which phases."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepwell.analysis.time.account import Accounts, RankTime, account
from stepwell.analysis.time.words import NAMES
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
        **{name: pl.Int64() for name in NAMES},
    }
)
QUANTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p95_ns": 0.95, "p99_ns": 0.99}


def steps(run: RecordedRun | Accounts) -> pl.DataFrame:
    """One row for each rank, attempt and step, in the order in which they were done.

    ``start_ns`` and ``duration_ns`` are those of the training iteration, ``gap_ns`` is what lies between the
    one before and this. ``period_ns`` is all of the time that belongs to the step, and what the phases, a
    column each, sum to: from when its batch was waited for until the same of the next step. So validation,
    checkpoints and pauses belong to the step that they come after.

    Micro-batches are one row; a step that is done twice in one attempt has two.
    """
    parts = [_part(part) for part in account(run).parts if part.iterations is not None]
    return pl.concat([pl.DataFrame(schema=STEPS), *parts])


def _part(part: RankTime) -> pl.DataFrame:
    found = part.iterations
    assert found is not None
    cells = part.cells[:, 1:-1]
    count = len(found)
    gaps = pl.Series(np.concatenate(([-1], found.starts[1:] - found.ends[:-1])))
    epochs = pl.Series(found.epochs)
    columns = {
        "rank": pl.repeat(part.rank, count, dtype=pl.Int32, eager=True),
        "attempt": pl.repeat(part.attempt, count, dtype=pl.Int32, eager=True),
        "step": found.steps,
        "epoch": epochs.set(epochs < 0, None),
        "start_ns": found.starts,
        "duration_ns": found.ends - found.starts,
        "gap_ns": gaps.set(gaps < 0, None),
        "period_ns": cells.sum(axis=0),
        **{name: cells[code] for code, name in enumerate(NAMES)},
    }
    return pl.DataFrame(columns, schema=STEPS)


def percentiles(table: pl.DataFrame) -> pl.DataFrame:
    """How the times of steps are spread: of each rank, a row for each phase that ever took time.

    ``phase`` is also ``step`` (the iteration), ``gap`` and ``period``. Nothing is left out, warm-up neither.
    """
    values = {"step": "duration_ns", "gap": "gap_ns", "period": "period_ns"}
    values |= {name: name for name in NAMES if table[name].max()}
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
