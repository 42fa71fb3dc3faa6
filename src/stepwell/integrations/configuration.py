"""Properties of a training, read from its objects: model, optimizers, loader and batches.

They are added to the configuration of the run, so that runs without an explicit configuration can be
compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from stepwell._core.errors import report
from stepwell.diagnostics.gradients import innermost
from stepwell.telemetry.run import active_run

LEARNING_RATES = ("lr", "initial_lr")
MOST_NAMES = 5
"""Largest number of parameters without an optimizer that are named."""


def record_config(facts: Mapping[str, Any]) -> None:
    """Add entries to the configuration of the active run, without replacing existing keys."""
    run = active_run()
    if run is not None:
        run.add_config(facts, replace=False)


def record_training(model: Any, optimizers: Iterable[Any] = (), loader: Any = None) -> None:
    """Record the size of a model, the settings of its optimizers and the size of a batch."""
    try:
        record_config(training_facts(model, list(optimizers), loader))
    except Exception as error:
        report("configuration", error)


def training_facts(model: Any, optimizers: list[Any], loader: Any = None) -> dict[str, Any]:
    """Return a dict of ``model``, ``optimizer`` and ``batch_size``, without unknown entries."""
    settings = [optimizer_settings(optimizer) for optimizer in optimizers]
    facts = {
        "model": model_size(model) if isinstance(model, torch.nn.Module) else None,
        "optimizer": settings[0] if len(settings) == 1 else dict(enumerate(settings)),
        "batch_size": batch_size(loader),
    }
    return {key: fact for key, fact in facts.items() if fact}


def model_size(model: torch.nn.Module) -> dict[str, Any]:
    """Return the class and the number of parameters of a model."""
    sizes = [
        (parameter.numel(), parameter.requires_grad)
        for parameter in model.parameters()
        if not torch.nn.parameter.is_lazy(parameter)
    ]
    return {
        "class": type(model).__name__,
        "parameters": sum(size for size, _ in sizes),
        "trainable_parameters": sum(size for size, is_trained in sizes if is_trained),
    }


def optimizer_settings(optimizer: Any) -> dict[str, Any]:
    """Return the class and the settings of an optimizer. A setting that differs between groups is a list."""
    optimizer = innermost(optimizer)
    groups = list(getattr(optimizer, "param_groups", ()))
    settings: dict[str, Any] = {"class": type(optimizer).__name__}
    for key in groups[0] if groups else ():
        if key in ("params", "param_names", *LEARNING_RATES):
            continue
        settings[key] = _of_all([group.get(key) for group in groups])
    if groups:
        # A scheduler may have changed "lr" already.
        settings["lr"] = _of_all([group.get("initial_lr", group.get("lr")) for group in groups])
    return settings


def _of_all(values: list[Any]) -> Any:
    values = [_on_host(value) if isinstance(value, torch.Tensor) else value for value in values]
    return values[0] if all(value == values[0] for value in values) else values


def _on_host(tensor: torch.Tensor) -> Any:
    """Return the number in a tensor on the host; None for several numbers, or on a device (no waiting)."""
    return tensor.item() if tensor.is_cpu and tensor.numel() == 1 else None


def batch_size(loader: Any) -> int | None:
    """Return the batch size of a loader, None if it has no such attribute."""
    for owner in (loader, getattr(loader, "batch_sampler", None)):
        size = getattr(owner, "batch_size", None)
        if isinstance(size, int) and size > 0:
            return size
    return None


def is_shuffled(loader: Any) -> bool | None:
    """Return whether a DataLoader shuffles, None if its sampler is not one of torch's own."""
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    if batches is not None and (
        type(batches).__name__ != "BatchSampler" or getattr(batches, "sampler", None) is not sampler
    ):
        return None
    return {"SequentialSampler": False, "RandomSampler": True}.get(type(sampler).__name__)


def parameter_counts(models: Iterable[Any], optimizers: Iterable[Any]) -> dict[str, Any]:
    """Return the number of trainable tensors of the models, and how many of them have an optimizer.

    If some have none, also return the names of the first ones, and the total number of their elements.
    """
    trained = {
        id(parameter): (name, parameter)
        for model in models
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    optimized = {
        id(parameter)
        for optimizer in optimizers
        for group in getattr(optimizer, "param_groups", ())
        for parameter in group["params"]
    }
    left = [named for key, named in trained.items() if key not in optimized]
    counts: dict[str, Any] = {
        "trainable_parameters": len(trained),
        "optimized_parameters": len(trained) - len(left),
    }
    if 0 < len(left) < len(trained):
        counts["not_optimized"] = [name for name, _ in left[:MOST_NAMES]]
        counts["not_optimized_numbers"] = sum(parameter.numel() for _, parameter in left)
    return counts


DEPTH = 3
"""Nesting depth of a batch down to which its first tensor is searched."""
TOKENS = "input_ids"
USUAL = (list, tuple)


def samples_in(batch: Any, depth: int = DEPTH) -> int | None:
    """Return the length of the first tensor in a batch, None if there is none near the top."""
    shape = getattr(batch, "shape", None)
    if shape is None and type(batch) in USUAL and batch and depth:
        # Usually the batch is a pair, and its first item a tensor.
        shape = getattr(batch[0], "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if not depth:
        return None
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    elif not isinstance(batch, (list, tuple)):
        return None
    for item in batch:
        samples = samples_in(item, depth - 1)
        if samples is not None:
            return samples
    return None


def tokens_in(batch: Any) -> int | None:
    """Return the tokens in a batch of a language model, including padding; None for other batches."""
    tokens: Any = batch.get(TOKENS) if isinstance(batch, Mapping) else None
    return int(tokens.numel()) if hasattr(tokens, "numel") else None
