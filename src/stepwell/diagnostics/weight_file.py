"""Stores the weights of the last collection in a checkpoint file, written and compared in blocks.

The file is an ordinary checkpoint for ``torch.load``: an ``OrderedDict`` of names and tensors, like a
``state_dict()``. Its identity is in ``_metadata``. Writing and comparing need only one block of memory
besides the model: ``torch.save`` creates the layout of the file once, without the bytes of the weights, which
are then written block by block. Everything else in the file stays the same.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import time
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from stepwell.diagnostics.norms import blocks, flat, is_dense, norms_of_change, single_threaded

if TYPE_CHECKING:
    from torch import Tensor

    Described: TypeAlias = tuple[str, torch.dtype, tuple[int, ...], tuple[int, ...]]
    Description: TypeAlias = tuple[Described, ...]

MARK = "stepwell"
"""Key of the identity in the checkpoint's metadata."""
WIDEST = 8
"""Bytes of the widest element."""
ABANDONED_S = 600.0
"""Age in seconds after which an unfinished file is considered abandoned."""


class Unusable(Exception):
    """A file that the weights cannot be compared with, with the reason."""


class Foreign(Unusable):
    """A file of another run or attempt. A resumed run finds one."""


@dataclass(frozen=True)
class FileLayout:
    """The layout of the file.

    Attributes:
        description: name, type, shape and strides of each tensor.
        offsets: offset of each tensor's first byte.
        frame: everything except the weights, as (offset, bytes).
    """

    description: Description
    offsets: tuple[int, ...]
    frame: tuple[tuple[int, bytes], ...]


def describe(names: Sequence[str], tensors: Sequence[Tensor]) -> Description:
    """Return the description of a file with these tensors."""
    return tuple(
        (name, tensor.dtype, tuple(tensor.shape), _strides(tensor))
        for name, tensor in zip(names, tensors, strict=True)
    )


def _strides(tensor: Tensor) -> tuple[int, ...]:
    if is_dense(tensor):
        return tuple(tensor.stride())
    return tuple(torch.empty(tensor.shape, device="meta").stride())


def lay_out(path: Path, description: Description, identity: str) -> FileLayout:
    """Create a file with space for the weights. Return its layout."""
    from torch import serialization

    state: OrderedDict[str, Tensor] = OrderedDict(
        (each[0], _without_bytes(each)) for each in description
    )
    state._metadata = {"": {"version": 1, MARK: identity}}  # type: ignore[attr-defined]
    with getattr(serialization, "skip_data", nullcontext)():
        torch.save(state, path)
    with path.open("rb") as file:
        return _layout_in(file.fileno(), description)


def _without_bytes(described: Described) -> Tensor:
    """Return a tensor with untouched memory, for which the system allocates no pages."""
    _, dtype, shape, strides = described
    storage_class: Any = torch.UntypedStorage
    storage = storage_class(_size(described))
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)


def _size(described: Described) -> int:
    return math.prod(described[2]) * described[1].itemsize


def read_layout(path: Path, identity: str) -> FileLayout:
    """Return the layout of an existing file. Raise Unusable if it has another identity or is damaged."""
    try:
        state: dict[str, Tensor] = torch.load(path, weights_only=True, mmap=True)
        stored = _identity_of(state)
        if stored != identity:
            kind = Unusable if stored is None else Foreign
            raise kind("it belongs to another run or attempt")
        description = describe(list(state), list(state.values()))
        with path.open("rb") as file:
            return _layout_in(file.fileno(), description)
    except Unusable:
        raise
    except Exception as error:
        raise Unusable(f"it cannot be read ({type(error).__name__})") from error


def _identity_of(state: object) -> object:
    metadata = getattr(state, "_metadata", None) or {}
    return metadata.get("", {}).get(MARK)


def _layout_in(descriptor: int, description: Description) -> FileLayout:
    with os.fdopen(os.dup(descriptor), "rb") as file, zipfile.ZipFile(file) as archive:
        records = [info for info in archive.infolist() if info.filename.split("/")[1] == "data"]
    places = {int(info.filename.rpartition("/")[2]): info for info in records}
    offsets, frame, end = [], [], 0
    for number in range(len(description)):
        record = places[number]
        header = os.pread(descriptor, 30, record.header_offset)
        name_size, extra_size = struct.unpack("<HH", header[26:30])
        start = record.header_offset + 30 + name_size + extra_size
        if start < end or record.file_size != _size(description[number]):
            raise Unusable("its tensors are in unexpected places")
        offsets.append(start)
        frame.append((end, os.pread(descriptor, start - end, end)))
        end = start + record.file_size
    rest = os.fstat(descriptor).st_size - end
    frame.append((end, os.pread(descriptor, rest, end)))
    return FileLayout(description, tuple(offsets), tuple(frame))


def remove_abandoned(path: Path) -> None:
    """Remove files that ``replacing`` left beside this one in a process that was killed."""
    for left in path.parent.glob(f".{path.name}.[0-9]*.{'[0-9a-f]' * 8}"):
        try:
            if time.time() - left.stat().st_mtime > ABANDONED_S:
                left.unlink()
        except OSError:
            continue


def write_frame(descriptor: int, layout: FileLayout) -> None:
    """Write everything except the weights."""
    for offset, content in layout.frame:
        _write(descriptor, memoryview(content), offset)


class Stream:
    """Compares tensors with the old file, and writes them to the new one, block by block."""

    def __init__(self, old: int | None, new: int, block: int) -> None:
        self._old = old
        self._new = new
        self._block = block
        self._buffer = torch.empty(block * WIDEST, dtype=torch.uint8)

    @torch.inference_mode()
    @single_threaded()
    def pass_on(self, tensor: Tensor, old_offset: int, offset: int) -> float:
        """Write a tensor. Return the sum of squares of its change (0 without an old file)."""
        norms: list[Tensor] = []
        for block in blocks(flat(tensor), self._block):
            host = block if block.device.type == "cpu" else block.cpu()
            content = _bytes_of(host)
            if self._old is not None:
                before = self._buffer[: len(content)]
                if os.preadv(self._old, [_bytes_of(before)], old_offset) < len(content):
                    raise Unusable("it is too short")
                norms += norms_of_change(host, before.view(host.dtype))
            _write(self._new, content, offset)
            offset += len(content)
            old_offset += len(content)
        return math.fsum(norm * norm for norm in torch.cat(norms).tolist()) if norms else 0.0


def _bytes_of(row: Tensor) -> memoryview:
    """Return the memory of a row on the CPU. It is valid as long as the row."""
    size = row.numel() * row.element_size()
    return memoryview((ctypes.c_char * size).from_address(row.data_ptr())).cast("B")


def _write(descriptor: int, content: memoryview, offset: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], offset + done)


def signature(descriptor: int) -> tuple[Any, ...]:
    """Return values that change if a file is replaced or modified."""
    stat = os.fstat(descriptor)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
