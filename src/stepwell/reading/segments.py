"""Segments, live or sealed, as columns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.journal.archive import Frame, archive_files, read_frames
from stepwell.journal.files import open_file
from stepwell.journal.format import (
    COLUMN_BYTES,
    HEADER_BYTES,
    ROW_BYTES,
    SIZES,
    SPAN_SLOTS,
    is_header,
    parse_file,
)

Words = NDArray[np.uint64]
LIVE = ("live", "full")
MAX_LOOKS = 100
UNPACKED = {**SIZES, "attributes": 4 * SIZES["attributes"]}
"""The most that a sealed segment can hold; attributes carry an index."""


@dataclass(frozen=True)
class Segment:
    """One segment of one thread of one process."""

    process: str
    header: dict[str, Any]
    sealed: Frame | None = None
    body: bytes = b""

    @property
    def kind(self) -> str:
        """spans, metrics or attributes."""
        return str(self.header["kind"])

    @property
    def seq(self) -> int:
        """Its number in its process."""
        return int(self.header["seq"])

    @property
    def lane(self) -> int:
        """Number of the lane that wrote it."""
        return int(self.header["lane"])

    @property
    def thread(self) -> str:
        """Name of the thread that wrote it."""
        return str(self.header.get("thread"))

    @property
    def columns(self) -> list[Words]:
        """Spans: meta, start, end. Metrics: clock, step word, value bits, name word."""
        if self.sealed is None:
            return _live_columns(self.kind, self.body)
        data = self._unpacked()
        number = 3 if self.kind == "spans" else 4
        width = len(data) // number
        if len(data) % (8 * number):
            width = 0
        planes = np.frombuffer(data, np.uint8, number * width).reshape(number, 8, width // 8)
        words = np.empty((number, width // 8, 8), np.uint8)
        for place in range(8):
            # The bytes of each word side by side again.
            words[:, :, place] = planes[:, place]
        return list(words.reshape(number, width).view(np.uint64))

    @property
    def texts(self) -> dict[int, str]:
        """Attributes: JSON texts by their offset in 8-byte units."""
        if self.sealed is None:
            return dict(_live_texts(self.body))
        try:
            return _sealed_texts(self._unpacked())
        except (ValueError, IndexError):
            return {}

    def _unpacked(self) -> bytes:
        """The sealed bytes; none when they are damaged, or were removed to keep to a size cap."""
        assert self.sealed is not None
        try:
            return self.sealed.payload(UNPACKED[self.kind])
        except (OSError, ValueError):
            return b""


def _live_columns(kind: str, body: bytes) -> list[Words]:
    if kind == "spans":
        data = np.frombuffer(body, np.uint64)
        count = int(np.flatnonzero(data[SPAN_SLOTS : 2 * SPAN_SLOTS]).max(initial=-1)) + 1
        return [data[i * SPAN_SLOTS : i * SPAN_SLOTS + count] for i in range(3)]
    rows = np.frombuffer(body, np.uint64).reshape(-1, ROW_BYTES // 8)
    rows = rows[rows[:, 3] != 0]
    return [rows[:, i] for i in range(4)]


def _live_texts(body: bytes) -> Iterator[tuple[int, str]]:
    at = 0
    while at < len(body) and body[at]:
        end = body.find(b"\0", at)
        text = body[at : end if end >= 0 else len(body)]
        yield (at + HEADER_BYTES) >> 3, text.decode("utf-8", "replace")
        at = (at + len(text) + 8) & -8


def _sealed_texts(data: bytes) -> dict[int, str]:
    head, _, rest = data.partition(b"\n")
    count = int(head.strip(b"[]"))
    offsets = np.frombuffer(rest, np.uint32, count)
    numbers = np.frombuffer(rest, np.uint32, count, 4 * count)
    texts = rest[8 * count :].decode("utf-8", "replace").split("\n")
    return {int(o): texts[int(n)] for o, n in zip(offsets, numbers, strict=True)}


def live_segments(folder: Path, process: str) -> list[Segment]:
    """The segments in a folder that have not been sealed, as they are at this moment."""
    found: list[Segment] = []
    seen: set[str] = set()
    # What goes on in a new segment while this one is read must not be missed: look again.
    for _ in range(MAX_LOOKS):
        fresh = [path for path in _live_files(folder) if path.name not in seen]
        if not fresh:
            break
        for path in fresh:
            seen.add(path.name)
            segment = _read_live(path, process)
            if segment is not None:
                found.append(segment)
    return found


def _live_files(folder: Path) -> list[Path]:
    """Spans first: their attributes, and the step they belong to, were written before them."""
    try:
        files = [path for path in folder.iterdir() if path.suffix[1:] in LIVE]
    except OSError:
        return []
    return sorted(files, key=lambda path: (not path.name.startswith("spans"), path.name))


def sealed_segments(folder: Path) -> list[Segment]:
    """The segments in a folder's archives, those of folded workers included."""
    return [
        Segment(frame.header["process"], frame.header, frame)
        for kind in ("spans", "metrics")
        for path in archive_files(folder, kind)
        for frame in read_frames(path)
        if is_header(frame.header) and isinstance(frame.header.get("process"), str)
    ]


def _read_live(path: Path, process: str) -> Segment | None:
    """Read a file that may be written to, renamed or removed meanwhile."""
    try:
        fd = open_file(path)
    except OSError:
        return None
    try:
        header = parse_file(path.name, os.pread(fd, HEADER_BYTES, 0))
        if header is None:
            return None
        size = SIZES[header["kind"]] - HEADER_BYTES
        if header["kind"] == "spans":
            body = _read_spans(fd)
        elif header["kind"] == "metrics":
            body = _read_rows(fd, size)
        else:
            body = os.pread(fd, size, HEADER_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)
    return Segment(process, header, None, body.ljust(size, b"\0"))


def _read_rows(fd: int, size: int) -> bytes:
    # Twice: a row that had its last word the first time is complete the second time.
    before = np.frombuffer(os.pread(fd, size, HEADER_BYTES).ljust(size, b"\0"), np.uint64)
    last_words = before[ROW_BYTES // 8 - 1 :: ROW_BYTES // 8]
    count = int(np.flatnonzero(last_words).max(initial=-1)) + 1
    return os.pread(fd, count * ROW_BYTES, HEADER_BYTES)


def _read_spans(fd: int) -> bytes:
    # Starts first: whatever stands in a row with a start was written before it.
    starts = os.pread(fd, COLUMN_BYTES, HEADER_BYTES + COLUMN_BYTES).ljust(COLUMN_BYTES, b"\0")
    metas = os.pread(fd, COLUMN_BYTES, HEADER_BYTES).ljust(COLUMN_BYTES, b"\0")
    ends = os.pread(fd, COLUMN_BYTES, HEADER_BYTES + 2 * COLUMN_BYTES)
    return metas + starts + ends
