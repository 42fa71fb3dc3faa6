"""Live segments: preallocated files mapped into memory.

Mapped pages survive the death of the process, so a stored word is never lost. Space is allocated before
mapping: a full disk raises ``OSError`` here, never SIGBUS in training. For the same reason a segment is never
truncated or opened with "w"; it is removed by unlinking.

If the file system refuses a store nevertheless, training continues: see ``mapping``.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from array import array
from pathlib import Path
from typing import Any

from stepwell._core.errors import report
from stepwell.journal.format import (
    COLUMN_BYTES,
    HEADER_BYTES,
    ROW_BYTES,
    SIZES,
    SPAN_SLOTS,
    pack_header,
)
from stepwell.journal.mapping import bus_errors, map_file

PAUSES = (0.001, 0.002, 0.004, 0.008)


def file_name(kind: str, seq: int, state: str = "live") -> str:
    """Return the file name of a segment; ``state`` is "live", or "full" after its last write."""
    return f"{kind}-{seq:05d}.{state}"


class Segment:
    """One mapped file. ``words`` is its body; ``metas``, ``starts`` and ``ends`` are the columns of spans."""

    __slots__ = ("address", "ends", "kind", "map", "metas", "path", "seq", "starts", "words")

    def __init__(self, folder: Path, kind: str, seq: int) -> None:
        self.kind = kind
        self.seq = seq
        self.path = folder / file_name(kind, seq)
        self.map = _allocate(self.path, SIZES[kind])
        self.address = bus_errors.guard(self.map)
        self.words = memoryview(self.map)[HEADER_BYTES:].cast("Q")
        # Unused for other kinds: views cost nothing.
        self.metas = self.words[:SPAN_SLOTS]
        self.starts = self.words[SPAN_SLOTS : 2 * SPAN_SLOTS]
        self.ends = self.words[2 * SPAN_SLOTS : 3 * SPAN_SLOTS]

    def attach(self, **fields: Any) -> None:
        """Write the header. From now on readers use the segment."""
        header = pack_header({"kind": self.kind, "seq": self.seq, **fields})
        self.map[: len(header)] = header

    @property
    def is_in_memory(self) -> bool:
        """Whether its file system has refused a store: later records are not in the file."""
        return self.address in bus_errors.kept

    def unmap(self) -> None:
        """Unmap the file, which stays."""
        try:
            self.write_back()
        except OSError as error:
            report("Segment.unmap", error)
        bus_errors.release(self.address)
        # A thread may still hold a view for one more store: then releasing that view unmaps.
        with contextlib.suppress(BufferError):
            for view in (self.metas, self.starts, self.ends, self.words):
                view.release()
            self.map.close()

    def write_back(self) -> None:
        """Update the file of a segment that is in memory only, for readers."""
        if self.is_in_memory and not self.map.closed:
            # One copy, so that no store happens in between.
            content = bytes(self.map)
            with self.path.open("r+b") as file:
                file.write(content)

    def count_unwritten(self) -> int:
        """Return the number of records that are in memory but not in the file."""
        try:
            content = self.path.read_bytes()
        except OSError:
            content = b""
        return max(0, _count(self.kind, bytes(self.map)) - _count(self.kind, content))

    def discard(self) -> None:
        """Unmap and remove a segment without records."""
        self.unmap()
        self.path.unlink(missing_ok=True)


def _count(kind: str, content: bytes) -> int:
    """Return the number of spans, metric rows or attribute sets in the content of a segment."""
    body = content[HEADER_BYTES:]
    if kind == "spans":
        starts = array("Q", body[COLUMN_BYTES : 2 * COLUMN_BYTES])
        return len(starts) - starts.count(0)
    if kind == "metrics":
        return -(-len(body.rstrip(b"\0")) // ROW_BYTES)
    return sum(map(bool, body.split(b"\0")))


def _allocate(path: Path, size: int) -> mmap.mmap:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    try:
        fd = _open(path, flags)
    except FileExistsError:
        # Left by an interrupt before this process could use it.
        os.unlink(path)
        fd = _open(path, flags)
    try:
        try:
            _reserve(fd, size)
            return map_file(fd, size)
        except BaseException:
            # ext4 keeps the space of a failed allocation until the file is removed.
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
    finally:
        os.close(fd)


def _open(path: Path, flags: int) -> int:
    """Open a file. Without free descriptors, wait a moment for other threads to close theirs."""
    for pause in PAUSES:
        try:
            return os.open(path, flags, 0o644)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        time.sleep(pause)
    return os.open(path, flags, 0o644)


def _reserve(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    block = bytes(1 << 16)
    while size > 0:
        size -= os.write(fd, block[:size])
