"""Ranks: their skew, what each of them is doing, and the grid of their times."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stepwell._core.text import duration
from stepwell.analysis.detail import grid_at
from stepwell.analysis.ranks.grid import Grid, read_grids
from stepwell.analysis.ranks.hang import hang
from stepwell.analysis.ranks.stacks import Stack, stacks
from stepwell.analysis.ranks.stragglers import Straggler, skew, stragglers
from stepwell.analysis.timeline.step_phases import BETWEEN
from stepwell.analysis.tracebacks import shown_lines
from stepwell.dashboard.answers.overview import main_processes
from stepwell.dashboard.answers.values import Json, plain
from stepwell.dashboard.parameters import Parameters
from stepwell.reading import RecordedRun
from stepwell.reading.documents import clean

MOST_STACKS = 512
RANK_TIMES = ("step_ns", "slower", "phase", "phase_ns", "typical_ns")
WAITING = ("communication", "idle")
"""Phases in which a rank waits for others: they are long on the fast ranks."""


def ranks(run: RecordedRun) -> Json:
    """Return the skew of the ranks, and what each of them is doing in the latest attempt."""
    grids = read_grids(run)
    open_stacks = stacks(run)
    hung = hang(run, open_stacks=open_stacks)
    several = [grid for grid in grids if len(grid.ranks) > 1]
    slow = stragglers(run, several) if several else []
    worst = max(
        (
            (each.ns, grid.attempt, each.phase)
            for grid in several
            for each in stragglers(run, [grid])
        ),
        default=None,
    )
    return {
        "ranks": _rank_lines(run, grids, slow),
        "stacks": [_stack(stack) for stack in open_stacks[:MOST_STACKS]],
        "hang": None if hung is None else f"{hung.sentence}.",
        "stragglers": [_straggler(each) for each in slow[:20]],
        "focus": None if worst is None else {"phase": worst[2], "attempt": worst[1]},
    }


def _straggler(slow: Straggler) -> str:
    often = f"in {len(slow.steps)} steps" if len(slow.steps) > 1 else f"in step {slow.steps[0]}"
    return (
        f"Rank {slow.rank} is slow in {slow.phase} {often}; "
        f"the others waited {duration(slow.ns)} for it."
    )


def _rank_lines(run: RecordedRun, grids: Sequence[Grid], slow: Sequence[Straggler]) -> list[Json]:
    table = main_processes(run)
    table = table.filter(pl.col("attempt") == pl.col("attempt").max()).sort("rank")
    own = _rank_times(grids)
    waited: dict[int, int] = {}
    for each in slow:
        waited[each.rank] = waited.get(each.rank, 0) + each.ns
    lines = [
        {
            "rank": row["rank"],
            "host": clean(str(row["host"] or "")),
            "status": row["status"],
            "step": row["step"],
            **own.get(row["rank"], dict.fromkeys(RANK_TIMES)),
            "waited_ns": waited.get(row["rank"], 0),
        }
        for row in table.iter_rows(named=True)
    ]
    return sorted(
        lines, key=lambda line: (-line["waited_ns"], -(line["slower"] or 0), line["rank"])
    )


def _rank_times(grids: Sequence[Grid]) -> dict[int, Json]:
    """Return the mean own time in a step of each rank, and its phase furthest from the median rank."""
    table = skew([], list(grids)).filter(~pl.col("phase").is_in([*WAITING, *BETWEEN]))
    typical = pl.col("mean_ns").median().over("phase")
    table = (
        table.with_columns(typical=typical, excess=pl.col("mean_ns") - typical)
        .sort("excess", "phase", descending=[True, False])
        .group_by("rank")
        .agg(pl.col("phase", "mean_ns", "typical").first(), total=pl.col("mean_ns").sum())
    )
    usual = table["total"].median()
    return {
        row["rank"]: {
            "step_ns": round(row["total"]),
            "slower": row["total"] / usual - 1 if usual else None,
            "phase": row["phase"],
            "phase_ns": round(row["mean_ns"]),
            "typical_ns": round(row["typical"]),
        }
        for row in table.iter_rows(named=True)
    }


def _stack(stack: Stack) -> Json:
    return {
        "rank": stack.rank,
        "attempt": stack.attempt,
        "process": stack.process,
        "thread": stack.thread,
        "status": stack.status,
        "step": stack.step,
        "frames": [
            {
                "name": frame.name,
                "category": frame.category,
                "seconds": frame.seconds,
                "attributes": plain(frame.attributes),
            }
            for frame in stack.frames
        ],
        "last": None
        if stack.last is None
        else {"name": stack.last.name, "seconds": stack.last.seconds},
        "lines": list(shown_lines(stack.lines)),
        "silent_s": stack.silent_s,
    }


def grid_answer(run: RecordedRun, given: Parameters) -> Json:
    """Return the times of ranks and steps in one phase."""
    first, last = given.whole("first"), given.whole("last")
    low, high = given.whole("low"), given.whole("high")
    answer: Json = plain(
        grid_at(
            run,
            given.text("phase"),
            attempt=given.whole("attempt"),
            ranks=None if low is None or high is None else range(low, min(high, low + 100_000) + 1),
            steps=None if first is None or last is None else (first, last),
            width=given.count("width", 1200, 1, 4096),
            height=given.count("height", 600, 1, 4096),
        )
    )
    return answer
