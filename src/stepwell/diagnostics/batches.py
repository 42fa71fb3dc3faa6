"""Splits batches of any structure into the model's inputs and labels, and computes statistics of the labels.

Supported are dicts with ``img1``, ``img2`` and ``winner``; dicts with an input and a label, or with the names
of the model's arguments and ``labels``; and tuples of inputs and label. For other batches, use
``TelemetryConfig(batch_adapter=…)``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from stepwell.diagnostics.config import TelemetryConfig

LABEL_KEYS = ("winner", "labels", "label", "targets", "target", "y", "class")
INPUT_KEYS = ("input", "inputs", "x", "image", "images", "img", "data", "features", "pixel_values")
PAIR = ("img1", "img2")
IGNORED = -100
"""The label that PyTorch's losses ignore."""
MAX_CLASSES = 20
"""If there are more classes, the statistics do not have the share of each class."""


class UnknownBatchError(ValueError):
    """A batch whose inputs or labels cannot be determined."""


@dataclass
class Parts:
    """The inputs of the model, and the labels."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    labels: Any = None

    def to(self, device: torch.device) -> Parts:
        """Return copies on a device: a model may modify its inputs."""
        return Parts(
            moved(self.args, device), moved(self.kwargs, device), moved(self.labels, device)
        )


def parts_of(batch: Any, model: Any, config: TelemetryConfig) -> Parts:
    """Split a batch into the model's inputs and the labels."""
    if config.batch_adapter is not None:
        return _adapted(config.batch_adapter(batch))
    batch = _as_dict(batch)
    if isinstance(batch, Mapping):
        key = label_key_of(batch, config.label_key)
        rest = {name: value for name, value in batch.items() if name != key}
        args, kwargs = _inputs(rest, model)
        return Parts(args, kwargs, None if key is None else batch[key])
    if isinstance(batch, list | tuple) and len(batch) > 1:
        *inputs, labels = batch
        return _with_inputs(inputs[0] if len(inputs) == 1 else tuple(inputs), labels)
    return _with_inputs(batch, None)


def labels_of(batch: Any, config: TelemetryConfig) -> tuple[str, Any]:
    """Return the name of the labels of a batch, and the labels; None if there are none."""
    if config.batch_adapter is not None:
        return config.label_key or "label", _adapted(config.batch_adapter(batch)).labels
    batch = _as_dict(batch)
    if isinstance(batch, Mapping):
        key = label_key_of(batch, config.label_key)
        return key or "label", None if key is None else batch[key]
    if isinstance(batch, list | tuple) and len(batch) > 1:
        return "label", batch[-1]
    return "label", None


def label_key_of(batch: Mapping[Any, Any], chosen: str | None) -> str | None:
    """Return the key of the labels in a batch; None if there is none."""
    if chosen is not None:
        if chosen not in batch:
            raise UnknownBatchError(
                f"label_key must be a key of the batch ({', '.join(map(str, batch))}), got {chosen!r}"
            )
        return chosen
    return next((key for key in LABEL_KEYS if key in batch), None)


def size_of(batch: Any) -> int | None:
    """Return the number of examples in a batch, from its first tensor or array; None if it is unknown."""
    shape = getattr(batch, "shape", None)
    if isinstance(shape, tuple):
        return int(shape[0]) if shape else None
    batch = _as_dict(batch)
    items = batch.values() if isinstance(batch, Mapping) else batch
    # An iterator can be consumed only once, by training.
    if isinstance(items, str | bytes | Iterator) or not hasattr(items, "__iter__"):
        return None
    return next((size for item in items if (size := size_of(item)) is not None), None)


def first(batch: Any, count: int, size: int) -> Any:
    """Return the first ``count`` examples of a batch with ``size`` examples."""
    if isinstance(batch, torch.Tensor):
        # A copy: a view would keep the whole batch in memory.
        return batch[:count].clone() if batch.ndim and batch.shape[0] == size else batch
    if _is_array(batch):
        return batch[:count].copy() if batch.ndim and batch.shape[0] == size else batch
    if isinstance(batch, Mapping):
        return {key: first(value, count, size) for key, value in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*(first(item, count, size) for item in batch))
    if isinstance(batch, list | tuple):
        if any(isinstance(item, torch.Tensor | Mapping | list | tuple) for item in batch):
            return type(batch)(first(item, count, size) for item in batch)
        return batch[:count] if len(batch) == size else batch
    return batch


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a nested value in which tensors and NumPy arrays are changed by a function."""
    if isinstance(value, torch.Tensor) or _is_array(value):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(item, change) for item in value)
    return value


def moved(value: Any, device: torch.device) -> Any:
    """Return a copy of a nested value with its tensors, and NumPy arrays as tensors, on a device."""

    def move(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return item.to(device, non_blocking=True, copy=True)
        return torch.tensor(item, device=device) if item.dtype.kind in "biuf" else item

    return mapped(value, move)


def joined(parts: list[Parts]) -> Parts:
    """Concatenate several batches. If they do not fit together, return the first one."""
    try:
        return Parts(
            _joined([it.args for it in parts]),
            _joined([it.kwargs for it in parts]),
            _joined([it.labels for it in parts]),
        )
    except (RuntimeError, TypeError, ValueError, KeyError):
        return parts[0]


def _joined(values: list[Any]) -> Any:
    first_value = values[0]
    if len(values) == 1:
        return first_value
    if isinstance(first_value, torch.Tensor):
        return torch.cat(values)
    if isinstance(first_value, Mapping):
        return {key: _joined([value[key] for value in values]) for key in first_value}
    if isinstance(first_value, list | tuple):
        return tuple(_joined(list(items)) for items in zip(*values, strict=True))
    return first_value


def statistics(
    batch: Any, config: TelemetryConfig, classes: set[int] | None = None
) -> dict[str, Any]:
    """Return the size of a batch, and the share of each class or the distribution of the targets.

    ``classes`` are the classes of earlier batches, whose shares are reported even if they are 0. The classes
    of this batch are added to them.
    """
    name, labels = labels_of(batch, config)
    result: dict[str, Any] = {}
    if labels is not None:
        values = torch.as_tensor(labels).detach()
        is_continuous = _is_continuous(values, config)
        result = _distribution(name, values) if is_continuous else _shares(name, values, classes)
    # With an adapter, the batch may be anything, but there is one label per example.
    size = size_of(labels) if config.batch_adapter is not None else size_of(batch)
    if size is None and labels is not None:
        size = len(labels)
    return {**result, "batch_size": size} if size is not None else result


def class_counts(values: torch.Tensor) -> dict[int, int]:
    """Return the number of labels of each class, without ignored labels."""
    kept: Any = values.detach().reshape(-1).cpu()
    classes, counts = kept[kept != IGNORED].unique(return_counts=True)
    return {int(c): int(n) for c, n in zip(classes.tolist(), counts.tolist(), strict=True)}


def _is_continuous(values: torch.Tensor, config: TelemetryConfig) -> bool:
    if config.task == "regression":
        return True
    return values.is_floating_point() and bool((values != values.round()).any())


def _shares(name: str, values: torch.Tensor, classes: set[int] | None) -> dict[str, Any]:
    if values.ndim == 2 and values.shape[1] > 1 and bool((values.sum(1) == 1).all()):
        values = values.argmax(1)
    counts = class_counts(values)
    total = sum(counts.values())
    if not total:
        return {}
    classes = set() if classes is None else classes
    classes.update({0, 1} if counts.keys() <= {0, 1} else counts)
    if len(classes) > MAX_CLASSES:
        largest = 100.0 * max(counts.values()) / total
        return {f"{name}_classes": len(counts), f"{name}_largest_pct": largest}
    return {f"{name}_{c}_pct": 100.0 * counts.get(c, 0) / total for c in sorted(classes)}


def _distribution(name: str, values: torch.Tensor) -> dict[str, Any]:
    kept = values.double()
    return {
        f"{name}_mean": kept.mean(),
        f"{name}_std": kept.std(correction=0),
        f"{name}_min": kept.min(),
        f"{name}_max": kept.max(),
    }


def _is_array(value: Any) -> bool:
    """Return whether it is a NumPy array, without importing NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _as_dict(batch: Any) -> Any:
    """Return a named tuple as a dict, anything else unchanged."""
    return batch._asdict() if hasattr(batch, "_fields") and hasattr(batch, "_asdict") else batch


def _adapted(given: Any) -> Parts:
    if not isinstance(given, tuple) or len(given) != 2:
        raise UnknownBatchError("batch_adapter must return (inputs, labels)")
    return _with_inputs(*given)


def _with_inputs(inputs: Any, labels: Any) -> Parts:
    if isinstance(inputs, Mapping):
        return Parts((), dict(inputs), labels)
    return Parts(tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,), {}, labels)


def _inputs(rest: dict[Any, Any], model: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the model: the items of a batch without its labels."""
    if all(key in rest for key in PAIR):
        return tuple(rest[key] for key in PAIR), {}
    names, takes_any = _arguments(model)
    tensors = {key: value for key, value in rest.items() if isinstance(value, torch.Tensor)}
    named = {key: value for key, value in rest.items() if key in names}
    if named:
        return (), {**tensors, **named} if takes_any else named
    for key in INPUT_KEYS:
        if key in rest:
            return (rest[key],), {}
    if len(tensors) == 1:
        return tuple(tensors.values()), {}
    raise UnknownBatchError(
        f"it is not clear which of {', '.join(map(str, rest))} go into the model: "
        "set it with TelemetryConfig(batch_adapter=lambda batch: (inputs, labels))"
    )


def _arguments(model: Any) -> tuple[set[str], bool]:
    """The names that the model's forward takes, and whether it takes any other name too."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return set(), False
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = {it.name for it in parameters if it.kind in kinds}
    return names, any(it.kind is inspect.Parameter.VAR_KEYWORD for it in parameters)
