"""Tables of the time of a run: the ledger, the steps, the work in the background, the time table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stepwell._core.checks import one_of
from stepwell.analysis.timeline.background import KINDS
from stepwell.analysis.timeline.intervals import Ints
from stepwell.analysis.timeline.phases import OWN_SPAN, PHASES
from stepwell.analysis.timeline.step_phases import unique
from stepwell.analysis.timeline.timeline import Timeline, Timelines, timelines
from stepwell.analysis.timeline.wall import wall_ns

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
    run: Timelines, *, by: Sequence[str] = ("rank",), steps: range | None = None
) -> pl.DataFrame:
    """Return the time of each group in each phase.

    Columns: those of ``by``, then ``phase``, ``ns``, ``seconds`` and ``share``.

    Args:
        run: a run, or its timelines.
        by: any of ``rank``, ``attempt``, ``epoch`` and ``step``; empty for the run as a whole.
        steps: count only the time that belongs to these steps.

    The ``ns`` of a group sum to its wall time exactly; ``share`` is relative to the group. The step is null
    before the first step and after the last one. Phases that took no time are left out. The user's own spans
    are phases such as ``span:rollout``.
    """
    for name in by:
        one_of(*GROUPS).check("by", name)
    parts = timelines(run)
    phases = all_phases(parts)
    cells = [_cells(part, phases, by, steps) for part in parts]
    table = _empty(phases, by)
    table = pl.concat([table, _frame(cells, phases, by)]) if cells else table
    table = table.group_by([*by, "phase"]).agg(pl.col("ns").sum()).sort([*by, "phase"])
    whole = pl.col("ns").sum().over(list(by)) if by else pl.col("ns").sum()
    return table.with_columns(
        (pl.col("ns") / 1e9).alias("seconds"), (pl.col("ns") / whole).alias("share")
    )


def all_phases(parts: Sequence[Timeline]) -> list[str]:
    """Return all phases, then the user's own spans in any of these parts."""
    return list(dict.fromkeys([*PHASES, *(name for part in parts for name in part.own)]))


def _empty(phases: list[str], by: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(
        schema={**{name: GROUPS[name] for name in by}, "phase": pl.Enum(phases), "ns": pl.Int64}
    )


def _cells(
    part: Timeline, phases: list[str], by: Sequence[str], steps: range | None
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


def background(run: Timelines) -> pl.DataFrame:
    """Return the work of other threads and workers while a rank trained, which is not in the ledger.

    ``ns`` is the time during which at least one of them worked, ``busy_ns`` the sum over all of them.
    """
    rows = [
        (part.rank, part.attempt, work.kind, work.ns, work.busy_ns, work.count)
        for part in timelines(run)
        for work in part.background
    ]
    return pl.DataFrame(rows, schema=BACKGROUND, orient="row")


BETWEEN_ATTEMPTS = "between attempts"


def time_table(parts: Sequence[Timeline]) -> dict[str, int]:
    """Return nanoseconds by phase and own span, which sum to the wall time of the run.

    The wall time is from the start of the first process to the end of the last one. Each phase is the mean
    over the ranks; the time before a rank starts counts as ``startup``, the time after it ends as ``ending``.
    The time from one attempt to the next is ``between attempts``.
    """
    table: dict[str, int] = {}
    attempts: dict[int, list[Timeline]] = {}
    for part in parts:
        attempts.setdefault(part.attempt, []).append(part)
    for ranks in attempts.values():
        start, end = min(part.start_ns for part in ranks), max(part.end_ns for part in ranks)
        _add_attempt(table, ranks, start, end)
    if len(attempts) > 1:
        rest = wall_ns(part.life for part in parts) - sum(table.values())
        # Negative if the last heartbeat of an attempt comes after the next attempt has begun.
        line = BETWEEN_ATTEMPTS if rest > 0 else max(table, key=table.__getitem__)
        table[line] = table.get(line, 0) + rest
    return {line: ns for line, ns in table.items() if ns}


def _add_attempt(table: dict[str, int], ranks: list[Timeline], start: int, end: int) -> None:
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
WARM_UP = 3
"""First steps of an attempt, which are usually slow and left out."""
NULLABLE = ("epoch", "gap_ns")
"""Columns in which a negative number means none."""
LARGE = 50_000
"""Average steps of a part from which on its columns are not copied."""
MANY = 200
"""Parts above which rows are selected by a filter instead of by slices, which are slow to put together."""
Columns = dict[str, NDArray[Any]]
QUANTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p95_ns": 0.95, "p99_ns": 0.99}


def steps(run: Timelines) -> pl.DataFrame:
    """Return one row for each rank, attempt and step, in the order of execution.

    ``start_ns`` and ``duration_ns`` describe the training iteration, ``gap_ns`` the time since the iteration
    before it. ``period_ns`` is all of the time that belongs to the step, from the wait for its batch to the
    wait for the next batch. So validation, checkpoints and pauses belong to the step before them. Each phase
    has a column, and so has each of the user's own spans without a phase, such as ``span:rollout``; these
    columns sum to ``period_ns``.

    The micro-batches of a step are one row. A step that is repeated within an attempt has two rows.
    """
    parts = [part for part in timelines(run) if part.iterations is not None]
    if not parts:
        return pl.DataFrame(schema=STEPS)
    count = sum(len(part.steps) for part in parts)
    # Large parts are not copied; many small ones are faster in one piece.
    groups = [[part] for part in parts] if count >= LARGE * len(parts) else [parts]
    own = dict.fromkeys(name for part in parts for name in part.own)
    schema = pl.Schema({**STEPS, **{name: pl.Int64() for name in own}})
    return pl.concat([_steps_frame(list(map(_columns, group)), schema) for group in groups])


def steady_steps(table: pl.DataFrame, run: Timelines) -> pl.DataFrame:
    """Return the rows of ``steps(run)`` without the first steps of each attempt.

    Also without the last step of an unfinished attempt: it still runs, or its time ends when the process
    was killed.
    """
    parts = [part for part in timelines(run) if part.iterations is not None]
    counts = [len(part.iterations) for part in parts if part.iterations is not None]
    ends = np.cumsum(counts, dtype=np.int64).tolist()
    rows = [
        slice(first + WARM_UP, max(first + WARM_UP, end - part.ends_under_way))
        for part, first, end in zip(parts, [0, *ends], ends, strict=False)
    ]
    if 0 < len(rows) <= MANY:
        # Slices copy nothing.
        return pl.concat([table[each] for each in rows])
    kept = np.zeros(table.height, bool)
    for each in rows:
        kept[each] = True
    return table.filter(kept)


@dataclass(frozen=True)
class SideBySide:
    """The steps of an attempt, ascending, and columns of the table of steps as arrays: rank by step.

    -1 stands for a step that a rank does not have. A repeated step counts as one, with all of its time.
    """

    attempt: int
    ranks: Ints
    steps: Ints
    columns: tuple[Ints, ...]


def side_by_side(table: pl.DataFrame, *columns: pl.Series) -> Iterator[SideBySide]:
    """Yield the attempts of a table of steps. ``columns`` are as long as the table and never negative."""
    ranks, attempts, steps = (table[name].to_numpy() for name in ("rank", "attempt", "step"))
    is_new = (ranks[1:] != ranks[:-1]) | (attempts[1:] != attempts[:-1])
    edges = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(ranks)]
    rows: dict[int, list[slice]] = {}
    for low, high in pairwise(edges) if len(ranks) else ():
        rows.setdefault(int(attempts[low]), []).append(slice(low, high))
    for attempt, parts in sorted(rows.items()):
        every = merge_steps([steps[part] for part in parts])
        numbers, places = np.unique([ranks[part.start] for part in parts], return_inverse=True)
        arrays = tuple(np.full((len(numbers), len(every)), -1, np.int64) for _ in columns)
        for part, place in zip(parts, places.tolist(), strict=True):
            where = np.searchsorted(every, steps[part])
            for array, column in zip(arrays, columns, strict=True):
                row = array[place]
                row[where] = np.maximum(row[where], 0)
                np.add.at(row, where, column[part].to_numpy())
        yield SideBySide(attempt, numbers.astype(np.int64), every, arrays)


def merge_steps(of_ranks: Iterable[Ints]) -> Ints:
    """Return all of these steps, ascending. Usually all ranks have the same ones, in this order."""
    first, *others = of_ranks
    is_same = all(np.array_equal(own, first) for own in others)
    return unique(first if is_same else np.concatenate([first, *others]))


def phase_columns(table: pl.DataFrame) -> list[str]:
    """Return the columns of a table of steps that sum to ``period_ns``: phases and the user's own spans."""
    return [*PHASES, *(name for name in table.columns if name.startswith(OWN_SPAN))]


def _steps_frame(parts: list[Columns], schema: pl.Schema) -> pl.DataFrame:
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


def _columns(part: Timeline) -> Columns:
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
