"""Archives: append-only files of sealed segments.

A block is ``magic, header length, payload length, crc32`` (little endian, 32 bits each), a JSON header and a
zstd payload. The header names the process, kind, segment and thread of the payload, so one file can hold
blocks of ended workers too. A block that a crash cut off fails its checksum: readers stop there, and writers
continue in the next file.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell._core import threads
from stepwell._core.files import open_file

MAGIC = 0x31465753
PREFIX = struct.Struct("<IIII")
ROLL_BYTES = 64 << 20
MAX_HEADER = 16 << 20
MAX_PAYLOAD = 256 << 20
"""Limit of a payload, packed or unpacked: run folders are untrusted input."""


@dataclass(frozen=True)
class Block:
    """A sealed segment in an archive, without its payload."""

    path: Path
    offset: int
    size: int
    header: dict[str, Any]

    @property
    def end(self) -> int:
        """The offset of the next block in the file."""
        return self.offset + self.size

    @property
    def key(self) -> tuple[str, str, int]:
        """(process, kind, segment number): blocks with the same key are copies."""
        return self.header["process"], self.header["kind"], self.header["seq"]

    def payload(self, limit: int = MAX_PAYLOAD) -> bytes:
        """Return the unpacked bytes.

        Raise ValueError if they are damaged or exceed ``limit``, OSError if the file was removed.
        """
        with threads.forks_blocked():
            import zstandard

        with open(open_file(self.path), "rb") as file:
            packed = os.pread(file.fileno(), self.size, self.offset)
        try:
            # The decompressor allocates the size that the data claims, whatever limit it is given.
            if zstandard.get_frame_parameters(packed).content_size > limit:
                raise ValueError(f"{self.path} at {self.offset}: too large when unpacked")
            return zstandard.ZstdDecompressor().decompress(packed)
        except zstandard.ZstdError as error:
            raise ValueError(f"{self.path} at {self.offset}: {error}") from error


def pack(header: dict[str, Any], payload: bytes) -> bytes:
    """Return the bytes of a block."""
    with threads.forks_blocked():
        import zstandard

    head = json.dumps(header, separators=(",", ":")).encode()
    packed = zstandard.ZstdCompressor(level=3).compress(payload)
    check = zlib.crc32(packed, zlib.crc32(head))
    return PREFIX.pack(MAGIC, len(head), len(packed), check) + head + packed


class Archive:
    """Appends to the archive files of one kind in one folder."""

    def __init__(self, folder: Path, kind: str, roll_bytes: int = ROLL_BYTES) -> None:
        self.folder = folder
        self.roll_bytes = roll_bytes
        self.kind = kind
        existing = archive_files(folder, kind)
        self._number = int(existing[-1].stem.rpartition("-")[2]) + 1 if existing else 0

    @property
    def path(self) -> Path:
        """The file of the next block."""
        return self.folder / f"{self.kind}-{self._number:05d}.zst"

    def append(self, block: bytes) -> None:
        """Append a block. Raise OSError if it could not be written completely; readers ignore a part."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            done = os.write(fd, block)
            size = os.fstat(fd).st_size
        except OSError:
            self._number += 1
            raise
        finally:
            os.close(fd)
        if done != len(block):
            # Readers stop at a torn block: continue in the next file.
            self._number += 1
            raise OSError(errno.ENOSPC, "short write", str(self.path))
        if size >= self.roll_bytes:
            self._number += 1


def archive_kind(segment_kind: str) -> str:
    """Return the kind of archive of a segment: attributes are stored with their spans."""
    return "metrics" if segment_kind == "metrics" else "spans"


def archive_files(folder: Path, kind: str) -> list[Path]:
    """Return the archive files of this kind, oldest first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    # Not glob: with thousands of folders it takes most of the time.
    matches = [n for n in names if n.startswith(f"{kind}-") and n.endswith(".zst")]
    return [folder / n for n in sorted(matches) if n[len(kind) + 1 : -4].isdecimal()]


def read_blocks(path: Path, offset: int = 0) -> Iterator[Block]:
    """Yield the intact blocks of an archive file without their payloads; stop at damage or a torn end.

    ``offset`` is the start, or the ``end`` of a block that was read before.
    """
    try:
        file = open(open_file(path), "rb")
    except OSError:
        return
    with file:
        fd = file.fileno()
        while True:
            prefix = os.pread(fd, PREFIX.size, offset)
            if len(prefix) < PREFIX.size:
                return
            magic, head_size, size, check = PREFIX.unpack(prefix)
            if magic != MAGIC or head_size > MAX_HEADER or size > MAX_PAYLOAD:
                return
            body = os.pread(fd, head_size + size, offset + PREFIX.size)
            if len(body) < head_size + size or zlib.crc32(body) != check:
                return
            try:
                header = json.loads(body[:head_size])
            except (ValueError, RecursionError):
                return
            yield Block(path, offset + PREFIX.size + head_size, size, header)
            offset += PREFIX.size + head_size + size
