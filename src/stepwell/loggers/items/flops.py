"""Floating point operations of a batch and of an epoch, as PyTorch's own counter finds them.

The model is called once, in evaluation mode, and left as it was. A forward pass is counted; where the model
can be trained, training takes about three times as much, which is for the reader to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepwell.loggers.items.making import CannotKeep, Item

MEANING = {"unit": "FLOP", "counted": "forward pass, by torch.utils.flop_counter"}


def per_batch(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[Item]:
    """``(model, batch)``: the operations of the forward pass of this batch."""
    model, batch = _pair(item, "batch")
    yield Item(identifier, value=count(model, batch), meta=MEANING)


def per_epoch(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[Item]:
    """``(model, loader)``: the operations of the forward passes of all batches, from one of them.

    A last batch that is smaller counts by its share. The loader needs a length.
    """
    from stepwell.diagnostics.no_trace import same_random_numbers

    model, loader = _pair(item, "data loader")
    try:
        batches = len(loader)
    except TypeError:
        raise CannotKeep(
            f"{type(loader).__name__} does not say how many batches it has: log flops_pb, and "
            "multiply"
        ) from None
    if not batches:
        raise CannotKeep("the data loader is empty")
    with same_random_numbers():
        first = next(iter(loader))
    one = count(model, first)
    times = _whole_batches(loader, batches)
    about = {**MEANING, "batches": batches, "flops_of_first_batch": one}
    yield Item(identifier, value=round(one * times), meta=about)


def count(model: Any, batch: Any) -> int:
    """The operations of the forward pass of a batch; the model is as it was afterwards."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from stepwell.diagnostics.no_trace import bare, no_trace

    if not isinstance(model, torch.nn.Module):
        raise CannotKeep(f"a torch.nn.Module is needed, not {type(model).__name__}")
    inner = bare(model)
    first = next(inner.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    counter = FlopCounterMode(display=False)
    with no_trace(inner, device), counter:
        _call(inner, _moved(batch, device))
    return int(counter.get_total_flops())


def _call(model: Any, batch: Any) -> None:
    """As training loops do: inputs alone, inputs of (inputs, labels), or all by their names."""
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


def _whole_batches(loader: Any, batches: int) -> float:
    """How many batches of full size it comes to."""
    size: Any = getattr(loader, "batch_size", None)
    dataset: Any = getattr(loader, "dataset", None)
    if not size or getattr(loader, "drop_last", False) or not hasattr(dataset, "__len__"):
        return batches
    rest = len(dataset) % size
    # With a sampler of its own the last batch may be any size.
    is_plain = -(-len(dataset) // size) == batches
    return batches - 1 + rest / size if rest and is_plain else batches


def _pair(item: Any, second: str) -> tuple[Any, Any]:
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise CannotKeep(f"the item is (model, {second}), not {type(item).__name__}")
    return item[0], item[1]
