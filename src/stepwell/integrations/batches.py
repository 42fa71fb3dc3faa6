"""How large a batch is, without knowing what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEPTH = 3
"""So deep the first tensor of a batch is looked for."""
TOKENS = "input_ids"
USUAL = (list, tuple)


def samples_in(batch: Any, depth: int = DEPTH) -> int | None:
    """The length of the first tensor in a batch, None when there is none near the top."""
    shape = getattr(batch, "shape", None)
    if shape is None and type(batch) in USUAL and batch and depth:
        # Mostly it is the first of a pair.
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
        found = samples_in(item, depth - 1)
        if found is not None:
            return found
    return None


def tokens_in(batch: Any) -> int | None:
    """The tokens of a batch for a language model, those that pad it included; None for others."""
    found: Any = batch.get(TOKENS) if isinstance(batch, Mapping) else None
    return int(found.numel()) if hasattr(found, "numel") else None
