"""The rows of a metric segment, live or sealed, from where they were last given out."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.journal.archive import Frame
from stepwell.journal.files import open_file
from stepwell.journal.follow_document import ALWAYS
from stepwell.journal.format import (
    CONTEXT_NAME,
    HEADER_BYTES,
    METRIC_BYTES,
    METRIC_ROWS,
    OWNER_SHIFT,
    ROW_BYTES,
    SIZES,
    parse_header,
)
from stepwell.journal.metric_names import MetricNames
from stepwell.journal.seal import join_planes

NAME_BITS = (1 << OWNER_SHIFT) - 1
WORDS = ROW_BYTES // 8


@dataclass(frozen=True, slots=True)
class Position:
    """How far a segment was given out: ``row`` is next.

    ``holes`` are the rows before it that had not been written, as bits: a signal handler may come
    between reserving a row and writing it, and what is no number leaves one empty for good.
    """

    row: int = 0
    holes: int = 0

    def has(self, row: int) -> bool:
        """Whether this row was given out."""
        return row < self.row and not (self.holes and self.holes >> row & 1)

    @property
    def first(self) -> int:
        """The first row that was not."""
        return (self.holes & -self.holes).bit_length() - 1 if self.holes else self.row

    def to_json(self) -> list[Any]:
        """As plain values."""
        return [self.row, f"{self.holes:x}"]

    @classmethod
    def from_json(cls, values: Any) -> Position:
        """What ``to_json`` gave."""
        row, holes = values
        return cls(int(row), int(str(holes), 16))


NOWHERE = Position()
WHOLE = Position(METRIC_ROWS)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric, or with the name ``CONTEXT_NAME`` a context. ``owner`` is the lane it belongs to."""

    time: int
    seq: int
    row: int
    word: int
    value: float
    name: int
    owner: int | None


class Columns:
    """The words of consecutive rows, the first of which has the number ``first``."""

    def __init__(
        self, first: int, clocks: array[int], words: array[int], values: bytes, names: array[int]
    ) -> None:
        self.first = first
        self.clocks = clocks
        self.words = words
        self.values = array("d", values)
        self.names = names

    @classmethod
    def none(cls) -> Columns:
        """Of no row at all."""
        return cls(0, array("Q"), array("Q"), b"", array("Q"))

    @property
    def end(self) -> int:
        """The number behind the last row that was written."""
        count = len(self.names)
        while count and not self.names[count - 1]:
            count -= 1
        return self.first + count

    def row(self, seq: int, row: int) -> Row:
        """One row."""
        at = row - self.first
        name, owner = self.names[at] & NAME_BITS, self.names[at] >> OWNER_SHIFT
        return Row(
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
    """A live segment as it is at one moment."""

    thread: str
    lane: int
    columns: Columns

    def load(self) -> Columns:
        """Its rows, which were read already."""
        return self.columns


def read_live_metrics(path: Path, seq: int, first: int) -> LiveMetrics | None:
    """Rows of a live segment from this one on; None while it is not in use, OSError when it is gone."""
    fd = open_file(path)
    try:
        header = parse_header(os.pread(fd, HEADER_BYTES, 0))
        begin = HEADER_BYTES + ROW_BYTES * first
        data = os.pread(fd, max(0, METRIC_BYTES - begin), begin)
    finally:
        os.close(fd)
    if header is None or header.get("kind") != "metrics" or header.get("seq") != seq:
        return None
    # What stands behind the last word that is not zero is empty: mostly that is a lot.
    used = -(-len(data.rstrip(b"\0")) // ROW_BYTES) * ROW_BYTES
    data = data[:used].ljust(used, b"\0")
    words = array("Q", data)
    values = words[2::WORDS].tobytes()
    columns = Columns(first, words[0::WORDS], words[1::WORDS], values, words[3::WORDS])
    return LiveMetrics(str(header.get("thread")), lane_of(header), columns)


def read_sealed_metrics(frame: Frame) -> Columns:
    """All rows of a sealed segment; ValueError when it is damaged, OSError when it cannot be read."""
    data = frame.payload(SIZES["metrics"])
    if len(data) % ROW_BYTES:
        raise ValueError(f"{frame.path} at {frame.offset}: not a whole number of rows")
    width = len(data) // WORDS
    clocks, words, values, names = (
        join_planes(data[i * width : (i + 1) * width]) for i in range(WORDS)
    )
    return Columns(0, array("Q", clocks), array("Q", words), values, array("Q", names))


def lane_of(header: dict[str, Any]) -> int:
    """The number of the lane that wrote a segment."""
    lane = header.get("lane")
    return lane if isinstance(lane, int) else -1


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows are given out.

    Those up to the horizon, of names that are wanted; ``until`` is where to stop. What is not
    written yet is a hole, unless it is ``final``.
    """

    names: MetricNames
    horizon: int = ALWAYS
    until: Position | None = None
    final: bool = False


class PendingRows:
    """What is to be given out of one segment. Sealed ones are unpacked when their time has come."""

    def __init__(
        self,
        seq: int,
        thread: str,
        begin: Position,
        wanted: Wanted,
        load: Callable[[], Columns],
        first_time: int = 0,
    ) -> None:
        self.seq = seq
        self.thread = thread
        self._begin = begin
        self._wanted = wanted
        self._load: Callable[[], Columns] | None = load
        self._first_time = first_time
        self._rows: list[Row] = []
        self._at = 0
        self._end = begin.row
        self._holes = begin.holes

    @property
    def due(self) -> int | None:
        """The time of the next row, or one before it; None: there is none."""
        if self._load is not None:
            return self._first_time
        return self._rows[self._at].time if self._at < len(self._rows) else None

    def take(self) -> Row | None:
        """The next row. None: it was not known before whether there is one; ``due`` says so now."""
        if self._load is not None:
            self._choose(self._load())
            self._load = None
            return None
        self._at += 1
        return self._rows[self._at - 1]

    def _choose(self, columns: Columns) -> None:
        wanted, begin = self._wanted, self._begin
        holes = 0
        self._end = max(begin.row, columns.end)
        for row in range(columns.first, columns.end):
            if begin.has(row):
                continue
            name = columns.names[row - columns.first] & NAME_BITS
            known = wanted.names.wants(name) if name and name != CONTEXT_NAME else bool(name)
            if name and columns.clocks[row - columns.first] > wanted.horizon:
                if row >= begin.row:
                    self._end = row
                    break
                known = None
            if wanted.until is not None and not wanted.until.has(row):
                continue
            if known is None or not name:
                holes |= 1 << row
            elif known:
                self._rows.append(columns.row(self.seq, row))
        self._holes = 0 if wanted.final else holes

    @property
    def position(self) -> Position:
        """How far it was given out."""
        if self._load is not None:
            return self._begin
        left = [row.row for row in self._rows[self._at :]]
        end = min((row for row in left if row >= self._begin.row), default=self._end)
        holes = self._holes & ((1 << end) - 1)
        for row in left:
            if row < self._begin.row:
                holes |= 1 << row
        if self._wanted.final and not left:
            return WHOLE
        return Position(end, holes)
