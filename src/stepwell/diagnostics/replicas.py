"""A number by which the replicas of a model can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stepwell.diagnostics.flat_shards import note_flat_shards
from stepwell.diagnostics.norms import l2, precision
from stepwell.diagnostics.sharding import shard

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


@torch.no_grad()
def weight_checksum(model: Module) -> Tensor | None:
    """The sum of all weights over their norm; None with one rank, or where weights are spread over the ranks.

    Replicas have the same one to the last digit. Of models that differ, norms are nearly alike, but not sums.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    note_flat_shards(model)
    weights = [
        w for w in model.parameters() if w.numel() and w.is_floating_point() and not w.is_meta
    ]
    if distributed.get_world_size() < 2 or not weights or any(shard(w).groups for w in weights):
        return None
    home = weights[0].device
    sums = [weight.detach().sum(dtype=precision(weight.device)).to(home) for weight in weights]
    checksum: Tensor = torch.stack(sums).sum() / l2(weights).to(home).clamp(min=1e-30)
    return checksum
