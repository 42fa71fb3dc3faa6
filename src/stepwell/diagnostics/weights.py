"""Measures the change of the weights since the last collection.

The weights of the last collection are stored in one of these ways:

- ``disk``: in a checkpoint file, rewritten each time. It needs only one block of memory. The file belongs
  to the run and its attempt; a file of another one is not used, and the first change is then unknown.
- ``memory``: a copy on the weights' device. It needs as much memory as the model.
- ``sample``: a copy of about one element in a hundred, evenly distributed, of each tensor with more than
  20,000 elements, and of all elements of smaller ones. The squares of sampled elements are scaled up.
  With m sampled elements whose changes are about normally distributed, the standard error of the norm is
  1/sqrt(2 m): 0.2 % for a tensor of 12 M elements, 5 % for one of 20,000. It is larger if few elements
  make up most of the change, such as rows of an embedding.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from stepwell._core.checks import one_of
from stepwell._core.errors import StepwellError, log_warning
from stepwell._core.files import replacing
from stepwell.diagnostics import weight_file
from stepwell.diagnostics.groups import OVERALL
from stepwell.diagnostics.norms import SHARE, blocks, flat, norm_in_rows, precision, real, root_sums
from stepwell.diagnostics.sharding import on_any_rank, over_ranks, shard

if TYPE_CHECKING:
    from torch import Tensor

    from stepwell.diagnostics.groups import Parameters

Mode = Literal["disk", "memory", "sample"]

BLOCK = SHARE
"""Elements that are compared at a time on the CPU."""
FILE_BLOCK = 4 * SHARE
"""Elements that are read and written at a time: few calls, and the data stays in the CPU cache."""
DEVICE_BLOCK = 1 << 22
"""Elements that are compared at a time on an accelerator."""
SAMPLED_FROM = 20_000
"""Tensors up to this number of elements are stored whole."""
STRIDES = (101, 103, 107, 109, 113)
"""Distances between sampled elements; primes, so that all columns are sampled."""


class WeightBaseline:
    """The weights of the last collection, to measure the change since."""

    def __init__(self, path: Path | None, mode: Mode = "disk", identity: str = "") -> None:
        """Set where the weights are stored. Nothing is read or written before the first ``delta``.

        Args:
            path: the file, for ``disk``. Each rank needs its own.
            mode: ``disk``, ``memory`` or ``sample``.
            identity: name of the run and the attempt. A file with another identity is not used. By default,
                only files that this object wrote are used.
        """
        if mode == "disk" and path is None:
            raise StepwellError('mode="disk" needs a path; use mode="memory" without one')
        one_of("disk", "memory", "sample").check("mode", mode)
        self._store: _Store
        if mode == "disk" and path is not None:
            self._store = _Disk(Path(path), identity or uuid.uuid4().hex)
        else:
            self._store = _Memory(sampled=mode == "sample")

    @torch.no_grad()
    def delta(self, groups: dict[str, Parameters]) -> dict[str, Tensor] | None:
        """Return the L2 norms of the change since the last call, ``overall`` and by group; None at the first.

        Also None if the parameters have changed in type, shape or number, or the file was lost. The weights
        are stored for the next call in any case. Every rank must call it if parameters are sharded.
        """
        parameters, members = _unique(groups)
        shards = [shard(parameter) for _, parameter in parameters]
        local = [each.local for each in shards if each.local is not None]
        squares, failure = None, None
        try:
            squares = self._store.renew([name for name, _ in parameters], local)
        except Exception as error:
            failure = error
        # Also after an error: the other ranks wait for this one.
        unknown = on_any_rank(shards, squares is None)
        values = torch.zeros(len(shards), dtype=torch.float64) if squares is None else squares
        totals = over_ranks(shards, lambda: values)
        if failure is not None:
            raise failure
        return None if unknown else root_sums(totals, members)


def _unique(groups: dict[str, Parameters]) -> tuple[Parameters, dict[str, list[int]]]:
    """Return each parameter once, and the positions of those of each group."""
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
    """Stores the weights from one call to the next."""

    def renew(self, names: Sequence[str], tensors: Sequence[Tensor]) -> Tensor | None:
        """Store the weights. Return the squared change of each since the last call; None if unknown."""


class _Memory:
    """Copies, or samples of about one in a hundred."""

    def __init__(self, sampled: bool) -> None:
        self._sampled = sampled
        self._description: object = None
        self._kept: list[Tensor] = []

    def renew(self, names: Sequence[str], tensors: Sequence[Tensor]) -> Tensor | None:
        description = [
            (name, tensor.shape, tensor.dtype, tensor.device)
            for name, tensor in zip(names, tensors, strict=True)
        ]
        rows = [self._part(tensor) for tensor in tensors]
        if description != self._description:
            _warn_if(self._description is not None, "the parameters of the model have changed")
            self._kept = [row.clone() for row in rows]
            self._description = description
            return None
        home = tensors[0].device if tensors else torch.device("cpu")
        squares = [
            # Scaled up from the sampled elements to all.
            (_change(row, kept) * (flat(tensor).numel() / max(1, row.numel()))).to(home)
            for row, kept, tensor in zip(rows, self._kept, tensors, strict=True)
        ]
        return torch.stack(squares) if squares else torch.zeros(0, dtype=torch.float64)

    def _part(self, tensor: Tensor) -> Tensor:
        row = flat(tensor)
        return row[:: _stride(tensor)] if self._sampled else row


def _stride(tensor: Tensor) -> int:
    if tensor.numel() <= SAMPLED_FROM:
        return 1
    return next((n for n in STRIDES if all(size % n for size in tensor.shape)), STRIDES[0])


def _change(row: Tensor, kept: Tensor) -> Tensor:
    """Return the sum of squares of the change, and copy ``row`` to ``kept``."""
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
    """Stores the weights in a checkpoint file. The new file is written while the old one is read."""

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        self._identity = identity
        self._layout: weight_file.FileLayout | None = None
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
                self._warn(why)
                return self._stream(tensors, description, None, None)
        except BaseException:
            # The file that remains is older than the last call.
            self._signature = None
            self._path.unlink(missing_ok=True)
            raise
        finally:
            if old is not None:
                os.close(old)

    def _open_old(
        self, description: weight_file.Description
    ) -> tuple[int | None, weight_file.FileLayout | None]:
        """Open the file of the last call, if it exists and fits."""
        try:
            old = os.open(self._path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            if self._signature is not None:
                self._warn(weight_file.Unusable("it was removed"))
            return None, None
        try:
            layout = self._layout
            if layout is None or weight_file.signature(old) != self._signature:
                layout = weight_file.read_layout(self._path, self._identity)
            if layout.description != description:
                raise weight_file.Unusable("the parameters of the model have changed")
        except weight_file.Unusable as why:
            os.close(old)
            is_expected = isinstance(why, weight_file.Foreign) and self._signature is None
            if not is_expected:
                self._warn(why)
            return None, None
        return old, layout

    def _stream(
        self,
        tensors: Sequence[Tensor],
        description: weight_file.Description,
        old: int | None,
        old_layout: weight_file.FileLayout | None,
    ) -> Tensor | None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        weight_file.remove_abandoned(self._path)
        with replacing(self._path) as beside:
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

    def _warn(self, why: weight_file.Unusable) -> None:
        _warn_if(not self._warned, f"{self._path.name} is not used for the weight delta: {why}")
        self._warned = True


def _warn_if(condition: bool, why: str) -> None:
    if condition:
        log_warning(
            "%s. The change of the weights is known again from the next collection on.", why
        )
