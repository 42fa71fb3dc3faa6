"""Splitting the wall time of an attempt into parts that sum to it, in whole nanoseconds.

Steps follow each other without a hole: each lasts until the first rank begins the next. What is lost in it
is taken off one thing after the other, never more than is left; the rest was productive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.goodput.attempts import JobAttempt
from stepwell.analysis.goodput.losses import Loss, data_bound, middle, step_losses
from stepwell.analysis.ranks.arrivals import step_ns
from stepwell.analysis.ranks.grid import IDLE, Grid
from stepwell.analysis.ranks.stragglers import LONG_NS, LONG_STEPS

Ints = NDArray[np.int64]

PARTS: dict[str, str] = {
    "productive": "steps of training that count, spans of your own included, data and waiting left out",
    "startup": "from the start of the processes to the first step, in nothing that has a name",
    "initialisation": "setting up processes, data, model and optimizer; warming up in the first steps",
    "data": "waiting for data",
    "checkpoint save": "saving checkpoints while training waits",
    "restore": "loading a checkpoint",
    "validation": "validation and testing",
    "redone": "steps that were lost with a restart and had to be done again",
    "gap between attempts": "from the end of one attempt to the start of the next",
    "stall": "something took very long, once",
    "straggler wait": "waiting for ranks that are slow again and again",
    "idle": "code between steps, in no span",
    "ending": "after the last step",
}
"""What the wall time of a job is split into, and what each part means."""

NAMES = {
    "checkpoint": "checkpoint save",
    "restore": "restore",
    "validation": "validation",
    "testing": "validation",
}
"""The part that a phase between steps belongs to."""


@dataclass
class Split:
    """What the time of one attempt went to; the parts sum to its wall time."""

    parts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    losses: list[Loss] = field(default_factory=list)

    def take(self, part: str, wanted: int, left: int) -> int:
        """Give a part what it wants of what is left; returns what is left then."""
        taken = min(max(0, int(wanted)), left)
        self.parts[part] += taken
        return left - taken


def split_attempt(attempt: JobAttempt, resumed: int | None, is_last: bool) -> Split:
    """Split an attempt. ``resumed`` is the step that a later one went on from, None when there is none."""
    split = Split()
    grid = attempt.grid
    if grid is None or not len(grid.steps):
        split.parts["startup"] = attempt.end_ns - attempt.start_ns
        return split
    begins = _boundaries(attempt, grid)
    _split_before(split, grid, int(begins[0]) - attempt.start_ns)
    # Steps that a later attempt did again are lost with all that was in them.
    kept = len(grid.steps) if resumed is None else int(np.searchsorted(grid.steps, resumed))
    whole = _count_whole(grid, kept)
    if whole == len(grid.steps):
        # What comes after the last step is told apart from it.
        begins[whole] = np.clip(_last_end(grid, whole), begins[whole - 1], attempt.end_ns)
    _split_steps(split, attempt, grid, begins[: whole + 1])
    _split_rest(split, attempt, grid, whole, kept, int(begins[whole]), is_last)
    _give_back_own_spans(split, attempt)
    return split


def _give_back_own_spans(split: Split, attempt: JobAttempt) -> None:
    """The grid tells phases apart alone: what is idle there may be in a span of the user's own."""
    if attempt.uncovered_ns is not None:
        covered = max(0, split.parts["idle"] - attempt.uncovered_ns)
        split.parts["idle"] -= covered
        split.parts["productive"] += covered


def _count_whole(grid: Grid, kept: int) -> int:
    """How many of the steps are left without those at the end that were never completed."""
    complete = np.flatnonzero(grid.complete[:kept])
    return int(complete[-1]) + 1 if len(complete) else 0


def _boundaries(attempt: JobAttempt, grid: Grid) -> Ints:
    """When each step began on its first rank, and the end of the attempt."""
    unknown = np.iinfo(np.int64).max
    begins = np.where(grid.begin >= 0, grid.begin, unknown).min(axis=0)
    edges = np.append(begins, attempt.end_ns)
    # Never backwards, whatever steps a loop goes through, and within the attempt.
    edges = np.minimum.accumulate(edges[::-1])[::-1]
    clipped: Ints = np.clip(edges, attempt.start_ns, attempt.end_ns)
    return clipped


def _last_end(grid: Grid, count: int) -> int:
    """When the last of so many steps was over on the last rank, with what is in the step alone."""
    if not count:
        return 0
    latest = 0
    for layer in grid.layers:
        if layer.phase != IDLE:
            column = layer.start[:, count - 1] + np.maximum(layer.ns[:, count - 1], 0)
            latest = max(latest, int(column.max()))
    return latest


def _split_before(split: Split, grid: Grid, total: int) -> None:
    left = total
    for phase, ns in grid.before.items():
        part = NAMES.get(phase, "initialisation")
        left = split.take(part, int(middle(ns[:, None])[0]), left)
    split.parts["startup"] += left


def _split_steps(split: Split, attempt: JobAttempt, grid: Grid, begins: Ints) -> None:
    """The steps from the first one on; ``begins`` has one more, where the last of them ends."""
    count = len(begins) - 1
    if count < 1:
        return
    losses = step_losses(grid, attempt.run)
    left = np.diff(begins)
    left = _take(split, "stall", losses.stall[:count], left)
    left = _take(split, "straggler wait", losses.straggler[:count], left)
    for phase, ns in losses.alone.items():
        left = _take(split, NAMES[phase], ns[:count], left)
    left = _take(split, "initialisation", losses.warm_up[:count], left)
    for phase, ns in grid.between.items():
        # What follows the last step is in what is left after it.
        until = count - (count == len(grid.steps))
        taken = _take(split, NAMES.get(phase, "initialisation"), middle(ns)[:until], left[:until])
        left = np.append(taken, left[until:])
    data = np.maximum(middle(grid.total("data")) - losses.in_data, 0)[:count]
    bound = data_bound(grid, data, left, attempt.run)
    split.losses += [*losses.found, *bound]
    left = _take(split, "data", data, left)
    left = _take(split, "idle", middle(grid.total(IDLE))[:count], left)
    split.parts["productive"] += int(left.sum())


def _take(split: Split, part: str, wanted: Ints, left: Ints) -> Ints:
    taken = np.minimum(np.maximum(wanted, 0), left)
    split.parts[part] += int(taken.sum())
    rest: Ints = left - taken
    return rest


def _split_rest(
    split: Split, attempt: JobAttempt, grid: Grid, whole: int, kept: int, since: int, is_last: bool
) -> None:
    """What comes after the last step that counts, until the end of the attempt."""
    left = attempt.end_ns - since
    if not is_last:
        split.parts["redone"] += left
        if left:
            steps = tuple(grid.steps[whole:].tolist())
            split.losses.append(
                Loss("redone", left, steps, attempt=attempt.number, run=attempt.run)
            )
        return
    if whole and whole == len(grid.steps):
        for phase, ns in grid.between.items():
            part = NAMES.get(phase, "initialisation")
            left = split.take(part, int(middle(ns[:, -1:])[0]), left)
    elif whole < kept:
        # It ended within a step: how much longer that took than others is how long it hung.
        typical = step_ns(grid)
        if left > max(LONG_STEPS * typical, LONG_NS):
            steps = (int(grid.steps[whole]),)
            hung = left - typical
            split.losses.append(Loss("stall", hung, steps, attempt=attempt.number, run=attempt.run))
            left = split.take("stall", hung, left)
    # A step that is under way counts until it turns out otherwise.
    split.parts["productive" if attempt.status == "running" else "ending"] += left
