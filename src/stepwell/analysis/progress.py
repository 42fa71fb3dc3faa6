"""Progress of a run: completed and incomplete steps, the planned number of steps, the time left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepwell.analysis.ranks.grid import Grid
from stepwell.analysis.time.account import RankTime
from stepwell.analysis.time.phases import ITERATION, LIKE_ITERATION, code_of, phase_of_span
from stepwell.reading.segments import ALWAYS, may_touch
from stepwell.reading.spans import SpanReader
from stepwell.reading.tables import ProcessTables
from stepwell.vocabulary import StandardTrainingJobSpanName

if TYPE_CHECKING:
    from stepwell.analysis.findings import Facts

STEPS = (
    "target_steps",
    "max_steps",
    "total_steps",
    "num_steps",
    "train_steps",
    "train_iterations_target",
    "steps",
)
TRAINING_LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value
EPOCHS = ("max_epochs", "num_epochs", "epochs", "num_train_epochs", "n_epochs")
OVERDUE_S = 5.0
"""A step that is later than this may be overdue."""
LATEST = 200
"""Number of latest steps that the current pace is computed from."""
BY_EXCEPTION = ("failed", "interrupted")
PARTS = ("forward", "backward", "optimizer")
COLUMNS = {"name", "category", "start_ns", "status"}

IncompleteSteps = dict[int, set[int]]
"""Steps that were begun but that no rank completed, by attempt."""


@dataclass(frozen=True)
class TimeLeft:
    """Completed steps, planned steps, and the time left at the current pace.

    ``ns`` is None if it is unknown, because the run hangs or its current step takes unusually long.
    """

    done: int
    target: int
    ns: int | None


def time_left(facts: Facts, incomplete: IncompleteSteps) -> TimeLeft | None:
    """Return the time left; None if the planned number of steps is unknown, or no step is completed.

    Incomplete steps count neither as done nor for the pace.
    """
    steps = drop_incomplete(facts.steady, incomplete)
    steps = steps if steps.height else drop_incomplete(facts.steps, incomplete)
    if steps.is_empty():
        return None
    rank = steps.filter(pl.col("rank") == steps["rank"].min()).sort("start_ns")
    every = drop_incomplete(facts.steps, incomplete).filter(pl.col("rank") == rank["rank"][0])
    last = every["step"].max()
    done = int(last) + 1 if isinstance(last, int) else 0
    target = _target(facts, every)
    if target is None or target < done:
        return None
    latest = rank.tail(LATEST)
    ended = (every["start_ns"] + every["duration_ns"]).max()
    waited = facts.now_ns(int(rank["rank"][0])) - (ended if isinstance(ended, int) else 0)
    if is_overdue(waited / 1e9, (latest["period_ns"] / 1e9).to_list()):
        return TimeLeft(done, target, None)
    pace = float(latest["period_ns"].sum()) / latest.height
    return TimeLeft(done, target, round(pace * (target - done)))


def unusual(seconds: Sequence[float]) -> float:
    """Return the duration from which on a step is unusual, given the durations of others."""
    return max(3 * max(seconds), 20 * float(np.median(seconds)))


def is_overdue(waited_s: float, seconds: Sequence[float]) -> bool:
    """Return whether the next step is so late that the time left cannot be computed from the pace."""
    return len(seconds) > 0 and waited_s > max(OVERDUE_S, unusual(seconds))


def _target(facts: Facts, steps: pl.DataFrame) -> int | None:
    config = facts.run.config
    loops = [*(loop.attributes for loop in reversed(facts.loops(TRAINING_LOOP))), {}]
    explicit = next((count for loop in loops if (count := explicit_target(config, loop))), None)
    epochs = whole_number(config, EPOCHS)
    if explicit is not None or epochs is None:
        return explicit
    by_loader = (loader_target(epochs, loop) for loop in loops)
    return _from_epochs(steps, epochs) or next(filter(None, by_loader), None)


def _from_epochs(steps: pl.DataFrame, epochs: int) -> int | None:
    """Return the planned optimizer steps from the epochs that are complete; None without any."""
    counts = (
        steps.drop_nulls("epoch").group_by("epoch").agg(pl.col("step").n_unique()).sort("epoch")
    )
    # The last epoch is in progress, and a resumed training may have begun within an epoch.
    is_resumed = steps["step"].min() != 0
    whole = counts["step"][int(is_resumed) : counts.height - 1].max()
    return epochs * whole if isinstance(whole, int) else None


def explicit_target(config: Mapping[str, Any], loop: Mapping[str, Any]) -> int | None:
    """Return the number of steps in the training loop's attributes or the configuration, or None."""
    return whole_number(loop, ("train_iterations_target",)) or whole_number(config, STEPS)


def loader_target(
    epochs: int, loop: Mapping[str, Any], steps_per_epoch: float | None = None
) -> int | None:
    """Return the planned optimizer steps from the length of the data loader; None if that is unknown.

    The number of batches per step is recorded, or estimated from the steps per epoch.
    """
    batches = whole_number(loop, ("batches_per_epoch",))
    if batches is None:
        return None
    each = whole_number(loop, ("batches_per_step",))
    if each is None and steps_per_epoch:
        each = max(1, round(batches / steps_per_epoch))
    return epochs * batches // (each or 1)


def whole_number(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    """Return the first positive integer under one of these keys, also from the training section."""
    parts = [config, *(config.get(name) for name in ("training", "train", "trainer"))]
    for part in parts:
        if isinstance(part, Mapping):
            for key in keys:
                value = part.get(key)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None


def find_incomplete_steps(facts: Facts) -> IncompleteSteps:
    """Return the steps at the end of attempts that no rank completed: in progress, or ended by an exception
    or a kill.

    Call it before the evidence of the facts is dropped, so that it need not be read again.
    """
    at_the_end = [part for part in _with_steps(facts) if _may_be_left(part)]
    left = _left(facts, at_the_end)
    incomplete: IncompleteSteps = defaultdict(set)
    for part in at_the_end:
        if part.process in left:
            incomplete[part.attempt].add(_last(part))
    for part in _with_steps(facts):
        done = {step for step in incomplete.get(part.attempt, ()) if _has_done(part, step, left)}
        if done:
            incomplete[part.attempt] -= done
    return {attempt: steps for attempt, steps in incomplete.items() if steps}


def drop_incomplete(steps: pl.DataFrame, incomplete: IncompleteSteps) -> pl.DataFrame:
    """Return a table of steps without the incomplete ones."""
    for attempt, numbers in incomplete.items():
        is_it = (pl.col("attempt") == attempt) & pl.col("step").is_in(sorted(numbers))
        steps = steps.filter(~is_it)
    return steps


def _with_steps(facts: Facts) -> list[RankTime]:
    return [part for part in facts.accounts.parts if part.iterations is not None]


def _last(part: RankTime) -> int:
    assert part.iterations is not None
    return int(part.iterations.steps[-1])


def _has_done(part: RankTime, step: int, left: set[str]) -> bool:
    """Return whether a rank completed a step. Each step before its last one is completed."""
    assert part.iterations is not None
    if _last(part) == step:
        return part.process not in left
    return bool((part.iterations.steps == step).any())


def _may_be_left(part: RankTime) -> bool:
    """Return whether its last iteration may not have ended normally."""
    if part.iterations is None or part.status == "finished":
        return False
    if part.status == "running":
        return int(part.iterations.ends[-1]) >= part.end_ns
    # A process that exits on SIGTERM leaves its iteration with an exception, and counts as killed, too.
    return part.iterations.are_spans or int(part.iterations.ends[-1]) >= part.end_ns


def _left(facts: Facts, parts: list[RankTime]) -> set[str]:
    """Return the processes whose last iteration is incomplete."""
    if not parts:
        return set()
    grids = {grid.attempt: grid for grid in facts.summary.evidence.grids}
    incomplete, unknown = set(), {}
    for part in parts:
        grid = grids.get(part.attempt)
        done = None if part.status in BY_EXCEPTION else _is_done(facts, grid, part)
        if done is None:
            unknown[part.process] = part
        elif not done:
            incomplete.add(part.process)
    for history in facts.summary.history:
        asked = unknown.pop(history.process, None)
        if asked is not None and asked.iterations is not None:
            incomplete |= (
                {history.process}
                if (history.left_ns or 0) >= asked.iterations.starts[-1]
                else set()
            )
    # Only the processes of earlier attempts of a finished run are left.
    rank = next(iter(unknown.values())).rank if len(unknown) == 1 else None
    for tables in facts.run.by_process(rank, partial=True) if unknown else ():
        asked = unknown.get(tables.process.name)
        began = None if asked is None or asked.iterations is None else asked.iterations.starts[-1]
        if began is not None and _is_left(tables, int(began)):
            incomplete.add(tables.process.name)
    return incomplete


def _is_done(facts: Facts, grid: Grid | None, part: RankTime) -> bool | None:
    """Return whether the grid has the last step of a rank as completed; None if it does not have the step.

    A step counts as completed once the optimizer is done: only the rest of the loop's body is missing.
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
    """Return whether a process is in a pass or an optimizer step, or was when it died."""
    inside = facts.open_spans.filter(pl.col("process") == process).select("name", "category")
    return any(
        phase_of_span(name, category or "") in PARTS for name, category in inside.iter_rows()
    )


def _is_left(tables: ProcessTables, since: int) -> bool:
    """Return whether an iteration that began at ``since`` or later did not end normally. Reads only the last
    spans.
    """
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
