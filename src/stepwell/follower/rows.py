"""Rows of live and sealed segments, decoded without numpy."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell._core.files import open_file
from stepwell.journal.archive import Block
from stepwell.journal.format import (
    ATTRIBUTE_BYTES,
    COLUMN_BYTES,
    HEADER_BYTES,
    METRIC_BYTES,
    NAME_SHIFT,
    OWNER_SHIFT,
    ROW_BYTES,
    SIZES,
    SPAN_SLOTS,
    parse_header,
)
from stepwell.journal.seal import join_planes

META, START, END = 0, 1, 2
NAME_BYTE = NAME_SHIFT // 8
FIRST_LOOK = 512
"""Slots of the first read: usually there are few new rows, or none."""

SpanRow = tuple[int, int, int]
"""(end, start, meta)"""


class LiveRows:
    """New rows of a live segment, and some older ones, at one moment.

    Ends are read before starts, and starts before metas: the reverse of the order in which they are written.
    """

    def __init__(self, fd: int, first: int, slots: Iterable[int] = ()) -> None:
        self.first = first
        self._some = {slot: _read_row(fd, slot) for slot in slots}
        step = min(first + FIRST_LOOK, SPAN_SLOTS)
        ends, starts = _column(fd, END, first, step), _column(fd, START, first, step)
        if any(starts[-8:]):
            ends += _column(fd, END, step, SPAN_SLOTS)
            starts += _column(fd, START, step, SPAN_SLOTS)
        count = -(-len(starts.rstrip(b"\0")) // 8)
        self.end = first + count
        self._metas = _column(fd, META, first, self.end)
        self._columns = [array("Q", data[: 8 * count]) for data in (ends, starts, self._metas)]

    def low_bytes(self, slot: int) -> bytes:
        """Return the lowest byte of each name id from this slot on."""
        return self._metas[8 * (slot - self.first) + NAME_BYTE :: 8]

    def row(self, slot: int) -> SpanRow | None:
        """Return one of the rows that were read, else None."""
        if self.first <= slot < self.end:
            ends, starts, metas = self._columns
            at = slot - self.first
            return ends[at], starts[at], metas[at]
        return self._some.get(slot)

    @property
    def latest(self) -> int:
        """The latest start of these rows."""
        return max(self._columns[1], default=0)


class SealedRows:
    """All rows of a sealed segment, kept in byte planes."""

    first = 0

    def __init__(self, data: bytes) -> None:
        whole = len(data) % 24 == 0 and len(data) <= 3 * COLUMN_BYTES
        self._data = data
        self.end = len(data) // 24 if whole else 0

    def low_bytes(self, slot: int) -> bytes:
        """Return the lowest byte of each name id from this slot on."""
        return self._data[NAME_BYTE * self.end + slot : (NAME_BYTE + 1) * self.end]

    def row(self, slot: int) -> SpanRow | None:
        """Return one row; None if there is no such slot."""
        if not 0 <= slot < self.end:
            return None
        return self._word(END, slot), self._word(START, slot), self._word(META, slot)

    def _word(self, column: int, slot: int) -> int:
        begin = 8 * column * self.end + slot
        return int.from_bytes(self._data[begin : begin + 7 * self.end + 1 : self.end], "little")


class SealedTexts:
    """The attribute texts of a sealed segment."""

    def __init__(self, data: bytes) -> None:
        head, _, rest = data.partition(b"\n")
        try:
            count = int(head.strip(b"[]"))
        except ValueError:
            count = 0
        if not 0 < count <= len(rest) // 8:
            count = 0
        self._offsets = array("I", rest[: 4 * count])
        self._numbers = array("I", rest[4 * count : 8 * count])
        self._texts = rest[8 * count :].split(b"\n")

    def text(self, offset: int) -> bytes:
        """Return the text at this offset; b"" if there is none."""
        at = bisect_left(self._offsets, offset)
        if at < len(self._offsets) and self._offsets[at] == offset:
            number = self._numbers[at]
            return self._texts[number] if number < len(self._texts) else b""
        return b""


def read_live_rows(path: Path, first: int, slots: Iterable[int] = ()) -> LiveRows:
    """Return new rows of a live segment and these older ones. Raise OSError if the file was removed."""
    fd = open_file(path)
    try:
        return LiveRows(fd, first, slots)
    finally:
        os.close(fd)


def read_live_row(path: Path, slot: int) -> SpanRow:
    """Return one row of a live segment. Raise OSError if the file was removed."""
    fd = open_file(path)
    try:
        return _read_row(fd, slot)
    finally:
        os.close(fd)


def read_live_text(path: Path, offset: int) -> bytes:
    """Return the attribute text at an offset of a live segment. Raise OSError if the file was removed."""
    fd = open_file(path)
    try:
        text = b""
        begin = offset << 3
        size = 512
        while begin + len(text) < ATTRIBUTE_BYTES:
            piece = os.pread(fd, size, begin + len(text))
            end = piece.find(b"\0")
            if end >= 0 or not piece:
                return text + piece[: max(end, 0)]
            text += piece
            size *= 8
        return text
    finally:
        os.close(fd)


def _read_row(fd: int, slot: int) -> SpanRow:
    end, start, meta = (_column(fd, column, slot, slot + 1) for column in (END, START, META))
    return (
        int.from_bytes(end, "little"),
        int.from_bytes(start, "little"),
        int.from_bytes(meta, "little"),
    )


def _column(fd: int, column: int, begin: int, end: int) -> bytes:
    size = 8 * (end - begin)
    data = os.pread(fd, size, HEADER_BYTES + column * COLUMN_BYTES + 8 * begin) if size else b""
    return data.ljust(size, b"\0")


NAME_BITS = (1 << OWNER_SHIFT) - 1


WORDS = ROW_BYTES // 8


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric, or with the name ``CONTEXT_NAME`` a context. ``owner`` is its lane, if not the writer's."""

    time: int
    seq: int
    row: int
    word: int
    value: float
    name: int
    owner: int | None


class MetricColumns:
    """The columns of consecutive metric rows, from row number ``first`` on."""

    def __init__(
        self, first: int, clocks: array[int], words: array[int], values: bytes, names: array[int]
    ) -> None:
        self.first = first
        self.clocks = clocks
        self.words = words
        self.values = array("d", values)
        self.names = names

    @classmethod
    def none(cls) -> MetricColumns:
        return cls(0, array("Q"), array("Q"), b"", array("Q"))

    @property
    def end(self) -> int:
        """One more than the number of the last written row."""
        count = len(self.names)
        while count and not self.names[count - 1]:
            count -= 1
        return self.first + count

    def row(self, seq: int, row: int) -> MetricRow:
        at = row - self.first
        name, owner = self.names[at] & NAME_BITS, self.names[at] >> OWNER_SHIFT
        return MetricRow(
            self.clocks[at],
            seq,
            row,
            self.words[at],
            self.values[at],
            name,
            owner - 1 if owner else None,
        )


@dataclass(frozen=True, slots=True)
class LiveMetrics:
    """A live metric segment at one moment."""

    thread: str
    lane: int
    columns: MetricColumns

    def load(self) -> MetricColumns:
        return self.columns


def read_live_metrics(path: Path, seq: int, first: int) -> LiveMetrics | None:
    """Return the rows of a live segment from ``first`` on; None while it is not in use.

    Raise OSError if the file was removed.
    """
    fd = open_file(path)
    try:
        header = parse_header(os.pread(fd, HEADER_BYTES, 0))
        begin = HEADER_BYTES + ROW_BYTES * first
        data = os.pread(fd, max(0, METRIC_BYTES - begin), begin)
    finally:
        os.close(fd)
    if header is None or header.get("kind") != "metrics" or header.get("seq") != seq:
        return None
    # Most of a segment is empty: cut after the last word that is not zero.
    used = -(-len(data.rstrip(b"\0")) // ROW_BYTES) * ROW_BYTES
    data = data[:used].ljust(used, b"\0")
    words = array("Q", data)
    values = words[2::WORDS].tobytes()
    columns = MetricColumns(first, words[0::WORDS], words[1::WORDS], values, words[3::WORDS])
    return LiveMetrics(str(header.get("thread")), lane_of(header), columns)


def read_sealed_metrics(block: Block) -> MetricColumns:
    """Return all rows of a sealed segment. Raise ValueError if it is damaged, OSError if unreadable."""
    data = block.payload(SIZES["metrics"])
    if len(data) % ROW_BYTES:
        raise ValueError(f"{block.path} at {block.offset}: not a whole number of rows")
    width = len(data) // WORDS
    clocks, words, values, names = (
        join_planes(data[i * width : (i + 1) * width]) for i in range(WORDS)
    )
    return MetricColumns(0, array("Q", clocks), array("Q", words), values, array("Q", names))


def lane_of(header: dict[str, Any]) -> int:
    """Return the number of the lane that wrote a segment."""
    lane = header.get("lane")
    return lane if isinstance(lane, int) else -1
