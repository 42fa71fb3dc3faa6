"""Rows of a span segment without numpy, live or sealed: a few of them, or where the wanted ones are."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

from stepwell.journal.files import open_file
from stepwell.journal.format import (
    ATTRIBUTE_BYTES,
    COLUMN_BYTES,
    HEADER_BYTES,
    NAME_SHIFT,
    SPAN_SLOTS,
)

META, START, END = 0, 1, 2
NAME_BYTE = NAME_SHIFT // 8
FIRST_LOOK = 512
"""So many slots are read at first: mostly nothing is new, or little."""

Row = tuple[int, int, int]
"""(end, start, meta)"""


class LiveRows:
    """New rows of a live segment, and some older ones, as they are at one moment.

    Ends are read first, then starts, then metas: what stands in one was written before the other.
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
        """The lowest byte of each name id from this slot on."""
        return self._metas[8 * (slot - self.first) + NAME_BYTE :: 8]

    def row(self, slot: int) -> Row | None:
        """One of the rows that were read."""
        if self.first <= slot < self.end:
            ends, starts, metas = self._columns
            at = slot - self.first
            return ends[at], starts[at], metas[at]
        return self._some.get(slot)

    @property
    def latest(self) -> int:
        """The latest start among them."""
        return max(self._columns[1], default=0)


class SealedRows:
    """All rows of a sealed segment, in the byte planes that it was packed in."""

    first = 0

    def __init__(self, data: bytes) -> None:
        whole = len(data) % 24 == 0 and len(data) <= 3 * COLUMN_BYTES
        self._data = data
        self.end = len(data) // 24 if whole else 0

    def low_bytes(self, slot: int) -> bytes:
        """The lowest byte of each name id from this slot on."""
        return self._data[NAME_BYTE * self.end + slot : (NAME_BYTE + 1) * self.end]

    def row(self, slot: int) -> Row | None:
        """One row, None when there is no such slot."""
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
        """The text at this offset, b"" when there is none."""
        at = bisect_left(self._offsets, offset)
        if at < len(self._offsets) and self._offsets[at] == offset:
            number = self._numbers[at]
            return self._texts[number] if number < len(self._texts) else b""
        return b""


def read_live_rows(path: Path, first: int, slots: Iterable[int] = ()) -> LiveRows:
    """New rows of a live segment, and these older ones; OSError when it is gone."""
    fd = open_file(path)
    try:
        return LiveRows(fd, first, slots)
    finally:
        os.close(fd)


def read_live_row(path: Path, slot: int) -> Row:
    """One row of a live segment; OSError when it is gone."""
    fd = open_file(path)
    try:
        return _read_row(fd, slot)
    finally:
        os.close(fd)


def read_live_text(path: Path, offset: int) -> bytes:
    """The attribute text at this offset of a live segment; OSError when it is gone."""
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


def _read_row(fd: int, slot: int) -> Row:
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
