"""Snapshots: the weights at a collection, in a file of their own.

``snapshots/epoch-00001.batch-00000200.pt`` beside the records is a dict of parameter names to tensors, as
``torch.save`` writes it; read it with ``torch.load(path, weights_only=True)``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stepwell.diagnostics.flat_shards import flat_shard
from stepwell.diagnostics.sharding import whole
from stepwell.journal.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.diagnostics.context import Context

FOLDER = "snapshots"


def keep(context: Context) -> Path | None:
    """Write the model's weights, on rank 0; the path, or None on other ranks."""
    # Sharded weights are put together on every rank, since all of them have to take part.
    is_written = context.rank == 0 and context.folder is not None
    weights: dict[str, Any] = {}
    for name, parameter in context.parameters:
        if flat_shard(parameter) is not None:
            raise StepwellError(
                "snapshots of what FullyShardedDataParallel has cut up cannot be kept; "
                "fully_shard (FSDP2) does without that limit"
            )
        full = whole(parameter)
        if is_written:
            weights[name] = full.cpu()
    if not is_written or context.folder is None:
        return None
    number = context.watch.number
    model = f".model-{number}" if number else ""
    name = f"epoch-{int(context.epoch):05d}.batch-{int(context.batch_idx):08d}{model}.pt"
    path = context.folder / FOLDER / name
    write(path, weights)
    return path


def write(path: Path, weights: dict[str, Any]) -> None:
    """Write beside and rename, so that no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        torch.save(weights, beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
