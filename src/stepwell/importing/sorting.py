"""Sorting more rows than fit into memory: sorted pieces in one scratch file each, merged when read."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PIECE_BYTES = 32 << 20
"""Memory for rows before they go to the scratch folder, roughly."""
ROW_COST = 300
MOST_AT_ONCE = 64
"""Pieces merged at once; more are merged in stages."""
BUFFER = 1 << 17

_HEAD = struct.Struct("<iqqqqiqQI")


class Row(NamedTuple):
    """One record. The order of the fields is the order of sorting: outer spans before inner ones."""

    lane: int
    start: int
    begun: int
    """A number that grows from beginning to beginning, where the file has them in that order; else 0."""
    minus_end: int
    order: int
    """Among rows of the same times: outer ones first."""
    depth: int
    """How deep the file says it is, -1 when it does not."""
    key: int
    """Of a span: what events may call it by. Of an event: the key of its span. 0: none."""
    word: int
    payload: bytes


class Sorter:
    """Takes rows in any order, gives them back sorted, once."""

    def __init__(self, scratch: Path, piece_bytes: int = PIECE_BYTES) -> None:
        self._scratch = scratch
        self._piece_bytes = piece_bytes
        self._rows: list[Row] = []
        self._bytes = 0
        self._levels: list[list[Path]] = []
        self._made = 0
        self.count = 0

    def add(self, row: Row) -> None:
        """Take one row."""
        self._rows.append(row)
        self.count += 1
        self._bytes += ROW_COST + len(row.payload)
        if self._bytes >= self._piece_bytes:
            self._rows.sort()
            self._keep(self._write(self._rows), 0)
            self._rows = []
            self._bytes = 0

    def sorted(self) -> Iterator[Row]:
        """All rows in order."""
        self._rows.sort()
        pieces = [_read(path) for level in self._levels for path in level]
        return heapq.merge(*pieces, self._rows) if pieces else iter(self._rows)

    def _keep(self, piece: Path, level: int) -> None:
        if level == len(self._levels):
            self._levels.append([])
        pieces = self._levels[level]
        pieces.append(piece)
        if len(pieces) >= MOST_AT_ONCE:
            merged = self._write(heapq.merge(*map(_read, pieces)))
            for path in pieces:
                path.unlink()
            pieces.clear()
            self._keep(merged, level + 1)

    def _write(self, rows: Iterable[Row]) -> Path:
        path = self._scratch / f"piece-{self._made}"
        self._made += 1
        pack = _HEAD.pack
        with open(path, "wb", BUFFER) as file:
            for row in rows:
                payload = row[8]
                file.write(pack(*row[:8], len(payload)) + payload)
        return path


def _read(path: Path) -> Iterator[Row]:
    unpack, size = _HEAD.unpack, _HEAD.size
    make = Row._make
    with open(path, "rb", BUFFER) as file:
        read = file.read
        while head := read(size):
            *fields, length = unpack(head)
            yield make((*fields, read(length)))
