"""Archives: append-only files of sealed segments.

A frame is ``magic, header length, payload length, crc32`` (little endian, 32 bits each), a JSON header, and
a zstd payload. The header says which process, kind, segment and thread the payload is of, so frames of
ended workers stand beside those of the process that folded them in. A frame that was cut off by a
crash fails its checksum; readers stop there, and writers go on in the next file.
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

from stepwell.journal import forks
from stepwell.journal.files import open_file

MAGIC = 0x31465753
PREFIX = struct.Struct("<IIII")
ROLL_BYTES = 64 << 20
MAX_HEADER = 16 << 20
MAX_PAYLOAD = 256 << 20
"""A run folder from a stranger is hostile input: no frame of ours is larger, packed or unpacked."""


@dataclass(frozen=True)
class Frame:
    """A sealed segment in its file, payload not yet read."""

    path: Path
    offset: int
    size: int
    header: dict[str, Any]

    @property
    def end(self) -> int:
        """Where the next frame of the file begins."""
        return self.offset + self.size

    @property
    def key(self) -> tuple[str, str, int]:
        """(process, kind, segment number): a frame that stands in two places counts once."""
        return self.header["process"], self.header["kind"], self.header["seq"]

    def payload(self, limit: int = MAX_PAYLOAD) -> bytes:
        """The unpacked bytes; ValueError when they are damaged or more than this, OSError when gone."""
        with forks.held_off():
            import zstandard

        with open(open_file(self.path), "rb") as file:
            packed = os.pread(file.fileno(), self.size, self.offset)
        try:
            # The decompressor allocates what the frame says it needs, whatever limit it is given.
            if zstandard.get_frame_parameters(packed).content_size > limit:
                raise ValueError(f"{self.path} at {self.offset}: too large unpacked")
            return zstandard.ZstdDecompressor().decompress(packed)
        except zstandard.ZstdError as error:
            raise ValueError(f"{self.path} at {self.offset}: {error}") from error


def pack(header: dict[str, Any], payload: bytes) -> bytes:
    """A frame, ready to be appended."""
    with forks.held_off():
        import zstandard

    head = json.dumps(header, separators=(",", ":")).encode()
    packed = zstandard.ZstdCompressor(level=3).compress(payload)
    check = zlib.crc32(packed, zlib.crc32(head))
    return PREFIX.pack(MAGIC, len(head), len(packed), check) + head + packed


class Archive:
    """The archive files of one kind in one folder, to append to."""

    def __init__(self, folder: Path, kind: str, roll_bytes: int = ROLL_BYTES) -> None:
        self.folder = folder
        self.roll_bytes = roll_bytes
        self.kind = kind
        existing = archive_files(folder, kind)
        self._number = int(existing[-1].stem.rpartition("-")[2]) + 1 if existing else 0

    @property
    def path(self) -> Path:
        """The file that the next frame goes to."""
        return self.folder / f"{self.kind}-{self._number:05d}.zst"

    def append(self, frame: bytes) -> None:
        """Append a frame, or raise OSError with nothing (that counts) written."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            done = os.write(fd, frame)
            size = os.fstat(fd).st_size
        except OSError:
            self._number += 1
            raise
        finally:
            os.close(fd)
        if done != len(frame):
            # What stands behind a torn frame could not be found: leave this file.
            self._number += 1
            raise OSError(errno.ENOSPC, "short write", str(self.path))
        if size >= self.roll_bytes:
            self._number += 1


def archive_kind(segment_kind: str) -> str:
    """Which archive a segment goes to: attributes stand beside the spans they belong to."""
    return "metrics" if segment_kind == "metrics" else "spans"


def archive_files(folder: Path, kind: str) -> list[Path]:
    """Archive files of this kind, oldest first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    # Not glob: who reads thousands of folders would spend most of the time on matching names.
    found = [n for n in names if n.startswith(f"{kind}-") and n.endswith(".zst")]
    return [folder / n for n in sorted(found) if n[len(kind) + 1 : -4].isdecimal()]


def read_frames(path: Path, offset: int = 0) -> Iterator[Frame]:
    """The intact frames of one archive file, payloads unread; stops at damage or a torn end.

    ``offset`` is where to begin: at the ``end`` of a frame that was read before.
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
            yield Frame(path, offset + PREFIX.size + head_size, size, header)
            offset += PREFIX.size + head_size + size
