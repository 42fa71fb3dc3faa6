"""Live segments: preallocated files mapped into memory.

Mapped pages survive the death of the process, so a stored word is kept whatever happens to it.
Space is allocated before mapping: a full disk is an ``OSError`` here, never a SIGBUS in training.
For the same reason a segment is never truncated or opened with "w"; it is cleaned up by unlinking.

A file system that refuses a store all the same does not end training either: see ``bus_errors``.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from pathlib import Path
from typing import Any

from stepwell.journal.bus_errors import bus_errors
from stepwell.journal.errors import report
from stepwell.journal.format import HEADER_BYTES, SIZES, SPAN_SLOTS, pack_header
from stepwell.journal.mapping import map_file

PAUSES = (0.001, 0.002, 0.004, 0.008)


def file_name(kind: str, seq: int, state: str = "live") -> str:
    """Name of a segment's file; ``state`` is "live", or "full" when its writer is done with it."""
    return f"{kind}-{seq:05d}.{state}"


class Segment:
    """One mapped file. ``words`` is its body as 64-bit words; of spans also as three columns."""

    __slots__ = ("address", "ends", "kind", "map", "metas", "path", "seq", "starts", "words")

    def __init__(self, folder: Path, kind: str, seq: int) -> None:
        self.kind = kind
        self.seq = seq
        self.path = folder / file_name(kind, seq)
        self.map = _allocate(self.path, SIZES[kind])
        self.address = bus_errors.guard(self.map)
        self.words = memoryview(self.map)[HEADER_BYTES:].cast("Q")
        # Empty for other kinds: views cost nothing.
        self.metas = self.words[:SPAN_SLOTS]
        self.starts = self.words[SPAN_SLOTS : 2 * SPAN_SLOTS]
        self.ends = self.words[2 * SPAN_SLOTS : 3 * SPAN_SLOTS]

    def attach(self, **fields: Any) -> None:
        """Write the header: from now on readers take the segment into account."""
        header = pack_header({"kind": self.kind, "seq": self.seq, **fields})
        self.map[: len(header)] = header

    @property
    def is_in_memory(self) -> bool:
        """Whether its file system has refused a store: what came after it is not in the file."""
        return self.address in bus_errors.kept

    def unmap(self) -> None:
        """Give the mapping back; the file stays."""
        try:
            self.write_back()
        except OSError as error:
            report("Segment.unmap", error)
        bus_errors.release(self.address)
        # A thread may still hold a view for one more store: then its release unmaps.
        with contextlib.suppress(BufferError):
            for view in (self.metas, self.starts, self.ends, self.words):
                view.release()
            self.map.close()

    def write_back(self) -> None:
        """Bring the file up to date with a segment that is in memory only; its readers look there."""
        if self.is_in_memory and not self.map.closed:
            # A copy is made at once, in the midst of no store.
            content = bytes(self.map)
            with self.path.open("r+b") as file:
                file.write(content)

    def discard(self) -> None:
        """Remove a segment that nothing was recorded in."""
        self.unmap()
        self.path.unlink(missing_ok=True)


def _allocate(path: Path, size: int) -> mmap.mmap:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    try:
        fd = _open(path, flags)
    except FileExistsError:
        # Ours, from an interrupt that came before anybody could take it.
        os.unlink(path)
        fd = _open(path, flags)
    try:
        try:
            _reserve(fd, size)
            return map_file(fd, size)
        except BaseException:
            # ext4 keeps what a failed allocation had grabbed until the file is gone.
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
    finally:
        os.close(fd)


def _open(path: Path, flags: int) -> int:
    """Open a file; where descriptors are used up, wait a moment for those that other threads are closing."""
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
