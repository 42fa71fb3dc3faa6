"""Batches: how many samples are in one, and loaders that cannot be followed where they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

DEPTH = 3


def samples_in(batch: Any, depth: int = DEPTH) -> int | None:
    """The length of the first tensor in a batch; None when there is none near the top."""
    if isinstance(batch, torch.Tensor):
        shape = batch.shape
        return shape[0] if shape else 1
    if not depth:
        return None
    if isinstance(batch, (list, tuple)):
        items: Any = batch
    elif isinstance(batch, Mapping):
        items = batch.values()
    else:
        return None
    for item in items:
        found = samples_in(item, depth - 1)
        if found is not None:
            return found
    return None


class Feed:
    """Goes through what has a built-in class (a list, a generator), so that it can be followed."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getattr__(self, name: str) -> Any:
        if name == "_items":
            raise AttributeError(name)
        return getattr(self._items, name)
