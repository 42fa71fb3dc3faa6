"""The configuration of a fit: hyperparameters of module and datamodule, arguments of the Trainer."""

from __future__ import annotations

from typing import Any

import torch

from stepwell.integrations.configuration import parameter_counts, record_config, record_training
from stepwell.integrations.lightning.parts import WHERE
from stepwell.integrations.lightning.progress import training_loaders
from stepwell.journal.errors import report

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
"""Attributes of a Trainer that have the value of an argument."""
PARTS = ("strategy", "accelerator")
"""Attributes whose class has been chosen by an argument."""


def record_arguments(trainer: Any, module: Any) -> None:
    """Record the arguments of a Trainer, and the hyperparameters of what it trains."""
    try:
        facts: dict[str, Any] = {"trainer": _arguments(trainer)}
        hyperparameters = _hyperparameters(trainer, module)
        if hyperparameters:
            facts["hyperparameters"] = hyperparameters
        record_config(facts)
    except Exception as error:
        report(WHERE, error)


def record_parts(trainer: Any) -> None:
    """Record the model, the optimizers and the size of a batch, once they exist."""
    loaders = training_loaders(trainer)
    record_training(trainer.lightning_module, trainer.optimizers, loaders[0] if loaders else None)


def loop_attributes(trainer: Any) -> dict[str, Any]:
    """Return the attributes of the training loop's span that rules about learning need."""
    try:
        return dict(parameter_counts([trainer.lightning_module], trainer.optimizers))
    except Exception as error:
        report(WHERE, error)
        return {}


def _arguments(trainer: Any) -> dict[str, Any]:
    found = {name: getattr(trainer, name, None) for name in ARGUMENTS}
    parts = {name: type(getattr(trainer, name, None)).__name__ for name in PARTS}
    return {
        **{name: value for name, value in found.items() if value is not None},
        **parts,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _hyperparameters(trainer: Any, module: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for owner in (getattr(trainer, "datamodule", None), module):
        # Asking for it where there are none makes an empty one.
        if owner is not None and hasattr(owner, "hparams"):
            hyperparameters = owner.hparams
            found.update(
                hyperparameters if hasattr(hyperparameters, "keys") else vars(hyperparameters)
            )
    return found
