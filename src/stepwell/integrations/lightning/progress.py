"""Where a fit starts and where it is meant to end, in optimizer steps and in samples."""

from __future__ import annotations

import math
from typing import Any

from stepwell.integrations.configuration import batch_size


def is_automatic(trainer: Any) -> bool:
    """Whether Lightning itself steps the optimizer."""
    return bool(getattr(trainer.lightning_module, "automatic_optimization", True))


def iterations_done(trainer: Any) -> int:
    """Batches that came to an optimizer step, those before a resume included."""
    steps = int(trainer.global_step)
    if is_automatic(trainer):
        return steps
    # There each optimizer's step is counted: two in a batch are one iteration.
    progress = trainer.fit_loop.epoch_loop.batch_progress.total
    return min(steps, int(progress.processed))


def iterations_target(trainer: Any) -> int | None:
    """The iteration at which the trainer stops, None when that is not known."""
    limits: list[int] = []
    if trainer.max_steps is not None and trainer.max_steps >= 0:
        limits.append(int(trainer.max_steps))
    epochs, batches = trainer.fit_loop.max_epochs, trainer.num_training_batches
    if isinstance(epochs, int) and epochs >= 0 and math.isfinite(batches):
        steps = math.ceil(batches / trainer.accumulate_grad_batches)
        limits.append(epochs * steps)
    return min(limits, default=None)


def training_loaders(trainer: Any) -> list[Any]:
    """Return the loaders whose batches are trained on."""
    return list(getattr(trainer.fit_loop._combined_loader, "flattened", None) or ())


def samples_per_iteration(trainer: Any) -> int | None:
    """Samples of all ranks in an optimizer step, as the loader is made; None when that is not known."""
    loaders = training_loaders(trainer)
    size = batch_size(loaders[0]) if len(loaders) == 1 else None
    return (
        None
        if size is None
        else size * int(trainer.accumulate_grad_batches) * int(trainer.world_size)
    )
