"""Sharded tensors: the part of this process, and sums over all parts.

A ``DTensor`` (FSDP2, tensor parallelism) or a parameter under FSDP1 has a part of the whole on every rank.
The square of a norm is the sum of the squares of the parts, so one small all-reduce per process group gives
every rank the norm of the whole. Nothing is communicated if nothing is sharded: under plain data parallelism
the gradients are the same on all ranks after backward.

Every rank must get here at the same batches, and an error on one rank must not leave the others waiting: a
rank without a result takes part too.

Parameters under FSDP1 (``FullyShardedDataParallel``) are plain tensors; only the modules that wrap the model
know how they are sharded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from stepwell._core.errors import warn_once

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))
"""Types that are not a ``DTensor``."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a tensor on this process.

    Attributes:
        local: the part, a plain tensor; None if there is none (no gradient).
        groups: the process groups with the other parts.
        device: the type of device that these groups use.
    """

    local: Tensor | None
    groups: tuple[Any, ...] = ()
    device: str = "cpu"


def shard(tensor: Tensor | None, like: Tensor | None = None) -> Shard:
    """Return the part on this process. ``like`` shows how a gradient or a tensor that is None is sharded."""
    spread: Any = like if tensor is None else tensor
    # Only a DTensor has placements. Importing its class would load torch.distributed.
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
    """Return whether each rank has only a part of the parameters: FSDP, tensor parallelism or ZeRO-3."""
    return any(hasattr(p, "placements") or hasattr(p, "ds_id") for p in model.parameters()) or any(
        type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()
    )


def _without_partial(tensor: Any) -> Any:
    """Complete pending sums of a DTensor: partial sums are not parts of the whole."""
    if not any(placement.is_partial() for placement in tensor.placements):
        return tensor
    from torch.distributed.tensor import Replicate

    placements = [Replicate() if p.is_partial() else p for p in tensor.placements]
    return tensor.detach().redistribute(placements=placements)


def whole(tensor: Tensor) -> Tensor:
    """Return a plain tensor, gathered from all ranks if it is sharded."""
    tensor = tensor.detach()
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def over_ranks(
    shards: Sequence[Shard], compute: Callable[[], Tensor], largest: bool = False
) -> Tensor:
    """Call ``compute``, which returns one number per shard, and sum each over the ranks with the other parts.

    With ``largest``, take the maximum instead of the sum. If ``compute`` raises on one rank, the error is
    raised there, and the other ranks get NaN (with ``largest``: infinity).
    """
    buckets = _buckets(shards)
    if not buckets:
        return compute()
    try:
        values = compute()
    except Exception:
        invalid = torch.inf if largest else torch.nan
        failed = torch.full((len(shards),), invalid, dtype=torch.float64)
        _combined(failed, shards, buckets, largest)
        raise
    return _combined(values, shards, buckets, largest)


def on_any_rank(shards: Sequence[Shard], flag: bool) -> bool:
    """Return whether the flag is set on any rank with a part of these. All of these ranks must call it."""
    for groups, members in _buckets(shards).items():
        raised = _all_reduced(torch.tensor(float(flag)), groups, shards[members[0]].device)
        flag = bool(raised.item())
    return flag


def is_alike(shards: Sequence[Shard], number: int) -> bool:
    """Return whether all ranks with a part of these pass the same number. All of them must call it."""
    alike = True
    for groups, members in _buckets(shards).items():
        ends = torch.tensor([float(number), -float(number)])
        high, low = _all_reduced(ends, groups, shards[members[0]].device, largest=True).tolist()
        alike = alike and high == -low
    return alike


def _buckets(shards: Sequence[Shard]) -> dict[tuple[Any, ...], list[int]]:
    """Return the positions by the groups to sum over, in the same order on every rank."""
    buckets: dict[tuple[Any, ...], list[int]] = {}
    for position, each in enumerate(shards):
        if each.groups:
            buckets.setdefault(each.groups, []).append(position)
    return buckets


def _combined(
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


_spread: Any = WeakIdKeyDictionary()


def note_flat_shards(model: Module) -> None:
    """Note how the model's FSDP1 modules shard its parameters. Costs nothing without FSDP1."""
    # A program with such a module has imported this.
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for module in model.modules():
        if isinstance(module, fsdp.FullyShardedDataParallel):
            _note(module)


def _note(module: Any) -> None:
    try:
        handle = module._handle
        if handle is None or not handle.uses_sharded_strategy:
            return
        own = [handle.flat_param, *(handle.flat_param._params or ())]
        where = (handle.process_group,), handle.device.type
    except AttributeError as error:
        warn_once(
            "diagnostics: FSDP1",
            "this version of FullyShardedDataParallel does not show how it shards parameters (%s), so "
            "norms are those of each rank's own part. With fully_shard (FSDP2) they are those of the whole",
            error,
        )
        return
    for parameter in own:
        _spread[parameter] = where


def flat_shard(parameter: Tensor | None) -> tuple[tuple[Any, ...], str] | None:
    """Return the process groups with the other parts, and their type of device; None if not FSDP1."""
    groups: tuple[tuple[Any, ...], str] | None = _spread.get(parameter) if len(_spread) else None
    return groups
