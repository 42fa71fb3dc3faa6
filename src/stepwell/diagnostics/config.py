"""``TelemetryConfig``: what is collected, how often, and where it is stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stepwell._core.checks import FLAG, PATH, POSITIVE, TEXT, Kind, nearest, one_of, refuse
from stepwell._core.errors import StepwellError, log_warning
from stepwell._core.values import shown

GROUP_RULES = ("param_groups", "layers")

Adapter = Callable[[Any], tuple[Any, Any]]
"""Function from a batch to (inputs, labels). Inputs are one argument of the model (a tensor), several (a
tuple or list), or keyword arguments (a dict)."""


@dataclass
class TelemetryConfig:
    """What is collected, and how often. A wrong value raises StepwellError.

    Attributes:
        enabled: if False, nothing is collected, no file is created and no run is started.
        collect_every_n: collect at batches whose index is a multiple of this.
        output_dir: folder of ``telemetry.jsonl`` and ``last_checkpoint.pt``; None: ``telemetry`` in the run
            folder.
        track_gradients: L2 norm of the gradients that the optimizer used.
        track_weight_delta: L2 norm of the change of the weights since the last collection.
        track_learning_rates: learning rate of each parameter group.
        track_holdout_logits: outputs of the model for a fixed set of examples.
        track_batch_stats: labels and size of the batch.
        holdout_size: the number of examples (not batches) of the holdout data.
        groups: how parameters are grouped. None: ``backbone`` and ``head`` by their names; "param_groups": as
            in the optimizer; "layers": one group per module with parameters of its own; a dict of group names
            and patterns; or a function of name and parameter.
        weight_delta: where the weights of the last collection are stored: "disk", "memory", or "sample" (a
            part of them, in memory).
        label_key: the key of the labels in a batch that is a dict; None: found automatically.
        batch_adapter: a function from a batch to (inputs, labels), for batches with another structure.
        task: "classification" or "regression": how outputs and labels are compared.
        holdout_dtype: precision of autocast for the holdout, such as "bfloat16"; None: the current setting
            where ``on_batch_end`` is called.
        batches_per_epoch: gives exact steps of the metrics if ``batch_idx`` restarts in every epoch and the
            run's step is not set.
        track_update_ratio: change of the weights relative to their norm.
        track_weight_stats: norm, mean, standard deviation and largest weight of each group.
        track_activations: statistics of the outputs of layers.
        track_dead_units: percentage of units that are zero for every example, per layer.
        track_embeddings: norms and similarity of the outputs of ``embedding_layer``.
        track_gradient_noise: how much the gradient differs between examples (needs extra passes).
        track_class_balance: share of each class in all collected batches so far.
        track_snapshots: store the weights in ``snapshots``, to compare runs.
        activation_layers: names of the layers for activation statistics; None: all without children.
        embedding_layer: name of the layer whose output is the embedding; None: the input of the last linear
            layer.
        snapshot_every: store the weights in every n-th collection.
        loss: function of outputs and labels for the gradient noise; None: cross entropy, or the mean squared
            error for a regression.
    """

    enabled: bool = True
    collect_every_n: int = 200
    output_dir: Path | str | None = None

    track_gradients: bool = True
    track_weight_delta: bool = True
    track_learning_rates: bool = True
    track_holdout_logits: bool = True
    track_batch_stats: bool = True

    holdout_size: int = 50

    groups: str | Mapping[str, Any] | Callable[[str, Any], str | None] | None = None
    weight_delta: str = "disk"
    label_key: str | None = None
    batch_adapter: Adapter | None = None
    task: str = "classification"
    holdout_dtype: str | None = None
    batches_per_epoch: int | None = None

    track_update_ratio: bool = False
    track_weight_stats: bool = False
    track_activations: bool = False
    track_dead_units: bool = False
    track_embeddings: bool = False
    track_gradient_noise: bool = False
    track_class_balance: bool = False
    track_snapshots: bool = False
    activation_layers: tuple[str, ...] | list[str] | None = None
    embedding_layer: str | None = None
    snapshot_every: int = 1
    loss: Callable[[Any, Any], Any] | None = None

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> TelemetryConfig:
        """Create it from a dict, such as a section of a YAML file. Unknown keys give a warning."""
        if not isinstance(config_dict, Mapping):
            raise StepwellError(
                f"config_dict must be a dict, got {shown(config_dict)}; in a YAML file it is the section "
                "'telemetry'"
            )
        names = [field.name for field in fields(cls)]
        problems = [
            f"there is no field {key!r}; {nearest(str(key), names)}"
            for key in config_dict
            if key not in names
        ]
        if problems:
            log_warning(
                "TelemetryConfig.from_dict: %s. Unknown keys are ignored.", "; ".join(problems)
            )
        return cls(**{key: config_dict[key] for key in config_dict if key in names})

    def __post_init__(self) -> None:
        _check(self)
        if self.output_dir is not None:
            self.output_dir = Path(self.output_dir).expanduser()


def _never(value: Any) -> bool:
    return False


def _function(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    return value


def _layer_names(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise TypeError
    return value


_FUNCTION = Kind[Any]("a function", _never, _function)
_KINDS: dict[str, Kind[Any]] = {
    "collect_every_n": POSITIVE,
    "holdout_size": POSITIVE,
    "snapshot_every": POSITIVE,
    "batches_per_epoch": POSITIVE,
    "weight_delta": one_of("disk", "memory", "sample"),
    "task": one_of("classification", "regression"),
    "holdout_dtype": one_of("float32", "bfloat16", "float16"),
    "label_key": TEXT,
    "embedding_layer": TEXT,
    "batch_adapter": _FUNCTION,
    "loss": _FUNCTION,
    "output_dir": PATH,
    "activation_layers": Kind("a list of layer names", _never, _layer_names),
}
"""The kinds of fields. All others are flags, except ``groups``."""


def _check(config: TelemetryConfig) -> None:
    """Convert the fields to their plain form. Raise one StepwellError with all wrong values."""
    problems = []
    # A subclass checks its own fields.
    for field in fields(TelemetryConfig):
        name, value = field.name, getattr(config, field.name)
        if value is None and field.default is None:
            continue
        try:
            if name == "groups":
                _check_groups(value)
            else:
                setattr(config, name, _KINDS.get(name, FLAG).take(value))
        except ValueError as error:
            problems.append(f"{name} {error}")
    refuse(problems, "TelemetryConfig")


def _check_groups(value: Any) -> None:
    if callable(value) or (isinstance(value, str) and value in GROUP_RULES):
        return
    if not isinstance(value, Mapping) or not value or not all(isinstance(k, str) for k in value):
        raise ValueError(
            f"must be {', '.join(map(repr, GROUP_RULES))}, a dict of group names and patterns, or a "
            f"function of name and parameter, got {shown(value)}"
        )
    for group, patterns in value.items():
        try:
            for pattern in patterns if isinstance(patterns, list | tuple | set) else [patterns]:
                re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(
                f"must have regular expressions, such as a part of a name, got {patterns!r} for {group!r} "
                f"({error})"
            ) from None
