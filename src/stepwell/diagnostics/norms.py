"""L2 norms per group, accurate to 1e-5 for any size, and fetched from the device all at once.

A float32 sum over tens of millions of squares has an error of tenths of a percent. So a large tensor is
processed in short rows, whose norms are combined in float64. Norms stay on the device as tensors until
``fetch`` copies those of a whole collection together.

On the CPU, this runs in one thread (``single_threaded``). Several threads gain little for one pass over
memory, and if other programs use the cores, the threads wait for each other up to hundreds of times longer
than they work.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.linalg import vector_norm

from stepwell.diagnostics.sharding import Shard, over_ranks, shard

if TYPE_CHECKING:
    from torch import Tensor

ROW = 1 << 12
"""Elements whose squares are summed in the precision of the tensor."""
SHARE = 8 * ROW
"""Elements per call on the CPU: the largest number that torch never splits between threads."""
BLOCK = 1 << 20
"""Elements that are converted at a time, if conversion needs a copy."""
TINY, HUGE = 1e-13, 1e18
"""Outside this range, squares in float32 may have underflowed or overflowed."""


def l2(tensors: Sequence[Tensor | None]) -> Tensor:
    """Return the norm of all tensors together as a scalar on their device, without waiting for it.

    Sharded tensors count as a whole; duplicates in sparse tensors are summed; None and empty tensors are
    ignored.
    """
    return l2_by_group({"": tensors})[""]


@torch.no_grad()
def l2_by_group(
    groups: Mapping[str, Sequence[Tensor | None]],
    like: Mapping[str, Sequence[Tensor]] | None = None,
) -> dict[str, Tensor]:
    """Return the norm of each group. A tensor in several groups is processed once.

    ``like`` has tensors in the same places. They show how a tensor that is None on this rank is sharded.
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
    totals = over_ranks(shards, lambda: squares([each.local for each in shards]))
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
    """Return the root of the sum over each group's members."""
    if squared.device.type == "cpu":
        numbers = squared.tolist()
        sums = [math.fsum(map(numbers.__getitem__, chosen)) for chosen in members.values()]
        roots = torch.tensor(sums, dtype=squared.dtype).sqrt_()
        return dict(zip(members, roots.unbind(), strict=True))
    values = squared.unbind()
    zero = squared.new_zeros(())
    return {
        name: torch.stack([values[i] for i in chosen]).sum().sqrt() if chosen else zero
        for name, chosen in members.items()
    }


def squares(tensors: Sequence[Tensor | None]) -> Tensor:
    """Return the sum of squares of each plain tensor, as a row in float64 on the device of the first."""
    by_device: dict[torch.device, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor is not None:
            by_device.setdefault(tensor.device, []).append(place)
    home = next(iter(by_device), torch.device("cpu"))
    totals = torch.zeros(len(tensors), dtype=precision(home), device=home)
    for device, places in by_device.items():
        own = [tensor for place in places if (tensor := tensors[place]) is not None]
        norms = _norms_on_cpu(own) if device.type == "cpu" else _norms_on_device(own, device)
        norms = norms.to(home, non_blocking=True).square_()
        if len(places) == len(tensors):
            return norms
        totals[places] = norms
    return totals


def precision(device: torch.device) -> torch.dtype:
    """Return the dtype for sums: float64 if the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _norms_on_device(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Compute norms on an accelerator, which sums in trees, and in float64 while it reads float32."""
    flats = [flat(tensor) for tensor in tensors]
    rows = [row if row.is_floating_point() else row.double() for row in flats]
    return torch.stack(torch._foreach_norm(rows, 2, precision(device)))


def _norms_on_cpu(tensors: list[Tensor]) -> Tensor:
    """Compute norms in short rows, combined in float64."""
    # Inference mode makes each of the many calls cheaper.
    with torch.inference_mode(), single_threaded():
        rows = [flat(tensor) for tensor in tensors]
        parts = [part for row in rows for part in norms_of_parts(row)]
        norms = torch.cat(parts).tolist() if parts else []
    totals, begin = [], 0
    for row in rows:
        end = begin - row.numel() // -ROW
        norm = math.hypot(*norms[begin:end])
        is_exact = TINY < norm < HUGE or begin == end
        totals.append(norm if is_exact else _scaled_norm(row))
        begin = end
    return torch.tensor(totals, dtype=torch.float64)


def norm_in_rows(row: Tensor) -> Tensor:
    """Return the norm of one row of numbers on the CPU, in float64."""
    norm: Tensor = vector_norm(torch.cat(norms_of_parts(row)).double())
    return norm


def norms_of_change(now: Tensor, before: Tensor) -> list[Tensor]:
    """Return the norm of every ``ROW`` elements of the difference of two rows. ``before`` is overwritten."""
    if now.dtype in EXACT and torch.get_num_threads() == 1:
        return norms_of_parts(before.sub_(now))
    news, olds = list(blocks(now, SHARE)), list(blocks(before, SHARE))
    if now.dtype in EXACT:
        torch._foreach_sub_(olds, news)
        return norms_of_parts(before)
    pairs = zip(news, olds, strict=True)
    return [norm for new, old in pairs for norm in norms_of_parts(real(new) - real(old))]


def norms_of_parts(row: Tensor) -> list[Tensor]:
    """Return the norm of every ``ROW`` elements, and of the rest at the end."""
    if row.dtype in EXACT:
        return _norms_of_exact(row)
    return [norm for block in blocks(row, SHARE) for norm in _norms_of_exact(real(block))]


def _norms_of_exact(row: Tensor) -> list[Tensor]:
    size = row.numel()
    rows = size // ROW * ROW
    # With one thread, all rows can be processed in one call.
    shares = size // SHARE * SHARE if torch.get_num_threads() > 1 else 0
    norms = []
    if shares:
        pieces = row[:shares].view(-1, SHARE // ROW, ROW).unbind()
        norms = [vector_norm(piece, 2, 1) for piece in pieces]
    if shares < rows:
        norms.append(vector_norm(row[shares:rows].view(-1, ROW), 2, 1))
    if rows < size:
        norms.append(vector_norm(row[rows:] if rows else row, 2, 0, True))
    return norms


def _scaled_norm(row: Tensor) -> float:
    """Return the norm of a row that is zero or not finite, or whose squares are outside float32."""
    largest = float(torch.stack([real(block).abs().max() for block in blocks(row, BLOCK)]).max())
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    scaled = [vector_norm(block.double() / largest) for block in blocks(row, BLOCK)]
    return float(vector_norm(torch.stack(scaled))) * largest


def fetch(scalars: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the scalars as numbers. Waits for the device once for all of them."""
    if not scalars:
        return {}
    values = list(scalars.values())
    home = next((v.device for v in values if v.device.type != "cpu"), values[0].device)
    row = torch.stack(
        [v.detach().to(home, precision(home), non_blocking=True).reshape(()) for v in values]
    )
    return dict(zip(scalars, row.tolist(), strict=True))


EXACT = (torch.float32, torch.float64)
"""Types that are used without conversion."""


def flat(tensor: Tensor) -> Tensor:
    """Return all elements in one row, in the order of memory if it has no gaps (also for channels last).

    For a sparse tensor these are the values, with duplicates summed; for a complex tensor both parts.
    """
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce() if tensor.layout == torch.sparse_coo else tensor
        tensor = tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_contiguous():
        return tensor.view(-1)
    if is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def is_dense(tensor: Tensor) -> bool:
    """Return whether the elements fill a contiguous range of memory without overlap."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return tensor.numel() > 0


def real(block: Tensor) -> Tensor:
    """Return numbers for arithmetic: half precision as float32, integers as float64."""
    if block.dtype in EXACT:
        return block
    if block.is_floating_point():
        return block.float()
    return block.double()


def blocks(row: Tensor, size: int) -> Iterator[Tensor]:
    """Return the row in pieces of at most ``size`` elements."""
    return (row[start : start + size] for start in range(0, row.numel(), size))


@contextmanager
def single_threaded() -> Iterator[None]:
    """Context manager: torch's kernels use only the calling thread, if that is possible.

    ``torch.get_num_threads() == 1`` shows whether it is. Other threads are not affected.
    (``torch.set_num_threads`` would change the whole process, for good.)
    """
    before = torch.get_num_threads()
    set_threads = _setter() if before > 1 else None
    if set_threads is None:
        yield
        return
    set_threads(1)
    try:
        yield
    finally:
        set_threads(before)


@cache
def _setter() -> Any:
    """Return OpenMP's setter for the calling thread; None if torch does not use OpenMP."""
    try:
        # Found through torch's library, it is the OpenMP that torch uses, even if several are loaded.
        setter = ctypes.CDLL(torch._C.__file__).omp_set_num_threads
    except (AttributeError, OSError, TypeError):
        return None
    setter.argtypes, setter.restype = [ctypes.c_int], None
    return setter
