"""What ``truth.json`` says of a synthetic run: what was planted where, and how long everything took."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from stepwell.analysis.simulate.plan import DataBound, Hang, Plan, Stall, Straggler
from stepwell.analysis.simulate.timing import Attempt, setup


def make_truth(plan: Plan, attempts: list[Attempt]) -> dict[str, Any]:
    """Worked out from the plan and the times that were written, without reading the run."""
    return {
        "ranks": plan.ranks,
        "steps": plan.steps,
        "seed": plan.seed,
        "wall_ns": attempts[-1].ended_ns - attempts[0].started_ns,
        "attempts": [_attempt(attempt) for attempt in attempts],
        "stragglers": [_straggler(f, attempts) for f in plan.faults if isinstance(f, Straggler)],
        "stalls": [_stall(f, attempts) for f in plan.faults if isinstance(f, Stall)],
        "data_bound": [_data(f, attempts) for f in plan.faults if isinstance(f, DataBound)],
        "restarts": [_restart(plan, before, after) for before, after in pairwise(attempts)],
        "hang": next((_hang(f) for f in plan.faults if isinstance(f, Hang)), None),
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "first_step": attempt.steps.start,
        "completed_steps": len(attempt.steps),
        "start_ns": attempt.started_ns,
        "first_step_ns": attempt.first_ns,
        "end_ns": attempt.ended_ns,
    }


def _done(steps: range, attempts: list[Attempt]) -> int:
    """How often one of these steps was completed, those that were done over counted each time."""
    return sum(sum(step in attempt.steps for step in steps) for attempt in attempts)


def _straggler(fault: Straggler, attempts: list[Attempt]) -> dict[str, Any]:
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


def _restart(plan: Plan, before: Attempt, after: Attempt) -> dict[str, Any]:
    """What was lost: work thrown away, the gap, and the time until training was where it had been."""
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


def _hang(fault: Hang) -> dict[str, Any]:
    return {"rank": fault.rank, "step": fault.step, "collective": "all_reduce", "ns": fault.ns}
