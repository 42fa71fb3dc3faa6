"""The schedule of a synthetic run as arrays of ranks by steps, exact to the nanosecond, and its truth.json.

In each step a rank loads data, computes forward and backward, waits in a collective for the last rank, and
updates its weights. So the slowest rank determines the duration of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.testing.simulate.plan import (
    DataBound,
    HangFault,
    Restart,
    RunPlan,
    Stall,
    StragglerFault,
)

Ints = NDArray[np.int64]

STEP: tuple[tuple[str, str, int], ...] = (
    ("training_single_iteration", "", -1),
    ("data_loading", "", 0),
    ("zero_grad", "", 0),
    ("model_forward", "", 0),
    ("model_backward", "", 0),
    ("all_reduce", "comm", 4),
    ("optimizer_update", "", 0),
)
"""The spans of a step: name, category, and index of the parent; the parent of the first is the loop."""
PAUSE = ("checkpoint_save_sync", "validation_loop")
HOOK = ("gradient hooks", "")
"""The span of a collective that is not recorded as such."""


@dataclass(frozen=True)
class Attempt:
    """One attempt: which steps it begins, when, and how it ends."""

    number: int
    steps: range
    """The steps that it completes; if it ``dies`` it also begins the next one."""
    started_ns: int
    first_ns: int
    """When its training loop begins."""
    dies: Restart | HangFault | None
    sync_ns: Ints
    """The end of the collective of each step that was begun."""
    parts: dict[str, Ints]
    """Nanoseconds of each part of a step, by rank and step that was begun."""
    ended_ns: int

    @property
    def begun(self) -> int:
        """Number of steps that it begins."""
        return len(self.steps) + (self.dies is not None)


def attempts(plan: RunPlan) -> list[Attempt]:
    """Return the attempts of a plan in order."""
    result: list[Attempt] = []
    first, began = plan.first_step, plan.began_ns
    endings = [f for f in plan.faults if isinstance(f, Restart | HangFault)]
    while True:
        # Each restart happens once, in order.
        dies = endings[len(result)] if len(result) < len(endings) else None
        attempt = _attempt(plan, len(result), first, began, dies)
        result.append(attempt)
        if not isinstance(dies, Restart):
            return result
        began = attempt.ended_ns + dies.gap_ns
        first = max(first, dies.step // plan.checkpoint_every * plan.checkpoint_every)


def setup(plan: RunPlan, number: int) -> list[tuple[str, int]]:
    """Return the names and durations of the spans before the training loop of an attempt."""
    names = (
        "distributed_code_initialization",
        "data_loader_initialization",
        "model_initialization",
        "optimizer_initialization",
    )
    spans = list(zip(names, plan.pace.initialisation, strict=True))
    is_resumed = number > 0 or plan.first_step > 0
    return [*spans, ("checkpoint_load", plan.pace.restore)] if is_resumed else spans


def _attempt(
    plan: RunPlan, number: int, first: int, began: int, dies: Restart | HangFault | None
) -> Attempt:
    last = plan.steps if dies is None else dies.step
    steps = range(first, last)
    count = len(steps) + (dies is not None)
    parts = _durations(plan, number, first, count)
    begin = began + plan.pace.launch + sum(ns for _, ns in setup(plan, number))
    before = parts["before"] = _before(plan, parts, first)
    own = before + parts["data"] + parts["zero"] + parts["forward"] + parts["backward"]
    sync = begin + np.cumsum(own.max(axis=0) + parts["communication"][0])
    if dies is None:
        pause = saving(plan) if last % plan.checkpoint_every == 0 else 0
        ended = int(sync[-1] + parts["optimizer"][:, -1].max()) + pause + plan.pace.ending
    elif isinstance(dies, HangFault):
        ended = int(sync[-1]) + dies.ns
    else:
        # In the middle of its collective, when all ranks have arrived.
        ended = int(sync[-1] - parts["communication"][0, -1] // 2)
    return Attempt(number, steps, began, begin, dies, sync, parts, ended)


def _before(plan: RunPlan, parts: dict[str, Ints], first: int) -> Ints:
    """Return the time from a collective to the next iteration: optimizer, pause, perhaps a checkpoint."""
    before = np.zeros_like(parts["data"])
    before[:, 1:] = parts["optimizer"][:, :-1]
    before += plan.pace.between
    before[:, saved_before(plan, first, before.shape[1])] += saving(plan)
    return before


def saved_before(plan: RunPlan, first: int, count: int) -> NDArray[np.bool_]:
    """Return before which steps of an attempt a checkpoint is saved."""
    number = first + np.arange(count)
    saved: NDArray[np.bool_] = (number % plan.checkpoint_every == 0) & (number > first)
    return saved


def saving(plan: RunPlan) -> int:
    """Return the duration of a checkpoint and the validation after it."""
    return plan.pace.checkpoint + plan.pace.validation


def _durations(plan: RunPlan, number: int, first: int, count: int) -> dict[str, Ints]:
    random = np.random.default_rng([plan.seed, number])
    shape = (plan.ranks, count)

    def vary(typical: int, ranks: int = plan.ranks) -> Ints:
        noise = random.standard_normal((ranks, count), np.float32)
        # Clipped: a far outlier would look like a fault that was not planted.
        np.clip(noise, -3, 3, out=noise)
        return (typical * (1 + plan.pace.jitter * noise)).astype(np.int64)

    pace = plan.pace
    parts = {
        "data": vary(pace.data),
        "zero": vary(pace.zero),
        "forward": vary(pace.forward),
        "backward": vary(pace.backward),
        "optimizer": vary(pace.optimizer),
        "communication": np.broadcast_to(vary(pace.communication, 1), shape),
    }
    for fault in plan.faults:
        if isinstance(fault, StragglerFault):
            parts[fault.phase][fault.rank, _places(fault.steps, first, count)] += fault.ns
        elif isinstance(fault, DataBound):
            parts["data"][:, _places(fault.steps, first, count)] += fault.ns
        elif isinstance(fault, Stall) and first <= fault.step < first + count:
            who = slice(None) if fault.rank is None else fault.rank
            parts[fault.phase][who, fault.step - first] += fault.ns
    return parts


def _places(steps: range, first: int, count: int) -> Ints:
    places = np.array(steps, np.int64) - first
    kept: Ints = places[(places >= 0) & (places < count)]
    return kept


@dataclass(frozen=True)
class SpanLayout:
    """The spans of an attempt, sorted by start: the same for all ranks."""

    rows: list[tuple[str, str, int]]
    """Name, category, and row of the parent, -1 for none. Row 0 is the application."""
    loop: int
    """Row of the training loop."""
    steps: Ints
    """Row of the iteration span of each step."""
    pauses: Ints
    """Rows of the checkpoints: before some steps, and at the end."""


def lay_out(plan: RunPlan, attempt: Attempt) -> SpanLayout:
    """Return the spans of an attempt."""
    head = [name for name, _ in setup(plan, attempt.number)]
    loop = len(head) + 1
    rows = [("application", "", -1), *((name, "", 0) for name in (*head, "training_loop"))]
    pause = [(name, "", loop) for name in (PAUSE if plan.pace.validation else PAUSE[:1])]
    steps, pauses = [], []
    for saved in saved_before(plan, attempt.steps.start, attempt.begun).tolist():
        if saved:
            pauses.append(len(rows))
            rows += pause
        first = len(rows)
        steps.append(first)
        for name, category, parent in STEP:
            if category and not plan.collectives:
                name, category = HOOK
            rows.append((name, category, loop if parent < 0 else first + parent))
    if attempt.dies is None and attempt.steps.stop % plan.checkpoint_every == 0:
        pauses.append(len(rows))
        rows += pause
    return SpanLayout(rows, loop, np.array(steps, np.int64), np.array(pauses, np.int64))


def make_truth(plan: RunPlan, attempts: list[Attempt]) -> dict[str, Any]:
    """Return the content of truth.json: the planted faults and durations, without reading the run."""
    return {
        "ranks": plan.ranks,
        "steps": plan.steps,
        "seed": plan.seed,
        "wall_ns": attempts[-1].ended_ns - attempts[0].started_ns,
        "attempts": [_attempt_truth(attempt) for attempt in attempts],
        "stragglers": [
            _straggler(f, attempts) for f in plan.faults if isinstance(f, StragglerFault)
        ],
        "stalls": [_stall(f, attempts) for f in plan.faults if isinstance(f, Stall)],
        "data_bound": [_data(f, attempts) for f in plan.faults if isinstance(f, DataBound)],
        "restarts": [_restart(plan, before, after) for before, after in pairwise(attempts)],
        "hang": next((_hang(f) for f in plan.faults if isinstance(f, HangFault)), None),
    }


def _attempt_truth(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "first_step": attempt.steps.start,
        "completed_steps": len(attempt.steps),
        "start_ns": attempt.started_ns,
        "first_step_ns": attempt.first_ns,
        "end_ns": attempt.ended_ns,
    }


def _done(steps: range, attempts: list[Attempt]) -> int:
    """Return how often these steps were completed, counting repeated steps each time."""
    return sum(sum(step in attempt.steps for step in steps) for attempt in attempts)


def _straggler(fault: StragglerFault, attempts: list[Attempt]) -> dict[str, Any]:
    return {
        "rank": fault.rank,
        "phase": fault.phase,
        "steps": list(fault.steps),
        "ns_per_step": fault.ns,
        "ns": fault.ns * _done(fault.steps, attempts),
    }


def _stall(fault: Stall, attempts: list[Attempt]) -> dict[str, Any]:
    times = _done(range(fault.step, fault.step + 1), attempts)
    return {
        "rank": fault.rank,
        "phase": fault.phase,
        "steps": [fault.step],
        "ns": fault.ns * times,
    }


def _data(fault: DataBound, attempts: list[Attempt]) -> dict[str, Any]:
    return {
        "steps": list(fault.steps),
        "ns_per_step": fault.ns,
        "ns": fault.ns * _done(fault.steps, attempts),
    }


def _restart(plan: RunPlan, before: Attempt, after: Attempt) -> dict[str, Any]:
    """Return the cost of a restart: repeated steps, the gap, and the time to restore."""
    resumed = after.steps.start
    place = resumed - before.steps.start
    previous = before.sync_ns[place - 1] if place else before.first_ns
    began = int(previous + before.parts["before"][:, place].min())
    return {
        "attempt": before.number,
        "died_in_step": before.steps.stop,
        "resumed_from_step": resumed,
        "redone_steps": before.steps.stop - resumed,
        "redone_ns": before.ended_ns - began,
        "gap_ns": after.started_ns - before.ended_ns,
        "restore_ns": dict(setup(plan, after.number)).get("checkpoint_load", 0),
    }


def _hang(fault: HangFault) -> dict[str, Any]:
    return {"rank": fault.rank, "step": fault.step, "collective": "all_reduce", "ns": fault.ns}
