"""How far a run is, and how long it will go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepwell.analysis.undone import Undone, completed
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
"""A step that is less late than this may still be as usual."""
LATEST = 200
"""So many steps tell how fast it goes now."""


@dataclass(frozen=True)
class TimeLeft:
    """What is left: steps done and to be done, and the time until then at the present pace.

    ``ns`` is None where it cannot be known: the run hangs, or its present step takes unusually long.
    """

    done: int
    target: int
    ns: int | None


def time_left(facts: Facts, undone: Undone) -> TimeLeft | None:
    """None when nothing says how many steps there are to be, or none was made yet.

    A step that is under way (``undone``) is not done, and tells nothing of the pace.
    """
    steps = completed(facts.steady, undone)
    steps = steps if steps.height else completed(facts.steps, undone)
    if steps.is_empty():
        return None
    rank = steps.filter(pl.col("rank") == steps["rank"].min()).sort("start_ns")
    every = completed(facts.steps, undone).filter(pl.col("rank") == rank["rank"][0])
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
    """Return how long a step must take to be out of the ordinary, by how long others took."""
    return max(3 * max(seconds), 20 * float(np.median(seconds)))


def is_overdue(waited_s: float, seconds: Sequence[float]) -> bool:
    """Return whether the next step is so late that the pace until now tells nothing of the time left."""
    return len(seconds) > 0 and waited_s > max(OVERDUE_S, unusual(seconds))


def _target(facts: Facts, steps: pl.DataFrame) -> int | None:
    config = facts.run.config
    loops = [*(loop.attributes for loop in reversed(facts.loops(TRAINING_LOOP))), {}]
    known = next((found for loop in loops if (found := explicit_target(config, loop))), None)
    epochs = whole_number(config, EPOCHS)
    if known is not None or epochs is None:
        return known
    by_loader = (loader_target(epochs, loop) for loop in loops)
    return _from_epochs(steps, epochs) or next(filter(None, by_loader), None)


def _from_epochs(steps: pl.DataFrame, epochs: int) -> int | None:
    """Optimizer steps by those of the epochs that are over; None without any."""
    counts = (
        steps.drop_nulls("epoch").group_by("epoch").agg(pl.col("step").n_unique()).sort("epoch")
    )
    # The last one is under way, and a training that was resumed may have begun within one.
    is_resumed = steps["step"].min() != 0
    whole = counts["step"][int(is_resumed) : counts.height - 1].max()
    return epochs * whole if isinstance(whole, int) else None


def explicit_target(config: Mapping[str, Any], loop: Mapping[str, Any]) -> int | None:
    """The number of steps that a training loop or the configuration names; None if neither does."""
    return whole_number(loop, ("train_iterations_target",)) or whole_number(config, STEPS)


def loader_target(
    epochs: int, loop: Mapping[str, Any], steps_per_epoch: float | None = None
) -> int | None:
    """Optimizer steps by the length of the loader; None if it is not known.

    How many batches make a step is recorded, or follows from about how many steps an epoch has.
    """
    batches = whole_number(loop, ("batches_per_epoch",))
    if batches is None:
        return None
    each = whole_number(loop, ("batches_per_step",))
    if each is None and steps_per_epoch:
        each = max(1, round(batches / steps_per_epoch))
    return epochs * batches // (each or 1)


def whole_number(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    """What a configuration has under one of these keys, or in its part for the training."""
    parts = [config, *(config.get(name) for name in ("training", "train", "trainer"))]
    for part in parts:
        if isinstance(part, Mapping):
            for key in keys:
                value = part.get(key)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None
