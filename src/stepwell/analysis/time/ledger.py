"""The ledger: where the wall time went, to the nanosecond. Nothing is counted twice, nothing is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell.analysis.time.account import Accounts, RankTime, account
from stepwell.analysis.time.background import KINDS
from stepwell.analysis.time.words import PHASES
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun

GROUPS = {"rank": pl.Int32, "attempt": pl.Int32, "epoch": pl.Int64, "step": pl.Int64}
"""What the ledger can be kept by, with the types of the columns."""

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
    step and after the last one has a null as its step. Phases that took no time are left out. The user's
    own spans are phases such as ``span:rollout``.
    """
    unknown = [name for name in by if name not in GROUPS]
    if unknown:
        raise StepwellError(f"by has {unknown[0]!r}: write any of {', '.join(GROUPS)}")
    found = account(run).parts
    phases = all_phases(found)
    parts = [_part(part, phases, by, steps) for part in found]
    table = _empty(phases, by)
    table = pl.concat([table, _frame(parts, phases, by)]) if parts else table
    table = table.group_by([*by, "phase"]).agg(pl.col("ns").sum()).sort([*by, "phase"])
    whole = pl.col("ns").sum().over(list(by)) if by else pl.col("ns").sum()
    return table.with_columns(
        (pl.col("ns") / 1e9).alias("seconds"), (pl.col("ns") / whole).alias("share")
    )


def all_phases(parts: Sequence[RankTime]) -> list[str]:
    """The phases, and the user's own spans in any of these parts."""
    return list(dict.fromkeys([*PHASES, *(name for part in parts for name in part.own)]))


def _empty(phases: list[str], by: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(
        schema={**{name: GROUPS[name] for name in by}, "phase": pl.Enum(phases), "ns": pl.Int64}
    )


def _part(
    part: RankTime, phases: list[str], by: Sequence[str], steps: range | None
) -> dict[str, NDArray[Any]]:
    """The cells of a rank that took time, as rows."""
    chosen = slice(None) if steps is None else _among(part.steps, steps)
    cells, known = part.cells[:, chosen], {"step": part.steps[chosen], "epoch": part.epochs[chosen]}
    if "step" not in by:
        cells, known = _folded(cells, known, "epoch" in by)
    line, row = np.nonzero(cells)
    number = np.array([phases.index(name) for name in part.phases], np.int64)
    return {
        "rank": np.full(len(row), part.rank, np.int32),
        "attempt": np.full(len(row), part.attempt, np.int32),
        **{name: values[row] for name, values in known.items()},
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


BETWEEN_ATTEMPTS = "between attempts"


def time_table(parts: Sequence[RankTime]) -> dict[str, int]:
    """Nanoseconds by phase and own span, which sum to the wall time of the run.

    The wall time is from the start of the first process to the end of the last one. Of several ranks it is
    the mean, to which a rank adds the time before it starts as ``startup`` and the time after it ends as
    ``ending``. The time from one attempt to the next is ``between attempts``.
    """
    found: dict[str, int] = {}
    attempts: dict[int, list[RankTime]] = {}
    for part in parts:
        attempts.setdefault(part.attempt, []).append(part)
    for ranks in attempts.values():
        start, end = min(part.start_ns for part in ranks), max(part.end_ns for part in ranks)
        _add_attempt(found, ranks, start, end)
    if len(attempts) > 1:
        wall = max(part.end_ns for part in parts) - min(part.start_ns for part in parts)
        rest = wall - sum(found.values())
        # The last heartbeat of an attempt may come after the next one has begun.
        line = BETWEEN_ATTEMPTS if rest > 0 else max(found, key=found.__getitem__)
        found[line] = found.get(line, 0) + rest
    return {line: ns for line, ns in found.items() if ns}


def _add_attempt(found: dict[str, int], ranks: list[RankTime], start: int, end: int) -> None:
    """Add the mean of the ranks of one attempt, whole nanoseconds that sum to its wall time."""
    sums = {"startup": 0, "ending": 0, "other": 0}
    for part in ranks:
        for line, ns in zip(part.phases, part.cells.sum(axis=1).tolist(), strict=True):
            sums[line] = sums.get(line, 0) + ns
        sums["startup"] += part.start_ns - start
        sums["ending"] += end - part.end_ns
    means = {line: ns // len(ranks) for line, ns in sums.items()}
    means["other"] += end - start - sum(means.values())
    for line, ns in means.items():
        found[line] = found.get(line, 0) + ns
