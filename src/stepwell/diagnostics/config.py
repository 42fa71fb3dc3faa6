"""What is collected, how often, and where it is kept: ``TelemetryConfig``."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from stepwell.journal.errors import StepwellError, say
from stepwell.journal.values import shown

TASKS = ("classification", "regression")
BASELINES = ("disk", "memory", "sample")
DTYPES = ("float32", "bfloat16", "float16")
GROUP_RULES = ("param_groups", "layers")

Adapter = Callable[[Any], tuple[Any, Any]]
"""From a batch to (inputs, labels): a tensor is the model's one argument, a tuple or list its
arguments, a dict its keyword arguments."""


@dataclass
class TelemetryConfig:
    """What is collected, and how often. A wrong value is refused when the object is made.

    Attributes:
        enabled: False: nothing is collected, no file is made and no run started.
        collect_every_n: collect at batches whose index is a multiple of this.
        output_dir: folder of ``telemetry.jsonl`` and ``last_checkpoint.pt``; None: ``telemetry`` in
            the folder of the run.
        track_gradients: L2 norm of the gradients that the optimizer used.
        track_weight_delta: L2 norm of the change of the weights since the collection before.
        track_learning_rates: learning rate of each parameter group.
        track_holdout_logits: what the model says about a fixed set of examples.
        track_batch_stats: labels and size of the batch.
        holdout_size: so many examples (not batches) of the holdout data count.
        groups: how parameters are put into groups. None: ``backbone`` and ``head`` by their names;
            "param_groups": those of the optimizer; "layers": one for each module with parameters of
            its own; a dict of group name to name pattern; or a function of name and parameter.
        weight_delta: where the weights of the collection before are kept: "disk", "memory", or
            "sample", a part of them only.
        label_key: the key of the labels in a batch that is a dict; None: it is looked for.
        batch_adapter: a function from a batch to (inputs, labels), for batches of any other shape.
        task: "classification" or "regression": how outputs and labels are compared.
        holdout_dtype: precision of autocast for the holdout, such as "bfloat16"; None: whatever
            is in force where ``on_batch_end`` is called.
        batches_per_epoch: for exact steps of the metrics where ``batch_idx`` begins anew in every epoch
            and the run's step is not set.
        track_update_ratio: change of the weights relative to their norm.
        track_weight_stats: norm, mean, standard deviation and largest weight of each group.
        track_activations: statistics of what the layers give out.
        track_dead_units: share of units that are zero for every example, in each layer.
        track_embeddings: norms and likeness of what ``embedding_layer`` gives out.
        track_gradient_noise: how much the gradient differs between examples (needs extra passes).
        track_class_balance: how often each class came so far, in the batches that were looked at.
        track_snapshots: keep the weights, in ``snapshots``, to compare runs.
        activation_layers: names of the layers to look at; None: all without children.
        embedding_layer: name of the layer whose output is the embedding; None: the input of the last
            linear layer.
        snapshot_every: keep the weights of every so many collections.
        loss: function of outputs and labels for the gradient noise; None: cross entropy, or the
            mean squared error of a regression.
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
        """From a dict, such as one out of YAML. Unknown keys are left out, with a warning."""
        if not isinstance(config_dict, Mapping):
            raise StepwellError(
                f"TelemetryConfig.from_dict takes a dict, not {shown(config_dict)}; "
                "of a YAML file it is the part under 'telemetry'"
            )
        known = [field.name for field in fields(cls)]
        problems = [_unknown(key, known) for key in config_dict if key not in known]
        if problems:
            say("TelemetryConfig.from_dict: %s. Unknown keys are left out.", "; ".join(problems))
        return cls(**{key: config_dict[key] for key in config_dict if key in known})

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise StepwellError("TelemetryConfig: " + "; ".join(problems))
        if self.output_dir is not None:
            self.output_dir = Path(self.output_dir).expanduser()
        for name in _COUNTS:
            value = getattr(self, name)
            setattr(self, name, value if value is None else operator.index(value))


_COUNTS = ("collect_every_n", "holdout_size", "snapshot_every", "batches_per_epoch")
_CHOICES = {"weight_delta": BASELINES, "task": TASKS, "holdout_dtype": DTYPES}
_OPTIONAL = ("batches_per_epoch", "holdout_dtype")
_TEXTS = ("label_key", "embedding_layer")
_FUNCTIONS = ("batch_adapter", "loss")


def _unknown(key: Any, known: list[str]) -> str:
    near = get_close_matches(str(key), known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
    return f"there is no {key!r}; {hint}"


def _problems(config: TelemetryConfig) -> list[str]:
    """All that is wrong with the values, each with what to write instead."""
    found = []
    # A subclass checks its own fields.
    for field in fields(TelemetryConfig):
        name, value = field.name, getattr(config, field.name)
        if value is None and (name in _OPTIONAL or field.default is None):
            continue
        wrong = _wrong(name, value)
        if wrong:
            found.append(f"{name} is {shown(value)}: {wrong}")
    return found


def _wrong(name: str, value: Any) -> str | None:
    if name in _COUNTS:
        return None if _is_count(value) else "write a whole number, 1 or more"
    if name in _CHOICES:
        return (
            None
            if isinstance(value, str) and value in _CHOICES[name]
            else f"write one of {', '.join(_CHOICES[name])}"
        )
    if name in _TEXTS:
        return None if isinstance(value, str) and value else "write a name"
    if name in _FUNCTIONS:
        return None if callable(value) else "write a function"
    if name == "output_dir":
        is_path = isinstance(value, str | os.PathLike) and str(value)
        return None if is_path else "write a path, or None for the folder of the run"
    if name == "groups":
        return _wrong_groups(value)
    if name == "activation_layers":
        texts = isinstance(value, list | tuple) and all(isinstance(it, str) for it in value)
        return None if texts else "write a list of layer names"
    return None if isinstance(value, bool) else "write True or False"


def _wrong_groups(value: Any) -> str | None:
    if callable(value) or (isinstance(value, str) and value in GROUP_RULES):
        return None
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        return next((wrong for it in value.values() if (wrong := _wrong_pattern(it))), None)
    return (
        f"write one of {', '.join(GROUP_RULES)}, a dict of name to pattern, "
        "or a function of name and parameter"
    )


def _wrong_pattern(value: Any) -> str | None:
    patterns = value if isinstance(value, list | tuple | set) else [value]
    try:
        for pattern in patterns:
            re.compile(pattern)
    except (re.error, TypeError) as error:
        return f"write a regular expression instead of {value!r} ({error}); part of a name will do"
    return None


def _is_count(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        return operator.index(value) >= 1
    except TypeError:
        return False
