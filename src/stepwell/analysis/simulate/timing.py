"""When everything happens in a synthetic run: whole arrays of ranks by steps, exact to the nanosecond.

In each step a rank loads data, computes forward and backward, waits in a collective until the last rank
has come, and updates its weights. So a step lasts as long as its slowest rank makes it last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.simulate.plan import DataBound, Hang, Plan, Restart, Stall, Straggler

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Attempt:
    """One attempt: which steps it begins, when, and how it ends."""

    number: int
    steps: range
    """Those that it completes; when ``dies`` it also begins the one after."""
    started_ns: int
    first_ns: int
    """When its training loop begins."""
    dies: Restart | Hang | None
    sync_ns: Ints
    """When the collective of each step begun is over."""
    parts: dict[str, Ints]
    """Nanoseconds by rank and step begun, of each part of a step."""
    ended_ns: int

    @property
    def begun(self) -> int:
        """How many steps it begins."""
        return len(self.steps) + (self.dies is not None)


def attempts(plan: Plan) -> list[Attempt]:
    """All attempts of a plan, one after the other."""
    found: list[Attempt] = []
    first, began = plan.first_step, plan.began_ns
    endings = [f for f in plan.faults if isinstance(f, Restart | Hang)]
    while True:
        # One after the other as they are reached: a restart counts once.
        dies = endings[len(found)] if len(found) < len(endings) else None
        attempt = _attempt(plan, len(found), first, began, dies)
        found.append(attempt)
        if not isinstance(dies, Restart):
            return found
        began = attempt.ended_ns + dies.gap_ns
        first = max(first, dies.step // plan.checkpoint_every * plan.checkpoint_every)


def setup(plan: Plan, number: int) -> list[tuple[str, int]]:
    """The spans before the training loop of an attempt, and how long they take."""
    names = (
        "distributed_code_initialization",
        "data_loader_initialization",
        "model_initialization",
        "optimizer_initialization",
    )
    found = list(zip(names, plan.pace.initialisation, strict=True))
    goes_on = number > 0 or plan.first_step > 0
    return [*found, ("checkpoint_load", plan.pace.restore)] if goes_on else found


def _attempt(
    plan: Plan, number: int, first: int, began: int, dies: Restart | Hang | None
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
    elif isinstance(dies, Hang):
        ended = int(sync[-1]) + dies.ns
    else:
        # In the middle of its collective, in which all ranks are by then.
        ended = int(sync[-1] - parts["communication"][0, -1] // 2)
    return Attempt(number, steps, began, begin, dies, sync, parts, ended)


def _before(plan: Plan, parts: dict[str, Ints], first: int) -> Ints:
    """From the end of a collective to the next iteration: optimizer, pause, perhaps a checkpoint."""
    before = np.zeros_like(parts["data"])
    before[:, 1:] = parts["optimizer"][:, :-1]
    before += plan.pace.between
    before[:, saved_before(plan, first, before.shape[1])] += saving(plan)
    return before


def saved_before(plan: Plan, first: int, count: int) -> NDArray[np.bool_]:
    """Before which of these steps of an attempt a checkpoint is saved."""
    number = first + np.arange(count)
    saved: NDArray[np.bool_] = (number % plan.checkpoint_every == 0) & (number > first)
    return saved


def saving(plan: Plan) -> int:
    """How long training waits for a checkpoint, and the validation after it."""
    return plan.pace.checkpoint + plan.pace.validation


def _durations(plan: Plan, number: int, first: int, count: int) -> dict[str, Ints]:
    random = np.random.default_rng([plan.seed, number])
    shape = (plan.ranks, count)

    def vary(typical: int, ranks: int = plan.ranks) -> Ints:
        noise = random.standard_normal((ranks, count), np.float32)
        # Cut off: a far outlier would be a fault that nobody planted.
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
        if isinstance(fault, Straggler):
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
