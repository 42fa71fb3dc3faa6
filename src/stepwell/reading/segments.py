"""Segments, live or sealed, as columns; and the time windows of segments.

A window is a half-open interval on the clock of the process. The header of a sealed segment has the times of
its first and last records, so that segments outside of a window need not be unpacked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepwell._core.files import open_file
from stepwell.journal.archive import Block, archive_files, read_blocks
from stepwell.journal.format import (
    COLUMN_BYTES,
    HEADER_BYTES,
    ROW_BYTES,
    SIZES,
    SPAN_SLOTS,
    TIME_MASK,
    is_header,
    parse_file,
)
from stepwell.reading.documents import MAX_TIME, is_count

Words = NDArray[np.uint64]
LIVE = ("live", "full")
MAX_LOOKS = 100
UNPACKED = {**SIZES, "attributes": 4 * SIZES["attributes"]}
"""Limits of the unpacked size of a sealed segment; attributes have an index."""


@dataclass(frozen=True)
class RecordedSegment:
    """One segment of one thread of one process."""

    process: str
    header: dict[str, Any]
    sealed: Block | None = None
    body: bytes = b""

    @property
    def kind(self) -> str:
        """``spans``, ``metrics`` or ``attributes``."""
        return str(self.header["kind"])

    @property
    def seq(self) -> int:
        """The number of the segment in its process."""
        return int(self.header["seq"])

    @property
    def lane(self) -> int:
        """The number of the lane that wrote it."""
        return int(self.header["lane"])

    @property
    def thread(self) -> str:
        """The name of the thread that wrote it."""
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
            # Undo the byte planes of sealing.
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
        """Return the unpacked bytes; b"" if they are damaged, or were removed by the size cap."""
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


def live_segments(folder: Path, process: str) -> list[RecordedSegment]:
    """Return the segments in a folder that are not sealed, with their present content."""
    segments: list[RecordedSegment] = []
    seen: set[str] = set()
    # Spans may continue in a new segment while others are read: look again until there is none.
    for _ in range(MAX_LOOKS):
        fresh = [path for path in _live_files(folder) if path.name not in seen]
        if not fresh:
            break
        for path in fresh:
            seen.add(path.name)
            segment = _read_live(path, process)
            if segment is not None:
                segments.append(segment)
    return segments


def _live_files(folder: Path) -> list[Path]:
    """Return live files, spans first: their attributes and their step were written before them."""
    try:
        files = [path for path in folder.iterdir() if path.suffix[1:] in LIVE]
    except OSError:
        return []
    return sorted(files, key=lambda path: (not path.name.startswith("spans"), path.name))


def sealed_segments(
    folder: Path, blocks_of: Callable[[Path], Iterable[Block]] = read_blocks
) -> list[RecordedSegment]:
    """Return the segments in the archives of a folder, including those of folded workers."""
    return [
        RecordedSegment(block.header["process"], block.header, block)
        for kind in ("spans", "metrics")
        for path in archive_files(folder, kind)
        for block in blocks_of(path)
        if is_header(block.header) and isinstance(block.header.get("process"), str)
    ]


def _read_live(path: Path, process: str) -> RecordedSegment | None:
    """Return a segment whose file may be written, renamed or removed meanwhile; None if it is not valid."""
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
    return RecordedSegment(process, header, None, body.ljust(size, b"\0"))


def _read_rows(fd: int, size: int) -> bytes:
    # Read twice: a row whose last word was there the first time is complete the second time.
    before = np.frombuffer(os.pread(fd, size, HEADER_BYTES).ljust(size, b"\0"), np.uint64)
    last_words = before[ROW_BYTES // 8 - 1 :: ROW_BYTES // 8]
    count = int(np.flatnonzero(last_words).max(initial=-1)) + 1
    return os.pread(fd, count * ROW_BYTES, HEADER_BYTES)


def _read_spans(fd: int) -> bytes:
    # Starts first: the rest of a row is written before its start.
    starts = os.pread(fd, COLUMN_BYTES, HEADER_BYTES + COLUMN_BYTES).ljust(COLUMN_BYTES, b"\0")
    metas = os.pread(fd, COLUMN_BYTES, HEADER_BYTES).ljust(COLUMN_BYTES, b"\0")
    ends = os.pread(fd, COLUMN_BYTES, HEADER_BYTES + 2 * COLUMN_BYTES)
    return metas + starts + ends


Window: TypeAlias = tuple[int, int]

ALWAYS: Window = (0, MAX_TIME + 1)


def extent(header: dict[str, Any]) -> Window | None:
    """Return when the first record of a sealed segment began and the last one ended; None if unknown.

    Segments sealed by early versions have no ``until``, and the times of two spans that need not be the
    earliest and the latest.
    """
    time, until = header.get("time"), header.get("until")
    if not isinstance(time, list) or len(time) != 2:
        return None
    if not all(is_count(n, MAX_TIME) for n in (*time, until)):
        return None
    return time[0], max(time[1], until or 0)


def ends_of(segment: RecordedSegment) -> int:
    """Return when the last span or metric of a segment ended, without unpacking it; 0 if unknown."""
    if segment.sealed is None:
        first, *others = segment.columns
        times = [first] if segment.kind == "metrics" else [others[0], others[1] & TIME_MASK]
        # A damaged row may have any clock.
        return max(int(each.max(initial=0, where=each <= MAX_TIME)) for each in times)
    window = extent(segment.header)
    return 0 if window is None else window[1]


def may_touch(segment: RecordedSegment, window: Window) -> bool:
    """Return whether a segment may have records in the window."""
    times = None if segment.sealed is None else extent(segment.header)
    return times is None or (times[0] < window[1] and times[1] >= window[0])


def spans_touched(segments: list[RecordedSegment], window: Window) -> list[RecordedSegment]:
    """Return the span segments of one lane, given in order, that overlap with the window.

    Spans that are open at the end of a segment continue in the next one. So a segment lasts until the next
    one begins: for every time there is a segment with all spans that were open then.
    """
    touched = []
    times = [None if s.sealed is None else extent(s.header) for s in segments]
    for i, segment in enumerate(segments):
        this, following = times[i], times[i + 1] if i + 1 < len(segments) else None
        if this is None or (i + 1 < len(segments) and following is None):
            touched.append(segment)
            continue
        last = this[1] if following is None else max(this[1], following[0])
        if following is None and segment.header.get("open"):
            last = MAX_TIME
        if this[0] < window[1] and last >= window[0]:
            touched.append(segment)
    return touched
