"""Properties of a fit: hyperparameters, arguments of the Trainer, and where training starts and ends."""

from __future__ import annotations

import math
from typing import Any

import torch

from stepwell._core.errors import report
from stepwell.integrations.configuration import (
    batch_size,
    parameter_counts,
    record_config,
    record_training,
)
from stepwell.integrations.lightning.packages import WHERE

ARGUMENTS = (
    "max_epochs",
    "min_epochs",
    "max_steps",
    "min_steps",
    "precision",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "num_devices",
    "num_nodes",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "overfit_batches",
    "val_check_interval",
    "check_val_every_n_epoch",
    "reload_dataloaders_every_n_epochs",
    "fast_dev_run",
)
"""Attributes of a Trainer with the value of an argument."""
PARTS = ("strategy", "accelerator")
"""Attributes whose class was chosen by an argument."""


def record_arguments(trainer: Any, module: Any) -> None:
    """Record the arguments of a Trainer, and the hyperparameters of module and datamodule."""
    try:
        facts: dict[str, Any] = {"trainer": _arguments(trainer)}
        hyperparameters = _hyperparameters(trainer, module)
        if hyperparameters:
            facts["hyperparameters"] = hyperparameters
        record_config(facts)
    except Exception as error:
        report(WHERE, error)


def record_parts(trainer: Any) -> None:
    """Record the model, the optimizers and the batch size, once they exist."""
    loaders = training_loaders(trainer)
    record_training(trainer.lightning_module, trainer.optimizers, loaders[0] if loaders else None)


def loop_attributes(trainer: Any) -> dict[str, Any]:
    """Return the attributes of the training loop that the findings about learning need."""
    try:
        return dict(parameter_counts([trainer.lightning_module], trainer.optimizers))
    except Exception as error:
        report(WHERE, error)
        return {}


def _arguments(trainer: Any) -> dict[str, Any]:
    arguments = {name: getattr(trainer, name, None) for name in ARGUMENTS}
    parts = {name: type(getattr(trainer, name, None)).__name__ for name in PARTS}
    return {
        **{name: value for name, value in arguments.items() if value is not None},
        **parts,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _hyperparameters(trainer: Any, module: Any) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for owner in (getattr(trainer, "datamodule", None), module):
        # Accessing ``hparams`` creates an empty object if there is none.
        if owner is not None and hasattr(owner, "hparams"):
            hyperparameters = owner.hparams
            merged.update(
                hyperparameters if hasattr(hyperparameters, "keys") else vars(hyperparameters)
            )
    return merged


def is_automatic(trainer: Any) -> bool:
    """Return whether Lightning steps the optimizer (automatic optimization)."""
    return bool(getattr(trainer.lightning_module, "automatic_optimization", True))


def iterations_done(trainer: Any) -> int:
    """Return the number of batches with an optimizer step, including those before a resume."""
    steps = int(trainer.global_step)
    if is_automatic(trainer):
        return steps
    # Manual optimization counts the steps of each optimizer; two in one batch are one iteration.
    progress = trainer.fit_loop.epoch_loop.batch_progress.total
    return min(steps, int(progress.processed))


def iterations_target(trainer: Any) -> int | None:
    """Return the iteration at which the trainer stops, None if unknown."""
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
    """Return the samples of all ranks in an optimizer step, by the loader's settings; None if unknown."""
    loaders = training_loaders(trainer)
    size = batch_size(loaders[0]) if len(loaders) == 1 else None
    return (
        None
        if size is None
        else size * int(trainer.accumulate_grad_batches) * int(trainer.world_size)
    )
