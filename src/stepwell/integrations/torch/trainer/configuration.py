"""The configuration of a ``TorchTrainer``, and the optimizer, scheduler and loss that it names."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from stepwell._core.errors import StepwellError
from stepwell._core.values import shown
from stepwell.telemetry.identity import config_to_dict

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
"""Options of the optimizers besides learning rate and weight decay, with the settings they come from."""
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
"""Each scheduler with its options, and the settings they come from."""
CHOICES: dict[str, tuple[str, ...]] = {
    "optimizer": tuple(OPTIMIZERS),
    "loss": tuple(LOSSES),
    "lr_scheduler": tuple(SCHEDULERS),
    "dist_backend": ("nccl", "gloo", "mpi"),
}
EARLIER_NAMES = {
    "lr": "optim_lr",
    "momentum": "optim_momentum",
    "num_workers": "num_workers_dataloader",
    "pin_memory": "pin_gpu_memory",
}
"""Names of older releases, used if the current name is not given."""
TRUTHS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
EXAMPLES = {bool: "True or False", int: "a whole number", float: "a number"}


class TrainingConfiguration:
    """Hyperparameters as attributes, with defaults: ``TrainingConfiguration(batch_size=64, depth=4)``.

    You can add any names; ``config["depth"]`` is ``config.depth``. A subclass declares its own defaults as
    annotated attributes; an attribute without a default is required. Numbers may be text, because YAML reads
    ``1e-3`` as text. A wrong value raises StepwellError.

    Attributes:
        batch_size: samples in a batch of each process.
        shuffle_train: whether to shuffle the training data; ``shuffle_validation`` and ``shuffle_test``
            likewise.
        pin_gpu_memory: ``pin_memory`` of each DataLoader.
        num_workers_dataloader: worker processes of each DataLoader.
        loss: ``"cross_entropy"``, ``"mse"`` (or ``"l2"``), ``"l1"``, ``"nllloss"`` (or ``"nll"``),
            ``"bceloss"`` (of probabilities), ``"bce"`` (of logits), or a function of prediction and target.
        optimizer: ``"adam"``, ``"adamw"``, ``"sgd"``, ``"rmsprop"``, ``"adadelta"``, or a function of the
            parameters.
        optim_lr: learning rate. ``lr`` is used if this is not given.
        optim_momentum: momentum of ``sgd`` and ``rmsprop``.
        optim_betas: betas of ``adam`` and ``adamw``.
        optim_weight_decay: weight decay.
        lr_scheduler: ``"step"``, ``"multistep"``, ``"constant"``, ``"linear"``, ``"exponential"``,
            ``"polynomial"``, a function of the optimizer, or None.
        lr_scheduler_step_size: epochs between steps of ``"step"``; a list of epochs for ``"multistep"``.
        lr_scheduler_gamma: factor of ``"exponential"``.
        dist_backend: backend of torch.distributed; always ``"gloo"`` without a GPU.
    """

    batch_size: int = 32
    shuffle_train: bool = False
    shuffle_validation: bool = False
    shuffle_test: bool = False
    pin_gpu_memory: bool = False
    num_workers_dataloader: int = 4
    loss: str | Callable[..., Any] = "cross_entropy"
    optimizer: str | Callable[..., Any] = "adam"
    optim_lr: float = 1e-3
    optim_momentum: float = 0.9
    optim_betas: tuple[float, float] = (0.9, 0.999)
    optim_weight_decay: float = 0.0
    lr_scheduler: str | None = None
    lr_scheduler_step_size: int | Iterable[int] = 10
    lr_scheduler_gamma: float = 0.95
    dist_backend: str = "nccl"

    model_fields: ClassVar[dict[str, Any]] = {}
    """The declared names with their defaults, ``...`` for required ones."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.model_fields = _declared(cls)

    def __init__(self, **settings: Any) -> None:
        given = dict(settings)
        for earlier, name in EARLIER_NAMES.items():
            if earlier in given:
                given.setdefault(name, given[earlier])
        for name, default in self.model_fields.items():
            if name in given:
                setattr(self, name, self._take(name, given.pop(name)))
            elif default is ...:
                raise StepwellError(
                    f"{type(self).__name__}() needs a value for {name}: pass {name}=…"
                )
            else:
                setattr(self, name, copy.deepcopy(default))
        for name, value in given.items():
            setattr(self, name, value)

    def _take(self, name: str, value: Any) -> Any:
        """Return a value in the type of its default. Raise StepwellError if it is wrong."""
        choices = CHOICES.get(name)
        if choices is not None and not callable(value) and value is not None:
            if value not in choices:
                wanted = ", ".join(choices) + ("" if name == "dist_backend" else " or a function")
                raise StepwellError(f"{name} must be one of {wanted}, got {shown(value)}")
            return value
        kind = type(self.model_fields.get(name))
        if kind not in CONVERSIONS or not isinstance(value, str | int | float):
            return value
        try:
            return CONVERSIONS[kind](value)
        except (KeyError, ValueError):
            raise StepwellError(f"{name} must be {EXAMPLES[kind]}, got {shown(value)}") from None

    def model_dump(self) -> dict[str, Any]:
        """Return all values as a dict."""
        return dict(vars(self))

    def model_copy(self, update: dict[str, Any] | None = None) -> TrainingConfiguration:
        """Return a copy with these values changed."""
        return type(self)(**{**vars(self), **(update or {})})

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"


def _declared(cls: type) -> dict[str, Any]:
    """Return the annotated attributes of a class and its bases, with their defaults."""
    return {
        name: getattr(cls, name, ...)
        for above in reversed(cls.__mro__)
        for name, kind in inspect.get_annotations(above).items()
        if "ClassVar" not in str(kind)
    }


def _truth(value: str | int | float) -> bool:
    return TRUTHS[str(value).strip().lower()]


def _whole(value: str | int | float) -> int:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError
    return int(value)


CONVERSIONS: dict[type, Callable[[Any], Any]] = {bool: _truth, int: _whole, float: float}

TrainingConfiguration.model_fields = _declared(TrainingConfiguration)


def as_configuration(config: Any) -> TrainingConfiguration:
    """Return a configuration made from a dict, a Namespace or the like; a configuration as it is."""
    if isinstance(config, TrainingConfiguration):
        return config
    try:
        values = config if isinstance(config, Mapping) else config_to_dict(config)
    except TypeError as error:
        raise StepwellError(str(error)) from None
    return TrainingConfiguration(**{str(name): value for name, value in values.items()})


def make_optimizer(config: TrainingConfiguration, parameters: Any) -> Any:
    """Return the configured optimizer of these parameters."""
    chosen = config.optimizer
    if not isinstance(chosen, str):
        return chosen(parameters)
    names = {"lr": "optim_lr", "weight_decay": "optim_weight_decay", **MORE_OPTIONS[chosen]}
    return OPTIMIZERS[chosen](parameters, **_options(config, names))


def make_scheduler(config: TrainingConfiguration, optimizer: Any) -> Any:
    """Return the configured scheduler of an optimizer, None without one."""
    chosen: Any = config.lr_scheduler
    if not isinstance(chosen, str):
        return chosen and chosen(optimizer)
    make, names = SCHEDULERS[chosen]
    return make(optimizer, **_options(config, names))


def find_loss(config: TrainingConfiguration) -> Callable[..., Tensor]:
    """Return the configured loss: a function of prediction and target."""
    return LOSSES[config.loss] if isinstance(config.loss, str) else config.loss


def _options(config: TrainingConfiguration, names: Mapping[str, str]) -> dict[str, Any]:
    return {option: config[setting] for option, setting in names.items()}
