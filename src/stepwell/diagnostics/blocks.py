"""A tensor as one row of real numbers, to be gone through in blocks, mostly without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


EXACT = (torch.float32, torch.float64)
"""What is calculated with as it is."""


def flat(tensor: Tensor) -> Tensor:
    """All elements in one row, in the order of memory where that has no holes (channels last too).

    Of a sparse tensor the values, those of the same place added up; of a complex one both parts.
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
    """Whether the elements fill a stretch of memory, each in a place of its own."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return tensor.numel() > 0


def real(block: Tensor) -> Tensor:
    """Numbers to calculate with: half precision as float32, integers as float64."""
    if block.dtype in EXACT:
        return block
    if block.is_floating_point():
        return block.float()
    return block.double()


def blocks(row: Tensor, size: int) -> Iterator[Tensor]:
    """The row in pieces of at most ``size`` elements."""
    return (row[start : start + size] for start in range(0, row.numel(), size))
