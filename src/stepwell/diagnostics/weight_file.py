"""The weights of the last collection in a file that ``torch.load`` reads, written and compared in blocks.

The file is an ordinary checkpoint: an ``OrderedDict`` of names and tensors, like a ``state_dict()``. What it
belongs to stands in its ``_metadata``. Neither writing nor comparing holds more than one block in memory
besides the model's own: ``torch.save`` lays the file out once without the weights' bytes, and these
go to their places block by block. Everything between them is the same for every later file.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import time
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from stepwell.diagnostics.blocks import blocks, flat, is_dense
from stepwell.diagnostics.norms import norms_of_change
from stepwell.diagnostics.one_thread import one_thread

if TYPE_CHECKING:
    from torch import Tensor

    Described: TypeAlias = tuple[str, torch.dtype, tuple[int, ...], tuple[int, ...]]
    Description: TypeAlias = tuple[Described, ...]

MARK = "stepwell"
"""Key of the identity in the checkpoint's metadata."""
WIDEST = 8
"""Bytes of the largest real number."""
PART = ".part"
ABANDONED_S = 600.0
"""A file begun so long ago by a process that is gone will not be finished."""


class Unusable(Exception):
    """A file that the weights cannot be compared with; says why."""


class Foreign(Unusable):
    """A file that another run or attempt has kept here, as one that is resumed finds it."""


@dataclass(frozen=True)
class Layout:
    """Where things are in the file.

    Attributes:
        description: name, type, shape and strides of each tensor.
        offsets: of each tensor's first byte.
        frame: all that is not weights, as (offset, bytes).
    """

    description: Description
    offsets: tuple[int, ...]
    frame: tuple[tuple[int, bytes], ...]


def describe(names: Sequence[str], tensors: Sequence[Tensor]) -> Description:
    """What a file with these tensors has to look like."""
    return tuple(
        (name, tensor.dtype, tuple(tensor.shape), _strides(tensor))
        for name, tensor in zip(names, tensors, strict=True)
    )


def _strides(tensor: Tensor) -> tuple[int, ...]:
    if is_dense(tensor):
        return tuple(tensor.stride())
    return tuple(torch.empty(tensor.shape, device="meta").stride())


def lay_out(path: Path, description: Description, identity: str) -> Layout:
    """Make a file with room for the weights."""
    from torch import serialization

    state: OrderedDict[str, Tensor] = OrderedDict(
        (one[0], _without_bytes(one)) for one in description
    )
    state._metadata = {"": {"version": 1, MARK: identity}}  # type: ignore[attr-defined]
    with getattr(serialization, "skip_data", nullcontext)():
        torch.save(state, path)
    with path.open("rb") as file:
        return _layout_in(file.fileno(), description)


def _without_bytes(one: Described) -> Tensor:
    """A tensor whose memory nobody has touched: it takes up none."""
    _, dtype, shape, strides = one
    storage_class: Any = torch.UntypedStorage
    storage = storage_class(_size(one))
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)


def _size(one: Described) -> int:
    return math.prod(one[2]) * one[1].itemsize


def read_layout(path: Path, identity: str) -> Layout:
    """The layout of a file that is there already, if it has this identity."""
    try:
        state: dict[str, Tensor] = torch.load(path, weights_only=True, mmap=True)
        found = _identity_of(state)
        if found != identity:
            kind = Unusable if found is None else Foreign
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


def _layout_in(descriptor: int, description: Description) -> Layout:
    with os.fdopen(os.dup(descriptor), "rb") as file, zipfile.ZipFile(file) as archive:
        records = [one for one in archive.infolist() if one.filename.split("/")[1] == "data"]
    places = {int(one.filename.rpartition("/")[2]): one for one in records}
    offsets, frame, end = [], [], 0
    for number in range(len(description)):
        record = places[number]
        header = os.pread(descriptor, 30, record.header_offset)
        name_size, extra_size = struct.unpack("<HH", header[26:30])
        start = record.header_offset + 30 + name_size + extra_size
        if start < end or record.file_size != _size(description[number]):
            raise Unusable("its tensors are not where they should be")
        offsets.append(start)
        frame.append((end, os.pread(descriptor, start - end, end)))
        end = start + record.file_size
    rest = os.fstat(descriptor).st_size - end
    frame.append((end, os.pread(descriptor, rest, end)))
    return Layout(description, tuple(offsets), tuple(frame))


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes ``path`` when all went well and is gone when not."""
    _remove_abandoned(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        yield beside
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _remove_abandoned(path: Path) -> None:
    for left in path.parent.glob(f".{path.name}.*{PART}"):
        try:
            if time.time() - left.stat().st_mtime > ABANDONED_S:
                left.unlink()
        except OSError:
            continue


def write_frame(descriptor: int, layout: Layout) -> None:
    """All of a file but the weights."""
    for offset, content in layout.frame:
        _write(descriptor, memoryview(content), offset)


class Stream:
    """Goes through the tensors in blocks: each is compared with the old file and written to the new one."""

    def __init__(self, old: int | None, new: int, block: int) -> None:
        self._old = old
        self._new = new
        self._block = block
        self._buffer = torch.empty(block * WIDEST, dtype=torch.uint8)

    @torch.inference_mode()
    @one_thread()
    def pass_on(self, tensor: Tensor, old_offset: int, offset: int) -> float:
        """Write it, and give the sum of squares of its change (0 without an old file)."""
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
        return math.fsum(one * one for one in torch.cat(norms).tolist()) if norms else 0.0


def _bytes_of(row: Tensor) -> memoryview:
    """The memory of a row on the CPU; valid as long as the row is."""
    size = row.numel() * row.element_size()
    return memoryview((ctypes.c_char * size).from_address(row.data_ptr())).cast("B")


def _write(descriptor: int, content: memoryview, offset: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], offset + done)


def signature(descriptor: int) -> tuple[Any, ...]:
    """Tells whether a file is still the one that was written, untouched."""
    about = os.fstat(descriptor)
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
