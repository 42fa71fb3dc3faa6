"""L2 norms as one number for each group, right to 1e-5 whatever the size, and fetched all at once.

A float32 sum over tens of millions of squares is off by tenths of a percent. So a large tensor is gone
through in short rows, whose norms are then put together in float64. Norms stay on the device as
tensors until ``fetch`` brings those of a whole collection over in one go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.linalg import vector_norm

from stepwell.diagnostics.blocks import EXACT, blocks, flat, real
from stepwell.diagnostics.one_thread import one_thread
from stepwell.diagnostics.sharding import Shard, over_ranks, shard

if TYPE_CHECKING:
    from torch import Tensor

ROW = 1 << 12
"""Elements whose squares are added up in the tensor's own precision."""
SHARE = 8 * ROW
"""Elements for one call on the CPU: the most that torch never shares out among threads."""
BLOCK = 1 << 20
"""Elements that are converted at a time where that needs a copy."""
TINY, HUGE = 1e-13, 1e18
"""Outside of these, squares of float32 may have been lost below or above what it can hold."""


def l2(tensors: Sequence[Tensor | None]) -> Tensor:
    """The norm of all of them together: one number on their device, without waiting for it.

    Sharded tensors count as wholes, sparse ones with duplicates added up, None and empty ones not at all.
    """
    return l2_by_group({"": tensors})[""]


@torch.no_grad()
def l2_by_group(
    groups: Mapping[str, Sequence[Tensor | None]],
    like: Mapping[str, Sequence[Tensor]] | None = None,
) -> dict[str, Tensor]:
    """The norm of each group; a tensor that is in several of them is gone through once.

    ``like`` has tensors in the same places that say how those that are None on this rank are spread over
    the others.
    """
    shards: list[Shard] = []
    places: dict[int, int] = {}
    members: dict[str, list[int]] = {}
    for name, tensors in groups.items():
        models = like[name] if like else tensors
        members[name] = [
            _place(tensor, model, shards, places)
            for tensor, model in zip(tensors, models, strict=True)
            if model is not None
        ]
    totals = over_ranks(shards, lambda: squares([one.local for one in shards]))
    return root_sums(totals, members)


def _place(
    tensor: Tensor | None, model: Tensor, shards: list[Shard], places: dict[int, int]
) -> int:
    key = id(model if tensor is None else tensor)
    if key not in places:
        places[key] = len(shards)
        shards.append(shard(tensor, model))
    return places[key]


def root_sums(squared: Tensor, members: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """The root of the sum over each group's members."""
    if squared.device.type == "cpu":
        numbers = squared.tolist()
        sums = [math.fsum(map(numbers.__getitem__, chosen)) for chosen in members.values()]
        roots = torch.tensor(sums, dtype=squared.dtype).sqrt_()
        return dict(zip(members, roots.unbind(), strict=True))
    ones = squared.unbind()
    nothing = squared.new_zeros(())
    return {
        name: torch.stack([ones[one] for one in chosen]).sum().sqrt() if chosen else nothing
        for name, chosen in members.items()
    }


def squares(tensors: Sequence[Tensor | None]) -> Tensor:
    """The sum of squares of each of these plain tensors, as one row in float64 on the first one's device."""
    by_device: dict[torch.device, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor is not None:
            by_device.setdefault(tensor.device, []).append(place)
    home = next(iter(by_device), torch.device("cpu"))
    found = torch.zeros(len(tensors), dtype=precision(home), device=home)
    for device, places in by_device.items():
        own = [tensor for place in places if (tensor := tensors[place]) is not None]
        norms = _norms_on_cpu(own) if device.type == "cpu" else _norms_on_device(own, device)
        norms = norms.to(home, non_blocking=True).square_()
        if len(places) == len(tensors):
            return norms
        found[places] = norms
    return found


def precision(device: torch.device) -> torch.dtype:
    """What sums are kept in: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _norms_on_device(tensors: list[Tensor], device: torch.device) -> Tensor:
    """An accelerator adds up in trees, and can do so in float64 while it reads float32."""
    flats = [flat(tensor) for tensor in tensors]
    rows = [row if row.is_floating_point() else row.double() for row in flats]
    return torch.stack(torch._foreach_norm(rows, 2, precision(device)))


def _norms_on_cpu(tensors: list[Tensor]) -> Tensor:
    """In short rows, in float64."""
    # Without the bookkeeping for autograd each of many calls costs less.
    with torch.inference_mode(), one_thread():
        rows = [flat(tensor) for tensor in tensors]
        parts = [part for row in rows for part in norms_of_parts(row)]
        norms = torch.cat(parts).tolist() if parts else []
    found, begin = [], 0
    for row in rows:
        end = begin - row.numel() // -ROW
        norm = math.hypot(*norms[begin:end])
        usable = TINY < norm < HUGE or begin == end
        found.append(norm if usable else _careful_norm(row))
        begin = end
    return torch.tensor(found, dtype=torch.float64)


def norm_in_rows(row: Tensor) -> Tensor:
    """The norm of one row of numbers on the CPU, in float64."""
    norm: Tensor = vector_norm(torch.cat(norms_of_parts(row)).double())
    return norm


def norms_of_change(now: Tensor, before: Tensor) -> list[Tensor]:
    """The norm of every ``ROW`` elements of the difference of two rows; ``before`` is used up."""
    if now.dtype in EXACT and torch.get_num_threads() == 1:
        return norms_of_parts(before.sub_(now))
    news, olds = list(blocks(now, SHARE)), list(blocks(before, SHARE))
    if now.dtype in EXACT:
        torch._foreach_sub_(olds, news)
        return norms_of_parts(before)
    pairs = zip(news, olds, strict=True)
    return [one for new, old in pairs for one in norms_of_parts(real(new) - real(old))]


def norms_of_parts(row: Tensor) -> list[Tensor]:
    """The norm of every ``ROW`` elements, and of what is left at the end."""
    if row.dtype in EXACT:
        return _norms_of_exact(row)
    return [one for block in blocks(row, SHARE) for one in _norms_of_exact(real(block))]


def _norms_of_exact(row: Tensor) -> list[Tensor]:
    size = row.numel()
    rows = size // ROW * ROW
    # A thread that is alone can do all rows in one call.
    shares = size // SHARE * SHARE if torch.get_num_threads() > 1 else 0
    found = []
    if shares:
        pieces = row[:shares].view(-1, SHARE // ROW, ROW).unbind()
        found = [vector_norm(piece, 2, 1) for piece in pieces]
    if shares < rows:
        found.append(vector_norm(row[shares:rows].view(-1, ROW), 2, 1))
    if rows < size:
        found.append(vector_norm(row[rows:] if rows else row, 2, 0, True))
    return found


def _careful_norm(row: Tensor) -> float:
    """For what is all zeros, not finite, or so small or large that float32 cannot hold its square."""
    largest = float(torch.stack([real(one).abs().max() for one in blocks(row, BLOCK)]).max())
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    scaled = [vector_norm(one.double() / largest) for one in blocks(row, BLOCK)]
    return float(vector_norm(torch.stack(scaled))) * largest


def fetch(scalars: Mapping[str, Tensor]) -> dict[str, float]:
    """The numbers, with one wait for the device for all of them."""
    if not scalars:
        return {}
    values = list(scalars.values())
    home = next((one.device for one in values if one.device.type != "cpu"), values[0].device)
    row = torch.stack(
        [one.detach().to(home, precision(home), non_blocking=True).reshape(()) for one in values]
    )
    return dict(zip(scalars, row.tolist(), strict=True))
