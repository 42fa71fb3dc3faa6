"""The metric segments of a process, live or sealed, and how far each was returned."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stepwell.follower.document import ALWAYS, MAX_TIME
from stepwell.follower.names import MetricNameFilter
from stepwell.follower.rows import (
    NAME_BITS,
    LiveMetrics,
    MetricColumns,
    MetricRow,
    lane_of,
    read_live_metrics,
    read_sealed_metrics,
)
from stepwell.follower.span_segments import MAX_SEQ, numbered_files
from stepwell.journal.archive import Block, read_blocks
from stepwell.journal.format import (
    CONTEXT_NAME,
    METRIC_ROWS,
)

_LIVE = re.compile(r"metrics-(\d+)\.(?:live|full)")
_ARCHIVE = re.compile(r"metrics-(\d+)\.zst")

Place = tuple[int, int]
"""(number of an archive, offset in it)"""
START: Place = (-1, 0)


@dataclass(frozen=True, slots=True)
class SealedMetrics:
    """A sealed segment; ``place`` is the start of its block, ``first`` the time of its first row."""

    seq: int
    thread: str
    first: int
    place: Place
    block: Block


class FollowedMetrics:
    """Finds the metric segments of a process and returns their rows.

    Attributes:
        threads: names of threads by the numbers of their lanes.
        lost: the number of segments or archives removed (size cap) or damaged before they were read.
        missed: whether a file could not be read at the moment.
    """

    def __init__(self, folder: Path, names: MetricNameFilter, cursor: dict[str, Any]) -> None:
        self.folder = folder
        self.threads: dict[int, str] = {}
        self.lost = 0
        self.missed = False
        self._names = names
        number, offset = cursor.get("archive") or START
        self._done_before: Place = (int(number), int(offset))
        rows = cursor.get("rows") or {}
        self._positions = {int(seq): Position.from_json(at) for seq, at in rows.items()}
        self._done: set[int] = set()
        self._scanned: Place = START
        self._sealed: dict[int, SealedMetrics] = {}
        self._live: dict[int, LiveMetrics] = {}
        self._unpacked: dict[int, PendingRows] = {}

    def to_json(self) -> dict[str, Any]:
        """Return the position as JSON types. Everything before the place ``archive`` is done."""
        left = [s.place for s in self._sealed.values() if not self._is_done(s.seq)]
        first = min(left, default=self._scanned)
        kept = {seq: at for seq, at in self._positions.items() if not self._is_behind(seq, first)}
        return {
            "archive": list(first),
            "rows": {str(seq): at.to_json() for seq, at in sorted(kept.items())},
        }

    def _is_behind(self, seq: int, place: Place) -> bool:
        sealed = self._sealed.get(seq)
        return seq in self._done or (sealed is not None and sealed.place < place)

    def _is_done(self, seq: int) -> bool:
        return self._positions.get(seq) == WHOLE

    # Finding

    def look(self, live_folder: Path) -> None:
        """Find the present segments. Names must be read after this."""
        self.missed = False
        files = numbered_files(live_folder, _LIVE)
        self._look_at_archives()
        self._live = {}
        gone = []
        for seq in sorted(files.keys() - self._sealed.keys() - self._done):
            try:
                first = self._positions.get(seq, NOWHERE).first
                live = read_live_metrics(files[seq], seq, first)
            except OSError:
                gone.append(seq)
                continue
            if live is not None:
                self._live[seq] = live
                self.threads[live.lane] = live.thread
        if gone:
            # A segment is in an archive before its file is removed.
            self._look_at_archives()
            self.missed = not self._sealed.keys() >= set(gone)

    def _look_at_archives(self) -> None:
        files = numbered_files(self.folder, _ARCHIVE)
        for number in sorted(files):
            file, offset = self._scanned
            if number < file:
                continue
            if number > file:
                if file >= 0 or self._done_before == START:
                    # The size cap removes the oldest: those in between were never seen.
                    self.lost += number - file - 1
                offset = 0
            self._scan(number, files[number], offset)

    def _scan(self, number: int, path: Path, offset: int) -> None:
        self._scanned = number, offset
        try:
            if path.stat().st_size <= offset:
                return
        except OSError:
            return
        for block in read_blocks(path, offset):
            self._add(block, self._scanned)
            self._scanned = number, block.end

    def _add(self, block: Block, place: Place) -> None:
        header = block.header
        if not isinstance(header, dict) or header.get("process") != self.folder.name:
            return
        seq = header.get("seq")
        if header.get("kind") != "metrics" or type(seq) is not int or not 0 <= seq <= MAX_SEQ:
            return
        thread = str(header.get("thread"))
        self.threads[lane_of(header)] = thread
        if place < self._done_before:
            self._done.add(seq)
        elif seq not in self._done and seq not in self._sealed:
            place_only = Block(block.path, block.offset, block.size, {})
            self._sealed[seq] = SealedMetrics(seq, thread, _first_time(header), place, place_only)
            self._live.pop(seq, None)

    # Rows

    def pending(self, horizon: int, until: FollowedMetrics | None = None) -> Iterator[PendingRows]:
        """Yield the rows to return from each segment: up to the horizon, or up to ``until``."""
        for seq, sealed in self._sealed.items():
            if self._is_done(seq):
                continue
            rows = self._unpacked.get(seq)
            if rows is None:
                load = partial(self._unpack, sealed)
                wanted = RowSelection(self._names, until=self._bound(seq, until), final=True)
                begin = self._positions.get(seq, NOWHERE)
                rows = PendingRows(seq, sealed.thread, begin, wanted, load, sealed.first)
                self._unpacked[seq] = rows
            yield rows
        for seq, live in self._live.items():
            begin = self._positions.get(seq, NOWHERE)
            wanted = RowSelection(self._names, horizon, self._bound(seq, until), final=False)
            yield PendingRows(seq, live.thread, begin, wanted, live.load)

    def _bound(self, seq: int, until: FollowedMetrics | None) -> Position | None:
        if until is None:
            return None
        sealed = self._sealed.get(seq)
        if sealed is not None and sealed.place < until._done_before:
            return WHOLE
        return until._positions.get(seq, NOWHERE)

    def _unpack(self, sealed: SealedMetrics) -> MetricColumns:
        try:
            return read_sealed_metrics(sealed.block)
        except (FileNotFoundError, ValueError):
            # Removed by the size cap, or damaged: trying again does not help.
            self.lost += 1
            return MetricColumns.none()

    def note(self, rows: PendingRows) -> None:
        """Remember how far the rows of a segment were returned."""
        position = rows.position
        if position != NOWHERE:
            self._positions[rows.seq] = position
        if position == WHOLE:
            self._unpacked.pop(rows.seq, None)


def _first_time(header: dict[str, Any]) -> int:
    times = header.get("time")
    first = times[0] if isinstance(times, list) and times else 0
    return first if type(first) is int and 0 <= first <= MAX_TIME else 0


def place_since(folder: Path, since: int, most: int) -> list[int]:
    """Return [archive, offset] of the first segment that ends after this time.

    Only the last ``most`` of these segments count.
    """
    place, later = [-1, 0], []
    for path in sorted(folder.glob("metrics-*.zst")):
        number = path.stem.rpartition("-")[2]
        if not number.isdecimal():
            continue
        place = [int(number), 0]
        for block in read_blocks(path):
            times = block.header.get("time") if isinstance(block.header, dict) else None
            last = times[-1] if isinstance(times, list) and times else None
            if not isinstance(last, int) or last >= since:
                later.append(place)
            place = [int(number), block.end]
    return later[-most:][0] if later else place


@dataclass(frozen=True, slots=True)
class Position:
    """How far a segment was returned: ``row`` is next.

    ``holes`` are the earlier rows that were not written yet, as bits. A signal handler may run between
    reserving a row and writing it; a value that is not a number leaves its row empty for good.
    """

    row: int = 0
    holes: int = 0

    def has(self, row: int) -> bool:
        """Return whether this row was returned."""
        return row < self.row and not (self.holes and self.holes >> row & 1)

    @property
    def first(self) -> int:
        """The first row that was not returned."""
        return (self.holes & -self.holes).bit_length() - 1 if self.holes else self.row

    def to_json(self) -> list[Any]:
        return [self.row, f"{self.holes:x}"]

    @classmethod
    def from_json(cls, values: Any) -> Position:
        row, holes = values
        return cls(int(row), int(str(holes), 16))


NOWHERE = Position()
WHOLE = Position(METRIC_ROWS)


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Which rows to return: those up to the horizon whose name passes the filter, before ``until``.

    A row that is not written yet is a hole; in a ``final`` (sealed) segment it is skipped.
    """

    names: MetricNameFilter
    horizon: int = ALWAYS
    until: Position | None = None
    final: bool = False


class PendingRows:
    """The rows to return from one segment. A sealed one is unpacked when its first row is due."""

    def __init__(
        self,
        seq: int,
        thread: str,
        begin: Position,
        wanted: RowSelection,
        load: Callable[[], MetricColumns],
        first_time: int = 0,
    ) -> None:
        self.seq = seq
        self.thread = thread
        self._begin = begin
        self._wanted = wanted
        self._load: Callable[[], MetricColumns] | None = load
        self._first_time = first_time
        self._rows: list[MetricRow] = []
        self._at = 0
        self._end = begin.row
        self._holes = begin.holes

    @property
    def due(self) -> int | None:
        """The time of the next row, or a lower bound of it; None if there is none."""
        if self._load is not None:
            return self._first_time
        return self._rows[self._at].time if self._at < len(self._rows) else None

    def take(self) -> MetricRow | None:
        """Return the next row. None: the segment was unpacked by this call; ask ``due`` again."""
        if self._load is not None:
            self._choose(self._load())
            self._load = None
            return None
        self._at += 1
        return self._rows[self._at - 1]

    def _choose(self, columns: MetricColumns) -> None:
        wanted, begin = self._wanted, self._begin
        holes = 0
        self._end = max(begin.row, columns.end)
        for row in range(columns.first, columns.end):
            if begin.has(row):
                continue
            name = columns.names[row - columns.first] & NAME_BITS
            passes = wanted.names.wants(name) if name and name != CONTEXT_NAME else bool(name)
            if name and columns.clocks[row - columns.first] > wanted.horizon:
                if row >= begin.row:
                    self._end = row
                    break
                passes = None
            if wanted.until is not None and not wanted.until.has(row):
                continue
            if passes is None or not name:
                holes |= 1 << row
            elif passes:
                self._rows.append(columns.row(self.seq, row))
        self._holes = 0 if wanted.final else holes

    @property
    def position(self) -> Position:
        """How far the segment was returned."""
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
