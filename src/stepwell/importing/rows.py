"""Rows: spans, events and metrics as the readers collect them, sorted in more space than memory has.

Times are nanoseconds since the origin of their process, which some files contain only at their end.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stepwell._core.values import cut
from stepwell.importing.sources import encode_attributes
from stepwell.journal.format import MAX_NAMES
from stepwell.journal.names import MAX_NAME

SPAN, EVENT, METRIC = range(3)
KIND_MASK = 3
FAILED = 4
"""Flag: an exception left the span."""
UNFINISHED = 32
"""Flag: the real end of the span was not recorded."""
CLOSED_IN_ORDER = 8
"""Flag: among rows with an equal start or end, the file has inner spans first."""
UNRESOLVED = 16
"""Flag: the attributes contain hashes that may be resolved at the end of the file."""
NAME_SHIFT = 6

NO_END = 1 << 61
"""Later than any valid time."""
SHIFT = 1 << 50
"""Added to times, so that those up to 13 days before their origin are positive too."""
LATEST = NO_END - 4 * SHIFT
LAST = 1 << 62
MAX_PROCESSES = 20_000
MAX_LANES = 200_000
TOO_MANY = ("", "(too many names)")

_NUMBER = struct.Struct("<dqB")

PIECE_BYTES = 32 << 20
"""Approximate memory for rows before they are written to the scratch folder."""
ROW_COST = 300
MOST_AT_ONCE = 64
"""Pieces merged at once; more are merged in stages."""
BUFFER = 1 << 17
_HEAD = struct.Struct("<iqqqqiqQI")


@dataclass
class TraceLane:
    """A thread of a process, or anything that the trace shows as one."""

    number: int
    process: TraceProcess
    thread: Any
    name: str = ""
    open: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class TraceProcess:
    """A process of the trace, as far as the file describes it; ``identify`` completes it."""

    key: Hashable
    pid: int = 0
    host: str = ""
    name: str = ""
    rank: int | None = None
    world_size: int | None = None
    attempt: int = 0
    parent_pid: int | None = None
    is_worker: bool = False
    worker: int | None = None
    parent: TraceProcess | None = None
    folder: str = ""
    origin_ns: int = 0
    first: int = NO_END
    last: int = -NO_END
    info: dict[str, Any] = field(default_factory=dict)


class TraceRows:
    """Collects records; counts those taken by kind, and those left out by reason."""

    def __init__(self, sorter: RowSorter) -> None:
        self.sorter = sorter
        self.taken: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.notes: list[str] = []
        self.lanes: list[TraceLane] = []
        self.processes: dict[Hashable, TraceProcess] = {}
        self.names: list[tuple[str, str]] = [TOO_MANY]
        self.resolve: Callable[[bytes], bytes] = bytes
        self._lanes: dict[Hashable, TraceLane] = {}
        self._names: dict[tuple[str, str], int] = {TOO_MANY: 0}
        self._seq = 0

    def process(self, key: Hashable, pid: Any = 0) -> TraceProcess | None:
        """Return the process with this key, None if there are too many."""
        process = self.processes.get(key)
        if process is None:
            if len(self.processes) >= MAX_PROCESSES:
                self.left_out[f"more than {MAX_PROCESSES} processes"] += 1
                return None
            process = self.processes[key] = TraceProcess(key, as_count(pid) or 0)
        return process

    def lane(self, process: TraceProcess, thread: Hashable, name: str = "") -> TraceLane | None:
        """Return the lane of a thread, None if there are too many."""
        key = (process.key, thread)
        lane = self._lanes.get(key)
        if lane is None:
            if len(self.lanes) >= MAX_LANES:
                self.left_out[f"more than {MAX_LANES} threads"] += 1
                return None
            lane = self._lanes[key] = TraceLane(len(self.lanes), process, thread, name)
            self.lanes.append(lane)
        return lane

    def next(self) -> int:
        """Return a number that grows with each call."""
        self._seq += 1
        return self._seq

    def _behind(self) -> int:
        """Return an order after all spans with the same time."""
        return LAST + self.next()

    def span(
        self,
        lane: TraceLane,
        category: str,
        name: str,
        start: int,
        end: int,
        attributes: Mapping[str, Any] | None,
        *,
        depth: int = -1,
        order: int = 0,
        begun: int = 0,
        key: int = 0,
        flags: int = 0,
    ) -> None:
        """Add a span; ``end`` is NO_END if it never ended."""
        if end < start:
            self.left_out["ends before it starts"] += 1
            return
        if flags & CLOSED_IN_ORDER and start == end:
            # Spans without duration do not nest: they keep their order.
            order = -order
        word = SPAN | flags | self._name(category, name) << NAME_SHIFT
        data = encode_attributes(attributes) if attributes else b""
        self._add(lane, start, end, depth, order, key, word, data, "spans", begun)

    def event(
        self,
        lane: TraceLane,
        name: str,
        time: int,
        attributes: Mapping[str, Any] | None,
        *,
        key: int = 0,
        flags: int = 0,
    ) -> None:
        """Add an event."""
        word = EVENT | flags | self._name("", name) << NAME_SHIFT
        data = encode_attributes(attributes) if attributes else b"{}"
        self._add(lane, time, time, -1, self._behind(), key, word, data, "events")

    def metric(self, lane: TraceLane, name: str, time: int, value: float, step: int | None) -> bool:
        """Add a metric value. Return whether it was taken."""
        word = METRIC | self._name("", name) << NAME_SHIFT
        data = _NUMBER.pack(value, step or 0, step is not None)
        return self._add(lane, time, time, -1, self._behind(), 0, word, data, "metrics")

    def _add(
        self,
        lane: TraceLane,
        start: int,
        end: int,
        depth: int,
        order: int,
        key: int,
        word: int,
        payload: bytes,
        what: str,
        begun: int = LAST,
    ) -> bool:
        process = lane.process
        last = start if end == NO_END else end
        if start <= -SHIFT or last + max(process.origin_ns, 0) >= LATEST:
            self.left_out["time out of range"] += 1
            return False
        if start < process.first:
            process.first = start
        if last > process.last:
            process.last = last
        self.sorter.add(TraceRow(lane.number, start, begun, -end, order, depth, key, word, payload))
        self.taken[what] += 1
        return True

    def _name(self, category: str, name: str) -> int:
        key = (category, name)
        number = self._names.get(key)
        if number is not None:
            return number
        if len(self._names) >= MAX_NAMES:
            self.taken["names past the largest number of names"] += 1
            return 0
        if len(name) > MAX_NAME or len(category) > MAX_NAME:
            return self._name(cut(category, MAX_NAME - 50), cut(name, MAX_NAME - 50))
        self._names[key] = len(self.names)
        self.names.append(key)
        return len(self.names) - 1


def unpack_number(payload: bytes) -> tuple[float, int | None]:
    """Return value and step of a metric row."""
    value, step, has_step = _NUMBER.unpack(payload)
    return value, step if has_step else None


def as_count(value: Any) -> int | None:
    """Return a pid, rank or other number of the file; None unless it is from 0 to 2**31 - 1."""
    return value if type(value) is int and 0 <= value < 1 << 31 else None


class TraceRow(NamedTuple):
    """One record. Rows sort by their fields in this order: outer spans before inner ones."""

    lane: int
    start: int
    begun: int
    """A number that grows with the start of spans, if the file is in that order; otherwise 0."""
    minus_end: int
    order: int
    """Order among rows with the same times: outer spans first."""
    depth: int
    """Depth in the file, -1 if it has none."""
    key: int
    """Of a span: its key for events. Of an event: the key of its span. 0 means none."""
    word: int
    payload: bytes


class RowSorter:
    """Sorts more rows than fit into memory: sorted pieces on disk, merged when read. Can be read once."""

    def __init__(self, scratch: Path, piece_bytes: int = PIECE_BYTES) -> None:
        self._scratch = scratch
        self._piece_bytes = piece_bytes
        self._rows: list[TraceRow] = []
        self._bytes = 0
        self._levels: list[list[Path]] = []
        self._made = 0
        self.count = 0

    def add(self, row: TraceRow) -> None:
        self._rows.append(row)
        self.count += 1
        self._bytes += ROW_COST + len(row.payload)
        if self._bytes >= self._piece_bytes:
            self._rows.sort()
            self._keep(self._write(self._rows), 0)
            self._rows = []
            self._bytes = 0

    def sorted(self) -> Iterator[TraceRow]:
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

    def _write(self, rows: Iterable[TraceRow]) -> Path:
        path = self._scratch / f"piece-{self._made}"
        self._made += 1
        pack = _HEAD.pack
        with open(path, "wb", BUFFER) as file:
            for row in rows:
                payload = row[8]
                file.write(pack(*row[:8], len(payload)) + payload)
        return path


def _read(path: Path) -> Iterator[TraceRow]:
    unpack, size = _HEAD.unpack, _HEAD.size
    make = TraceRow._make
    with open(path, "rb", BUFFER) as file:
        read = file.read
        while head := read(size):
            *fields, length = unpack(head)
            yield make((*fields, read(length)))
