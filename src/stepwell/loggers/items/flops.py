"""Counts the floating point operations of a batch or an epoch with PyTorch's counter.

The model is called once, in evaluation mode, and is unchanged afterwards. Only the forward pass is counted;
training takes about three times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepwell.loggers.items.converters import CannotKeep, ConvertedItem

MEANING = {"unit": "FLOP", "counted": "forward pass, by torch.utils.flop_counter"}


def per_batch(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Count the operations of the forward pass of a batch. The item is ``(model, batch)``."""
    model, batch = _pair(item, "batch")
    yield ConvertedItem(identifier, value=count(model, batch), meta=MEANING)


def per_epoch(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Estimate the operations of the forward passes of an epoch, from one batch. The item is ``(model,
    loader)``.

    A smaller last batch counts in proportion. The loader needs a length.
    """
    from stepwell.diagnostics.isolation import preserved_rng

    model, loader = _pair(item, "data loader")
    try:
        batches = len(loader)
    except TypeError:
        raise CannotKeep(
            f"{type(loader).__name__} has no length. Log kind='flops_pb' and multiply by the number of "
            "batches"
        ) from None
    if not batches:
        raise CannotKeep("the data loader is empty")
    with preserved_rng():
        first = next(iter(loader))
    flops = count(model, first)
    times = _full_batches(loader, batches)
    meta = {**MEANING, "batches": batches, "flops_of_first_batch": flops}
    yield ConvertedItem(identifier, value=round(flops * times), meta=meta)


def count(model: Any, batch: Any) -> int:
    """Return the number of operations of the forward pass of a batch. The model is unchanged afterwards."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from stepwell.diagnostics.isolation import isolated_eval, unwrapped

    if not isinstance(model, torch.nn.Module):
        raise CannotKeep(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    inner = unwrapped(model)
    first = next(inner.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    counter = FlopCounterMode(display=False)
    with isolated_eval(inner, device), counter:
        _call(inner, _moved(batch, device))
    return int(counter.get_total_flops())


def _call(model: Any, batch: Any) -> None:
    """Call the model as training loops do: with inputs, the first of (inputs, labels), or keywords."""
    if isinstance(batch, Mapping):
        try:
            model(**batch)
        except TypeError:
            model(batch)
    elif isinstance(batch, list | tuple) and batch:
        try:
            model(batch[0])
        except TypeError:
            model(*batch)
    else:
        model(batch)


def _moved(batch: Any, device: Any) -> Any:
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _moved(value, device) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [_moved(value, device) for value in batch]
    return batch


def _full_batches(loader: Any, batches: int) -> float:
    """Return the equivalent number of full batches."""
    size: Any = getattr(loader, "batch_size", None)
    dataset: Any = getattr(loader, "dataset", None)
    if not size or getattr(loader, "drop_last", False) or not hasattr(dataset, "__len__"):
        return batches
    rest = len(dataset) % size
    # With a custom sampler, the last batch may have any size.
    is_plain = -(-len(dataset) // size) == batches
    return batches - 1 + rest / size if rest and is_plain else batches


def _pair(item: Any, second: str) -> tuple[Any, Any]:
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise CannotKeep(f"the item must be (model, {second}), got {type(item).__name__}")
    return item[0], item[1]
