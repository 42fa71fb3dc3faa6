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
from stepwell.journal.format import (
    COLUMN_BYTES,
    HEADER_BYTES,
    ROW_BYTES,
    SIZES,
    SPAN_SLOTS,
    parse_header,
)
from stepwell.journal.seal import join_planes

Words = NDArray[np.uint64]
LIVE = ("live", "full")


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
        return str(self.header["thread"])

    @property
    def columns(self) -> list[Words]:
        """Spans: meta, start, end. Metrics: clock, value bits, step word, name word."""
        if self.sealed is None:
            return _live_columns(self.kind, self.body)
        data = self.sealed.payload()
        count = len(data) // (8 * (3 if self.kind == "spans" else 4))
        width = 8 * count
        return [
            np.frombuffer(join_planes(data[i : i + width]), np.uint64)
            for i in range(0, len(data), width)
        ]

    @property
    def texts(self) -> dict[int, str]:
        """Attributes: JSON texts by their offset in 8-byte units."""
        if self.sealed is None:
            return dict(_live_texts(self.body))
        return _sealed_texts(self.sealed.payload())


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
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix[1:] in LIVE:
            segment = _read_live(path, process)
            if segment is not None:
                found.append(segment)
    return found


def sealed_segments(folder: Path) -> list[Segment]:
    """The segments in a folder's archives, those of folded workers included."""
    return [
        Segment(frame.header["process"], frame.header, frame)
        for kind in ("spans", "metrics")
        for path in archive_files(folder, kind)
        for frame in read_frames(path)
    ]


def _read_live(path: Path, process: str) -> Segment | None:
    """Read a file that may be written to, renamed or removed meanwhile."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    try:
        header = parse_header(os.pread(fd, HEADER_BYTES, 0))
        if header is None or header.get("kind") not in SIZES:
            return None
        size = SIZES[header["kind"]] - HEADER_BYTES
        if header["kind"] == "spans":
            body = _read_spans(fd)
        else:
            body = os.pread(fd, size, HEADER_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)
    return Segment(process, header, None, body.ljust(size, b"\0"))


def _read_spans(fd: int) -> bytes:
    # Starts first: whatever stands in a row with a start was written before it.
    starts = os.pread(fd, COLUMN_BYTES, HEADER_BYTES + COLUMN_BYTES).ljust(COLUMN_BYTES, b"\0")
    metas = os.pread(fd, COLUMN_BYTES, HEADER_BYTES).ljust(COLUMN_BYTES, b"\0")
    ends = os.pread(fd, COLUMN_BYTES, HEADER_BYTES + 2 * COLUMN_BYTES)
    return metas + starts + ends
