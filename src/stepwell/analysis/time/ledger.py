"""The ledger: wall time by phase. Every nanosecond is counted exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell._core.checks import one_of
from stepwell.analysis.time.account import Accounts, RankTime, account
from stepwell.analysis.time.background import KINDS
from stepwell.analysis.time.phases import PHASES
from stepwell.reading import RecordedRun

GROUPS = {"rank": pl.Int32, "attempt": pl.Int32, "epoch": pl.Int64, "step": pl.Int64}
"""Columns that the ledger can be grouped by, with their types."""

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
    """Return the time of each group in each phase.

    Columns: those of ``by``, then ``phase``, ``ns``, ``seconds`` and ``share``.

    Args:
        run: a run, or the result of ``account``.
        by: any of ``rank``, ``attempt``, ``epoch`` and ``step``; empty for the run as a whole.
        steps: count only the time that belongs to these steps.

    The ``ns`` of a group sum to its wall time exactly; ``share`` is relative to the group. The step is null
    before the first step and after the last one. Phases that took no time are left out. The user's own spans
    are phases such as ``span:rollout``.
    """
    for name in by:
        one_of(*GROUPS).check("by", name)
    parts = account(run).parts
    phases = all_phases(parts)
    cells = [_cells(part, phases, by, steps) for part in parts]
    table = _empty(phases, by)
    table = pl.concat([table, _frame(cells, phases, by)]) if cells else table
    table = table.group_by([*by, "phase"]).agg(pl.col("ns").sum()).sort([*by, "phase"])
    whole = pl.col("ns").sum().over(list(by)) if by else pl.col("ns").sum()
    return table.with_columns(
        (pl.col("ns") / 1e9).alias("seconds"), (pl.col("ns") / whole).alias("share")
    )


def all_phases(parts: Sequence[RankTime]) -> list[str]:
    """Return all phases, then the user's own spans in any of these parts."""
    return list(dict.fromkeys([*PHASES, *(name for part in parts for name in part.own)]))


def _empty(phases: list[str], by: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(
        schema={**{name: GROUPS[name] for name in by}, "phase": pl.Enum(phases), "ns": pl.Int64}
    )


def _cells(
    part: RankTime, phases: list[str], by: Sequence[str], steps: range | None
) -> dict[str, NDArray[Any]]:
    """Return the cells of a rank that are not zero, as columns of a table."""
    chosen = slice(None) if steps is None else _among(part.steps, steps)
    cells, labels = (
        part.cells[:, chosen],
        {"step": part.steps[chosen], "epoch": part.epochs[chosen]},
    )
    if "step" not in by:
        cells, labels = _fold(cells, labels, "epoch" in by)
    line, row = np.nonzero(cells)
    number = np.array([phases.index(name) for name in part.phases], np.int64)
    return {
        "rank": np.full(len(row), part.rank, np.int32),
        "attempt": np.full(len(row), part.attempt, np.int32),
        **{name: values[row] for name, values in labels.items()},
        "phase": number[line],
        "ns": cells[line, row],
    }


def _frame(
    parts: list[dict[str, NDArray[Any]]], phases: list[str], by: Sequence[str]
) -> pl.DataFrame:
    joined = {name: np.concatenate([part[name] for part in parts]) for name in (*by, "phase", "ns")}
    columns = {
        name: _nullable(values) if name in ("step", "epoch") else pl.Series(values)
        for name, values in joined.items()
    }
    columns["phase"] = pl.Series(phases, dtype=pl.Enum(phases)).gather(joined["phase"])
    return pl.DataFrame(columns)


def _fold(
    cells: NDArray[np.int64], labels: dict[str, NDArray[np.int64]], by_epoch: bool
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """Sum the cells over all steps, or over the steps of each epoch."""
    if not by_epoch or not cells.shape[1]:
        return cells.sum(axis=1, keepdims=True), {}
    epochs = labels["epoch"]
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
    """Return the work of other threads and workers while a rank trained, which is not in the ledger.

    ``ns`` is the time during which at least one of them worked, ``busy_ns`` the sum over all of them.
    """
    rows = [
        (part.rank, part.attempt, work.kind, work.ns, work.busy_ns, work.count)
        for part in account(run).parts
        for work in part.background
    ]
    return pl.DataFrame(rows, schema=BACKGROUND, orient="row")


BETWEEN_ATTEMPTS = "between attempts"


def time_table(parts: Sequence[RankTime]) -> dict[str, int]:
    """Return nanoseconds by phase and own span, which sum to the wall time of the run.

    The wall time is from the start of the first process to the end of the last one. Each phase is the mean
    over the ranks; the time before a rank starts counts as ``startup``, the time after it ends as ``ending``.
    The time from one attempt to the next is ``between attempts``.
    """
    table: dict[str, int] = {}
    attempts: dict[int, list[RankTime]] = {}
    for part in parts:
        attempts.setdefault(part.attempt, []).append(part)
    for ranks in attempts.values():
        start, end = min(part.start_ns for part in ranks), max(part.end_ns for part in ranks)
        _add_attempt(table, ranks, start, end)
    if len(attempts) > 1:
        wall = max(part.end_ns for part in parts) - min(part.start_ns for part in parts)
        rest = wall - sum(table.values())
        # Negative if the last heartbeat of an attempt comes after the next attempt has begun.
        line = BETWEEN_ATTEMPTS if rest > 0 else max(table, key=table.__getitem__)
        table[line] = table.get(line, 0) + rest
    return {line: ns for line, ns in table.items() if ns}


def _add_attempt(table: dict[str, int], ranks: list[RankTime], start: int, end: int) -> None:
    """Add the mean of the ranks of one attempt, in whole nanoseconds that sum to its wall time."""
    sums = {"startup": 0, "ending": 0, "other": 0}
    for part in ranks:
        for line, ns in zip(part.phases, part.cells.sum(axis=1).tolist(), strict=True):
            sums[line] = sums.get(line, 0) + ns
        sums["startup"] += part.start_ns - start
        sums["ending"] += end - part.end_ns
    means = {line: ns // len(ranks) for line, ns in sums.items()}
    means["other"] += end - start - sum(means.values())
    for line, ns in means.items():
        table[line] = table.get(line, 0) + ns
