"""Steps that were begun and that no rank completed: under way, or ended by an exception or a kill."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepwell.analysis.ranks.grid import Grid
from stepwell.analysis.time.account import RankTime
from stepwell.analysis.time.words import ITERATION, LIKE_ITERATION, code_of, phase_of_span
from stepwell.reading.spans import SpanReader
from stepwell.reading.tables import ProcessTables
from stepwell.reading.window import ALWAYS, may_touch

if TYPE_CHECKING:
    from stepwell.analysis.findings import Facts

BY_EXCEPTION = ("failed", "interrupted")
PARTS = ("forward", "backward", "optimizer")
COLUMNS = {"name", "category", "start_ns", "status"}

Undone = dict[int, set[int]]
"""Steps by attempt."""


def undone_steps(facts: Facts) -> Undone:
    """The steps at the end of attempts that no rank completed.

    To be asked before anything lets go of the facts' evidence: it need not be read again then.
    """
    at_the_end = [part for part in _with_steps(facts) if _may_be_left(part)]
    left = _left(facts, at_the_end)
    found: Undone = defaultdict(set)
    for part in at_the_end:
        if part.process in left:
            found[part.attempt].add(_last(part))
    for part in _with_steps(facts):
        done = {step for step in found.get(part.attempt, ()) if _has_done(part, step, left)}
        if done:
            found[part.attempt] -= done
    return {attempt: steps for attempt, steps in found.items() if steps}


def completed(steps: pl.DataFrame, undone: Undone) -> pl.DataFrame:
    """A table of steps without those that were not completed."""
    for attempt, numbers in undone.items():
        is_it = (pl.col("attempt") == attempt) & pl.col("step").is_in(sorted(numbers))
        steps = steps.filter(~is_it)
    return steps


def _with_steps(facts: Facts) -> list[RankTime]:
    return [part for part in facts.accounts.parts if part.iterations is not None]


def _last(part: RankTime) -> int:
    assert part.iterations is not None
    return int(part.iterations.steps[-1])


def _has_done(part: RankTime, step: int, left: set[str]) -> bool:
    """Whether a rank completed a step: what it went on from is done."""
    assert part.iterations is not None
    if _last(part) == step:
        return part.process not in left
    return bool((part.iterations.steps == step).any())


def _may_be_left(part: RankTime) -> bool:
    """Whether its last iteration may be without an end of its own."""
    if part.iterations is None or part.status == "finished":
        return False
    if part.status == "running":
        return int(part.iterations.ends[-1]) >= part.end_ns
    # A process that handles SIGTERM with an exit leaves its iteration, and is killed as well.
    return part.iterations.are_spans or int(part.iterations.ends[-1]) >= part.end_ns


def _left(facts: Facts, parts: list[RankTime]) -> set[str]:
    """The processes of these whose last iteration was left undone."""
    if not parts:
        return set()
    grids = {grid.attempt: grid for grid in facts.summary.evidence.grids}
    found, unknown = set(), {}
    for part in parts:
        grid = grids.get(part.attempt)
        done = None if part.status in BY_EXCEPTION else _is_done(facts, grid, part)
        if done is None:
            unknown[part.process] = part
        elif not done:
            found.add(part.process)
    for habits in facts.summary.habits:
        asked = unknown.pop(habits.process, None)
        if asked is not None and asked.iterations is not None:
            found |= (
                {habits.process} if (habits.left_ns or 0) >= asked.iterations.starts[-1] else set()
            )
    # Earlier attempts of a run that has finished.
    rank = next(iter(unknown.values())).rank if len(unknown) == 1 else None
    for tables in facts.run.by_process(rank, partial=True) if unknown else ():
        asked = unknown.get(tables.process.name)
        began = None if asked is None or asked.iterations is None else asked.iterations.starts[-1]
        if began is not None and _is_left(tables, int(began)):
            found.add(tables.process.name)
    return found


def _is_done(facts: Facts, grid: Grid | None, part: RankTime) -> bool | None:
    """What the grid of an attempt says; None: it has no such step.

    Once the optimizer has made its step, only the rest of the loop's body is under way.
    """
    if grid is None or part.rank not in grid.ranks:
        return None
    column = int(np.searchsorted(grid.steps, _last(part)))
    if column >= len(grid.steps) or grid.steps[column] != _last(part):
        return None
    if (part.rank, _last(part)) in grid.failed:
        return False
    row = grid.ranks.index(part.rank)
    if grid.is_done[row, column]:
        return True
    has_stepped = any(
        layer.phase == "optimizer" and layer.ns[row, column] > 0 for layer in grid.layers
    )
    return has_stepped and not _is_in_pass(facts, part.process)


def _is_in_pass(facts: Facts, process: str) -> bool:
    """Whether a process is in a pass or an optimizer step, or was when it died."""
    inside = facts.open_spans.filter(pl.col("process") == process).select("name", "category")
    return any(
        phase_of_span(name, category or "") in PARTS for name, category in inside.iter_rows()
    )


def _is_left(tables: ProcessTables, since: int) -> bool:
    """Whether an iteration that began then, or later, did not end by itself; only the last spans are read."""
    reader, window = SpanReader(tables.process), (since - tables.offset, ALWAYS[1])
    for segment in reader.segments:
        if may_touch(segment, window):
            rows = reader.rows(segment, depths=False)
            frame = tables.span_frame(segment, rows, None, COLUMNS)
            odd = frame.filter((frame["start_ns"] >= since) & (frame["status"] != "ok"))
            for name, category in odd.select("name", "category").iter_rows():
                if code_of(name, category or "") & (ITERATION | LIKE_ITERATION):
                    return True
    return False
