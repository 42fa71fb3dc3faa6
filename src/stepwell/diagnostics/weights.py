"""How far the weights have moved since the last collection.

The weights of that collection are kept on disk, in memory, or as a sample of them in memory:

- ``disk``: in a checkpoint file, written anew each time. It takes no memory besides a block. The file is
  bound to the run and its attempt; any other is left unused, and the first change is not known.
- ``memory``: a copy on the weights' own device. It takes as much memory as the model.
- ``sample``: a copy of about one element in a hundred, evenly spread, of each tensor of more than
  20,000 elements, and all of the smaller ones. The squares of what is sampled are scaled up by the
  elements that each stands for. With m sampled elements whose changes are about normally distributed,
  the norm is off by 1/sqrt(2 m) (one standard deviation: 0.2 % for a tensor of 12 M elements, 5 % for one
  of 20,000, the smallest that is sampled); more where few elements make up most of the change, such as
  rows of an embedding.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from stepwell.diagnostics import weight_file
from stepwell.diagnostics.blocks import blocks, flat, real
from stepwell.diagnostics.groups import OVERALL
from stepwell.diagnostics.norms import SHARE, norm_in_rows, precision, root_sums
from stepwell.diagnostics.sharding import on_any_rank, over_ranks, shard
from stepwell.journal.errors import StepwellError, say

if TYPE_CHECKING:
    from torch import Tensor

    from stepwell.diagnostics.groups import Parameters

Mode = Literal["disk", "memory", "sample"]

BLOCK = SHARE
"""Elements that are compared at a time on the CPU."""
FILE_BLOCK = 4 * SHARE
"""Elements that are read and written at a time: few calls, and what was read is still in a cache."""
DEVICE_BLOCK = 1 << 22
"""Elements that are compared at a time on an accelerator."""
SAMPLED_FROM = 20_000
"""Tensors up to this size are kept whole."""
STRIDES = (101, 103, 107, 109, 113)
"""Every so many elements one is sampled; primes, so that all columns have their turn."""


class WeightBaseline:
    """The weights as they were the last time, to measure the change since."""

    def __init__(self, path: Path | None, mode: Mode = "disk", identity: str = "") -> None:
        """Where the weights are kept; nothing is touched before the first ``delta``.

        Args:
            path: the file, for ``disk``. Each rank needs one of its own.
            mode: ``disk``, ``memory`` or ``sample``.
            identity: names the run and the attempt; a file with another one is not used. Without one
                only what this object wrote is used.
        """
        if mode == "disk" and path is None:
            raise StepwellError('a weight baseline on disk needs a path; or use mode="memory"')
        if mode not in ("disk", "memory", "sample"):
            raise StepwellError(f"there is no mode {mode!r}: write disk, memory or sample")
        self._store: _Store
        if mode == "disk" and path is not None:
            self._store = _Disk(Path(path), identity or uuid.uuid4().hex)
        else:
            self._store = _Memory(sampled=mode == "sample")

    @torch.no_grad()
    def delta(self, groups: dict[str, Parameters]) -> dict[str, Tensor] | None:
        """L2 norms of the change since the last call, ``overall`` and by group; None at the first.

        None also after the parameters became others, or their file was lost. The weights are kept for
        the next call in any case. Of sharded parameters every rank has to call.
        """
        parameters, members = _unique(groups)
        shards = [shard(one) for _, one in parameters]
        local = [one.local for one in shards if one.local is not None]
        squares, failure = None, None
        try:
            squares = self._store.renew([name for name, _ in parameters], local)
        except Exception as error:
            failure = error
        # Whatever happened here, the other ranks wait for this one.
        unknown = on_any_rank(shards, squares is None)
        values = torch.zeros(len(shards), dtype=torch.float64) if squares is None else squares
        totals = over_ranks(shards, lambda: values)
        if failure is not None:
            raise failure
        return None if unknown else root_sums(totals, members)


def _unique(groups: dict[str, Parameters]) -> tuple[Parameters, dict[str, list[int]]]:
    """Each parameter once, and where those of a group are."""
    places: dict[int, int] = {}
    parameters: Parameters = []
    members: dict[str, list[int]] = {OVERALL: []}
    for group, own in groups.items():
        members[group] = []
        for name, parameter in own:
            if id(parameter) not in places:
                places[id(parameter)] = len(parameters)
                parameters.append((name, parameter))
            members[group].append(places[id(parameter)])
    members[OVERALL] = members[OVERALL] or list(range(len(parameters)))
    return parameters, members


class _Store(Protocol):
    """Keeps the weights from one call to the next."""

    def renew(self, names: Sequence[str], tensors: Sequence[Tensor]) -> Tensor | None:
        """Squares of each one's change since the last call, None when unknown; keep them as they are now."""


class _Memory:
    """Copies, or samples of about one in a hundred."""

    def __init__(self, sampled: bool) -> None:
        self._sampled = sampled
        self._about: object = None
        self._kept: list[Tensor] = []

    def renew(self, names: Sequence[str], tensors: Sequence[Tensor]) -> Tensor | None:
        about = [
            (name, one.shape, one.dtype, one.device)
            for name, one in zip(names, tensors, strict=True)
        ]
        rows = [self._part(one) for one in tensors]
        if about != self._about:
            _warn_if(self._about is not None, "the parameters of the model are others now")
            self._kept = [row.clone() for row in rows]
            self._about = about
            return None
        home = tensors[0].device if tensors else torch.device("cpu")
        found = [
            # Each sampled element stands for so many.
            (_change(row, kept) * (flat(one).numel() / max(1, row.numel()))).to(home)
            for row, kept, one in zip(rows, self._kept, tensors, strict=True)
        ]
        return torch.stack(found) if found else torch.zeros(0, dtype=torch.float64)

    def _part(self, tensor: Tensor) -> Tensor:
        row = flat(tensor)
        return row[:: _stride(tensor)] if self._sampled else row


def _stride(tensor: Tensor) -> int:
    if tensor.numel() <= SAMPLED_FROM:
        return 1
    return next((one for one in STRIDES if all(size % one for size in tensor.shape)), STRIDES[0])


def _change(row: Tensor, kept: Tensor) -> Tensor:
    """The sum of squares of the change; ``kept`` becomes as ``row`` on the way."""
    wide = precision(row.device)
    size = BLOCK if row.device.type == "cpu" else DEVICE_BLOCK
    parts = [torch.zeros((), dtype=wide, device=row.device)]
    for now, before in zip(blocks(row, size), blocks(kept, size), strict=True):
        difference = real(now) - real(before)
        if row.device.type == "cpu":
            parts.append(norm_in_rows(difference))
        else:
            parts.append(torch.linalg.vector_norm(difference, dtype=wide))
        before.copy_(now)
    return torch.stack(parts).square().sum()


class _Disk:
    """A checkpoint file that is written beside the old one while that is read."""

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        self._identity = identity
        self._layout: weight_file.Layout | None = None
        self._signature: tuple[Any, ...] | None = None
        self._warned = False

    def renew(self, names: Sequence[str], tensors: Sequence[Tensor]) -> Tensor | None:
        description = weight_file.describe(names, tensors)
        old, layout = None, None
        try:
            old, layout = self._open_old(description)
            try:
                return self._stream(tensors, description, old, layout)
            except weight_file.Unusable as why:
                self._say(why)
                return self._stream(tensors, description, None, None)
        except BaseException:
            # What is left there is older than the last call.
            self._signature = None
            self._path.unlink(missing_ok=True)
            raise
        finally:
            if old is not None:
                os.close(old)

    def _open_old(
        self, description: weight_file.Description
    ) -> tuple[int | None, weight_file.Layout | None]:
        """The file of the last call, if it is there and fits."""
        try:
            old = os.open(self._path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            if self._signature is not None:
                self._say(weight_file.Unusable("it is gone"))
            return None, None
        try:
            layout = self._layout
            if layout is None or weight_file.signature(old) != self._signature:
                layout = weight_file.read_layout(self._path, self._identity)
            if layout.description != description:
                raise weight_file.Unusable("the parameters of the model are others now")
        except weight_file.Unusable as why:
            os.close(old)
            is_expected = isinstance(why, weight_file.Foreign) and self._signature is None
            if not is_expected:
                self._say(why)
            return None, None
        return old, layout

    def _stream(
        self,
        tensors: Sequence[Tensor],
        description: weight_file.Description,
        old: int | None,
        old_layout: weight_file.Layout | None,
    ) -> Tensor | None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with weight_file.written_beside(self._path) as beside:
            layout = self._layout
            if layout is None or layout.description != description:
                layout = weight_file.lay_out(beside, description, self._identity)
            new = os.open(beside, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                weight_file.write_frame(new, layout)
                stream = weight_file.Stream(old, new, FILE_BLOCK)
                before = old_layout or layout
                squares = [
                    stream.pass_on(tensor, old_offset, offset)
                    for tensor, old_offset, offset in zip(
                        tensors, before.offsets, layout.offsets, strict=True
                    )
                ]
                signature = weight_file.signature(new)
            finally:
                os.close(new)
        self._layout, self._signature = layout, signature
        return None if old is None else torch.tensor(squares, dtype=torch.float64)

    def _say(self, why: weight_file.Unusable) -> None:
        _warn_if(not self._warned, f"{self._path.name} is not used for the weight delta: {why}")
        self._warned = True


def _warn_if(condition: bool, why: str) -> None:
    if condition:
        say("%s; the change of the weights is known again from the next collection on.", why)
