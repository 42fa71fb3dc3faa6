"""Tensors that are spread over processes: each one's own part, and sums over all parts.

A ``DTensor`` (FSDP2, tensor parallelism) or a parameter under FSDP1 holds a part of the whole on every rank.
The square of a norm is the sum of the squares of the parts, so one small all-reduce for each process group
makes the norm of the whole known on every rank. Nothing is communicated when nothing is sharded: under
plain data parallelism the gradients are the same everywhere once backward is over.

Every rank has to get here at the same batches, and whatever fails on one of them must not leave the others
waiting: a rank that has nothing to give takes part all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from stepwell.diagnostics.flat_shards import flat_shard

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))
"""What is told at once to be no ``DTensor``."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What this process has of a tensor.

    Attributes:
        local: its own part, a plain tensor; None when there is nothing (no gradient).
        groups: the process groups over which squares of the parts add up to that of the whole.
        device: where these groups communicate.
    """

    local: Tensor | None
    groups: tuple[Any, ...] = ()
    device: str = "cpu"


def shard(tensor: Tensor | None, like: Tensor | None = None) -> Shard:
    """This process's part; ``like`` tells how a tensor that is None, or a gradient, is spread."""
    spread: Any = like if tensor is None else tensor
    # Only a DTensor has placements; importing its class would load torch.distributed for nothing.
    if type(spread) in PLAIN or not hasattr(spread, "placements"):
        flat = flat_shard(tensor if like is None else like)
        return Shard(tensor) if flat is None else Shard(tensor, *flat)
    if tensor is not None:
        spread = _without_partial(spread)
    mesh = spread.device_mesh
    groups = tuple(
        mesh.get_group(dimension)
        for dimension, placement in enumerate(spread.placements)
        if not placement.is_replicate() and mesh.size(dimension) > 1
    )
    local = None if tensor is None else spread.detach().to_local()
    return Shard(local, groups, mesh.device_type)


def is_sharded(model: Module) -> bool:
    """Whether each rank has only a part of the parameters: FSDP, tensor parallelism or DeepSpeed ZeRO-3."""
    return any(hasattr(p, "placements") or hasattr(p, "ds_id") for p in model.parameters()) or any(
        type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()
    )


def _without_partial(tensor: Any) -> Any:
    """Sums that are still outstanding are made up first: they are no part of the whole."""
    if not any(placement.is_partial() for placement in tensor.placements):
        return tensor
    from torch.distributed.tensor import Replicate

    settled = [Replicate() if one.is_partial() else one for one in tensor.placements]
    return tensor.detach().redistribute(placements=settled)


def whole(tensor: Tensor) -> Tensor:
    """A plain tensor, put together over its ranks when it is spread."""
    tensor = tensor.detach()
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def over_ranks(
    shards: Sequence[Shard], compute: Callable[[], Tensor], largest: bool = False
) -> Tensor:
    """One number for each shard as ``compute`` gives it, summed over the ranks that have the other parts.

    Or the largest of them. When ``compute`` fails on one rank it is raised there and the others get
    NaN (as the largest: infinity).
    """
    buckets = _buckets(shards)
    if not buckets:
        return compute()
    try:
        values = compute()
    except Exception:
        odd = torch.inf if largest else torch.nan
        failed = torch.full((len(shards),), odd, dtype=torch.float64)
        _put_together(failed, shards, buckets, largest)
        raise
    return _put_together(values, shards, buckets, largest)


def on_any_rank(shards: Sequence[Shard], flag: bool) -> bool:
    """Whether the flag is set on any rank that has a part of these; every one of them has to ask."""
    for groups, members in _buckets(shards).items():
        raised = _all_reduced(torch.tensor(float(flag)), groups, shards[members[0]].device)
        flag = bool(raised.item())
    return flag


def is_alike(shards: Sequence[Shard], number: int) -> bool:
    """Whether all ranks that have a part of these give the same number; every one of them has to ask."""
    alike = True
    for groups, members in _buckets(shards).items():
        ends = torch.tensor([float(number), -float(number)])
        high, low = _all_reduced(ends, groups, shards[members[0]].device, largest=True).tolist()
        alike = alike and high == -low
    return alike


def _buckets(shards: Sequence[Shard]) -> dict[tuple[Any, ...], list[int]]:
    """Positions by the groups to sum over, in the same order on every rank."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for position, one in enumerate(shards):
        if one.groups:
            found.setdefault(one.groups, []).append(position)
    return found


def _put_together(
    values: Tensor,
    shards: Sequence[Shard],
    buckets: dict[tuple[Any, ...], list[int]],
    largest: bool,
) -> Tensor:
    values = values.clone()
    for groups, members in buckets.items():
        part = _all_reduced(values[members], groups, shards[members[0]].device, largest)
        values[members] = part.to(values.device)
    return values


def _all_reduced(
    values: Tensor, groups: tuple[Any, ...], device: str, largest: bool = False
) -> Tensor:
    from torch.distributed import ReduceOp, all_reduce

    values = values.to(device)
    for group in groups:
        all_reduce(values, ReduceOp.MAX if largest else ReduceOp.SUM, group=group)
    return values
