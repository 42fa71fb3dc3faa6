"""Batches of any shape, and the means of their losses and metrics over an epoch."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from stepwell.integrations.torch.trainer.strategies import TorchDistributedStrategy
from stepwell.journal.errors import StepwellError

LOSS = ""
"""In the place of a metric's name."""


class EpochMeans:
    """The losses and metrics of an epoch's batches, added up on their device."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def add(self, returned: Any) -> Tensor:
        """Add what a step returned, a loss or a loss and its metrics. Returns the loss."""
        pair = returned if isinstance(returned, tuple | list) else (returned, None)
        if len(pair) != 2:
            raise StepwellError(
                f"a step returned {len(pair)} values: return the loss and a dict of metrics, or "
                "override the method of the epoch too"
            )
        loss = torch.as_tensor(pair[0]).detach()
        for name, value in {LOSS: loss, **(pair[1] or {})}.items():
            number = torch.as_tensor(value).detach()
            if number.numel() == 1:
                self._sums[name] = self._sums.get(name, 0.0) + number.double().reshape(())
                self._counts[name] += 1
        return loss

    def over_all(self, strategy: TorchDistributedStrategy) -> dict[str, float]:
        """Return the means of all processes."""
        own = {name: (float(total), self._counts[name]) for name, total in self._sums.items()}
        everyone = strategy.allgather_obj(own)
        means: dict[str, float] = {}
        for name in dict.fromkeys(itertools.chain(*everyone)):
            pairs = [sums[name] for sums in everyone if name in sums]
            means[name] = sum(total for total, _ in pairs) / sum(count for _, count in pairs)
        return means


def move(value: Any, device: str) -> Any:
    """Return a batch, or what else can be moved, on a device."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: move(item, device) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [move(item, device) for item in value]
    return value.to(device) if hasattr(value, "to") else value


def count_batches(loader: Any) -> int | None:
    """Return the number of batches; None where it is open."""
    try:
        return len(loader)
    except TypeError:
        return None
