"""The optimizer, scheduler and loss that a ``TrainingConfiguration`` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.integrations.torch.trainer.configuration import TrainingConfiguration

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adadelta": torch.optim.Adadelta,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
MORE_OPTIONS: dict[str, dict[str, str]] = {
    "adadelta": {},
    "adam": {"betas": "optim_betas"},
    "adamw": {"betas": "optim_betas"},
    "rmsprop": {"momentum": "optim_momentum"},
    "sgd": {"momentum": "optim_momentum"},
}
"""Options besides learning rate and weight decay, and the settings that they come from."""
LOSSES: dict[str, Callable[..., Tensor]] = {
    "bce": nn.functional.binary_cross_entropy_with_logits,
    "bceloss": nn.functional.binary_cross_entropy,
    "cross_entropy": nn.functional.cross_entropy,
    "l1": nn.functional.l1_loss,
    "l2": nn.functional.mse_loss,
    "mse": nn.functional.mse_loss,
    "nll": nn.functional.nll_loss,
    "nllloss": nn.functional.nll_loss,
}
SCHEDULERS: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "constant": (torch.optim.lr_scheduler.ConstantLR, {}),
    "exponential": (torch.optim.lr_scheduler.ExponentialLR, {"gamma": "lr_scheduler_gamma"}),
    "linear": (torch.optim.lr_scheduler.LinearLR, {}),
    "multistep": (torch.optim.lr_scheduler.MultiStepLR, {"milestones": "lr_scheduler_step_size"}),
    "polynomial": (torch.optim.lr_scheduler.PolynomialLR, {}),
    "step": (torch.optim.lr_scheduler.StepLR, {"step_size": "lr_scheduler_step_size"}),
}
"""Each scheduler with its options, and the settings that they come from."""


def make_optimizer(config: TrainingConfiguration, parameters: Any) -> Any:
    """Return the optimizer of these parameters."""
    chosen = config.optimizer
    if not isinstance(chosen, str):
        return chosen(parameters)
    names = {"lr": "optim_lr", "weight_decay": "optim_weight_decay", **MORE_OPTIONS[chosen]}
    return OPTIMIZERS[chosen](parameters, **_options(config, names))


def make_scheduler(config: TrainingConfiguration, optimizer: Any) -> Any:
    """Return the scheduler of an optimizer; None where there is none."""
    chosen: Any = config.lr_scheduler
    if not isinstance(chosen, str):
        return chosen and chosen(optimizer)
    make, names = SCHEDULERS[chosen]
    return make(optimizer, **_options(config, names))


def find_loss(config: TrainingConfiguration) -> Callable[..., Tensor]:
    """Return the loss, a function of prediction and target."""
    return LOSSES[config.loss] if isinstance(config.loss, str) else config.loss


def _options(config: TrainingConfiguration, names: Mapping[str, str]) -> dict[str, Any]:
    return {option: config[setting] for option, setting in names.items()}
