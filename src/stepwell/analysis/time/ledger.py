"""The ledger: where the wall time went, to the nanosecond. Nothing is counted twice, nothing is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.analysis.time.account import Accounts, RankTime, account
from stepwell.analysis.time.background import KINDS
from stepwell.analysis.time.words import NAMES, PHASES
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun

GROUPS = {"rank": pl.Int32, "attempt": pl.Int32, "epoch": pl.Int64, "step": pl.Int64}
"""What the ledger can be kept by, with the types of the columns."""

PHASE = pl.Enum(list(PHASES))
BACKGROUND: dict[str, Any] = {
    "rank": pl.Int32,
    "attempt": pl.Int32,
    "kind": pl.Enum(list(KINDS)),
    "ns": pl.Int64,
    "busy_ns": pl.Int64,
    "count": pl.Int64,
}


def ledger(
    run: RecordedRun | Accounts, *, by: Sequence[str] = ("rank",), steps: range | None = None
) -> pl.DataFrame:
    """How long each group was in each phase: ``by`` …, ``phase``, ``ns``, ``seconds``, ``share``.

    Args:
        run: a run, or what ``account`` returned for it.
        by: any of ``rank``, ``attempt``, ``epoch`` and ``step``; none for the run as a whole.
        steps: only the time that belongs to these steps.

    The ``ns`` of a group sum to its wall time exactly; ``share`` is that of the group. Time before the first
    step and after the last one has a null as its step. Phases that took no time are left out.
    """
    unknown = [name for name in by if name not in GROUPS]
    if unknown:
        raise StepwellError(f"by has {unknown[0]!r}: write any of {', '.join(GROUPS)}")
    parts = [_part(part, by, steps) for part in account(run).parts]
    table = pl.concat([_empty(by), _frame(parts, by)]) if parts else _empty(by)
    table = table.group_by([*by, "phase"]).agg(pl.col("ns").sum()).sort([*by, "phase"])
    whole = pl.col("ns").sum().over(list(by)) if by else pl.col("ns").sum()
    return table.with_columns(
        (pl.col("ns") / 1e9).alias("seconds"), (pl.col("ns") / whole).alias("share")
    )


def _empty(by: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(
        schema={**{name: GROUPS[name] for name in by}, "phase": PHASE, "ns": pl.Int64}
    )


def _part(part: RankTime, by: Sequence[str], steps: range | None) -> dict[str, NDArray[Any]]:
    """The cells of a rank that took time, as rows."""
    chosen = slice(None) if steps is None else _among(part.steps, steps)
    cells, known = part.cells[:, chosen], {"step": part.steps[chosen], "epoch": part.epochs[chosen]}
    if "step" not in by:
        cells, known = _folded(cells, known, "epoch" in by)
    phase, row = np.nonzero(cells)
    return {
        "rank": np.full(len(row), part.rank, np.int32),
        "attempt": np.full(len(row), part.attempt, np.int32),
        **{name: values[row] for name, values in known.items()},
        "phase": phase,
        "ns": cells[phase, row],
    }


def _frame(parts: list[dict[str, NDArray[Any]]], by: Sequence[str]) -> pl.DataFrame:
    joined = {name: np.concatenate([part[name] for part in parts]) for name in (*by, "phase", "ns")}
    columns = {
        name: _nullable(values) if name in ("step", "epoch") else pl.Series(values)
        for name, values in joined.items()
    }
    columns["phase"] = pl.Series(NAMES, dtype=PHASE).gather(joined["phase"])
    return pl.DataFrame(columns)


def _folded(
    cells: NDArray[np.int64], known: dict[str, NDArray[np.int64]], by_epoch: bool
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """The cells of all steps together, or of those of each epoch."""
    if not by_epoch or not cells.shape[1]:
        return cells.sum(axis=1, keepdims=True), {}
    epochs = known["epoch"]
    first = np.flatnonzero(np.concatenate(([True], epochs[1:] != epochs[:-1])))
    return np.add.reduceat(cells, first, axis=1), {"epoch": epochs[first]}


def _among(values: NDArray[np.int64], wanted: range) -> NDArray[np.bool_]:
    if not len(wanted):
        return np.zeros(len(values), bool)
    low, high = min(wanted), max(wanted)
    inside: NDArray[np.bool_] = (values >= max(low, 0)) & (values <= high)
    inside &= (values - low) % abs(wanted.step) == 0
    return inside


def _nullable(values: NDArray[np.int64]) -> pl.Series:
    series = pl.Series(values, dtype=pl.Int64)
    return series.set(series < 0, None)


def background(run: RecordedRun | Accounts) -> pl.DataFrame:
    """What other threads and workers did while a rank trained: time that is in no line of the ledger.

    ``ns`` is for how long at least one of them was at it, ``busy_ns`` for how long each was, summed up.
    """
    rows = [
        (part.rank, part.attempt, found.kind, found.ns, found.busy_ns, found.count)
        for part in account(run).parts
        for found in part.background
    ]
    return pl.DataFrame(rows, schema=BACKGROUND, orient="row")
