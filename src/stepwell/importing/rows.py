"""What the readers of formats hand over: spans, events and numbers of threads of processes.

Times are nanoseconds since the origin of their process, which may become known at the end of a file only.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepwell.importing.sorting import Row, Sorter
from stepwell.importing.values import encode_attributes
from stepwell.journal.format import MAX_NAMES
from stepwell.journal.names import MAX_NAME
from stepwell.journal.values import cut

SPAN, EVENT, METRIC = range(3)
KIND_MASK = 3
FAILED = 4
"""Flag: an exception went through the span."""
UNFINISHED = 32
"""Flag: the span was given an end because nobody saw the real one."""
CLOSED_IN_ORDER = 8
"""Flag: among rows that share a boundary, the file has the inner ones first."""
UNRESOLVED = 16
"""Flag: the attributes still hold what may be resolved at the end of the file."""
NAME_SHIFT = 6

NO_END = 1 << 61
"""Later than any time that is taken."""
SHIFT = 1 << 50
"""Added to times, so that those before their origin (by up to 13 days) are positive too."""
LATEST = NO_END - 4 * SHIFT
LAST = 1 << 62
MAX_PROCESSES = 20_000
MAX_LANES = 200_000
TOO_MANY = ("", "(too many names)")

_NUMBER = struct.Struct("<dqB")


@dataclass
class Lane:
    """One thread of a process, or what is shown like one."""

    number: int
    process: Process
    thread: Any
    name: str = ""
    open: list[Any] = field(default_factory=list)


@dataclass
class Process:
    """One process of the trace, as far as the file tells."""

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
    origin_ns: int = 0
    first: int = NO_END
    last: int = -NO_END
    about: dict[str, Any] = field(default_factory=dict)


class Rows:
    """Collects what was read; counts what was taken, and what was not and why."""

    def __init__(self, sorter: Sorter) -> None:
        self.sorter = sorter
        self.taken: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.notes: list[str] = []
        self.about: dict[str, Any] = {}
        self.lanes: list[Lane] = []
        self.processes: dict[Hashable, Process] = {}
        self.names: list[tuple[str, str]] = [TOO_MANY]
        self.resolve: Callable[[bytes], bytes] = bytes
        self._lanes: dict[Hashable, Lane] = {}
        self._names: dict[tuple[str, str], int] = {TOO_MANY: 0}
        self._seq = 0

    def process(self, key: Hashable, pid: Any = 0) -> Process | None:
        """The process of this key, None when there are too many."""
        found = self.processes.get(key)
        if found is None:
            if len(self.processes) >= MAX_PROCESSES:
                self.left_out[f"of more than {MAX_PROCESSES} processes"] += 1
                return None
            found = self.processes[key] = Process(key, as_pid(pid))
        return found

    def lane(self, process: Process, thread: Hashable, name: str = "") -> Lane | None:
        """The lane of a thread, None when there are too many."""
        key = (process.key, thread)
        found = self._lanes.get(key)
        if found is None:
            if len(self.lanes) >= MAX_LANES:
                self.left_out[f"of more than {MAX_LANES} threads"] += 1
                return None
            found = self._lanes[key] = Lane(len(self.lanes), process, thread, name)
            self.lanes.append(found)
        return found

    def next(self) -> int:
        """A number that grows from record to record."""
        self._seq += 1
        return self._seq

    def _behind(self) -> int:
        """A place behind all spans of the same time."""
        return LAST + self.next()

    def span(
        self,
        lane: Lane,
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
    ) -> bool:
        """A span; ``end`` is NO_END for one that was never closed."""
        if end < start:
            self.left_out["it ends before it starts"] += 1
            return False
        if flags & CLOSED_IN_ORDER and start == end:
            # Those of no length are not in each other: the first one comes first.
            order = -order
        word = SPAN | flags | self._name(category, name) << NAME_SHIFT
        data = encode_attributes(attributes) if attributes else b""
        return self._add(lane, start, end, depth, order, key, word, data, "spans", begun)

    def event(
        self,
        lane: Lane,
        name: str,
        time: int,
        attributes: Mapping[str, Any] | None,
        *,
        key: int = 0,
        flags: int = 0,
    ) -> bool:
        """Something that happened at one instant."""
        word = EVENT | flags | self._name("", name) << NAME_SHIFT
        data = encode_attributes(attributes) if attributes else b"{}"
        return self._add(lane, time, time, -1, self._behind(), key, word, data, "events")

    def metric(self, lane: Lane, name: str, time: int, value: float, step: int | None) -> bool:
        """A number."""
        word = METRIC | self._name("", name) << NAME_SHIFT
        data = _NUMBER.pack(value, step or 0, step is not None)
        return self._add(lane, time, time, -1, self._behind(), 0, word, data, "metrics")

    def _add(
        self,
        lane: Lane,
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
            self.left_out["its time is out of range"] += 1
            return False
        if start < process.first:
            process.first = start
        if last > process.last:
            process.last = last
        self.sorter.add(Row(lane.number, start, begun, -end, order, depth, key, word, payload))
        self.taken[what] += 1
        return True

    def _name(self, category: str, name: str) -> int:
        key = (category, name)
        found = self._names.get(key)
        if found is not None:
            return found
        if len(self._names) >= MAX_NAMES:
            self.taken["names past the largest number of names"] += 1
            return 0
        if len(name) > MAX_NAME or len(category) > MAX_NAME:
            return self._name(cut(category, MAX_NAME - 50), cut(name, MAX_NAME - 50))
        self._names[key] = len(self.names)
        self.names.append(key)
        return len(self.names) - 1


def unpack_number(payload: bytes) -> tuple[float, int | None]:
    """Value and step of a metric's row."""
    value, step, has_step = _NUMBER.unpack(payload)
    return value, step if has_step else None


def as_pid(value: Any) -> int:
    """The value as the number of a process, 0 when it is none."""
    return value if type(value) is int and 0 <= value < 1 << 31 else 0
