"""Progress of a run: completed and incomplete steps, the planned number of steps, the time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepwell.analysis.timeline import IncompleteSteps

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
EPOCHS = ("max_epochs", "num_epochs", "epochs", "num_train_epochs", "n_epochs")
OVERDUE_S = 5.0
"""A step that is later than this may be overdue."""
LATEST = 200
"""Number of latest steps that the current pace is computed from."""


@dataclass(frozen=True)
class TimeLeft:
    """Completed steps, planned steps, and the time left at the current pace.

    ``ns`` is None if it is unknown, because the run hangs or its current step takes unusually long.
    """

    done: int
    target: int
    ns: int | None


def time_left(facts: Facts) -> TimeLeft | None:
    """Return the time left; None if the planned number of steps is unknown, or no step is completed.

    Incomplete steps count neither as done nor for the pace.
    """
    completed = drop_incomplete(facts.steps, facts.incomplete)
    if completed.is_empty():
        return None
    steady = drop_incomplete(facts.steady, facts.incomplete)
    steps = completed if steady.is_empty() else steady
    first = steps["rank"].min()
    every = completed.filter(rank=first)
    last = every["step"].max()
    done = int(last) + 1 if isinstance(last, int) else 0
    target = _target(facts, every)
    if target is None or target < done:
        return None
    latest = steps.filter(rank=first).sort("start_ns").tail(LATEST)
    ended = (every["start_ns"] + every["duration_ns"]).max()
    # The end of the recorded time is the present, while it runs.
    now = max(part.end_ns for part in facts.timelines if part.rank == first)
    waited = now - (ended if isinstance(ended, int) else 0)
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
    loops = [*(loop.attributes for loop in reversed(facts.training_loops)), {}]
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


def drop_incomplete(steps: pl.DataFrame, incomplete: IncompleteSteps) -> pl.DataFrame:
    """Return a table of steps without the incomplete ones."""
    for attempt, numbers in incomplete.items():
        is_it = (pl.col("attempt") == attempt) & pl.col("step").is_in(sorted(numbers))
        steps = steps.filter(~is_it)
    return steps
