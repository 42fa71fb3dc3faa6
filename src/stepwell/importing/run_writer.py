"""Writing rows as a run folder: nests spans by time, and identifies processes."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell._core.files import write_json
from stepwell._core.values import plain_mapping
from stepwell.importing.rows import (
    CLOSED_IN_ORDER,
    EVENT,
    FAILED,
    KIND_MASK,
    NAME_SHIFT,
    NO_END,
    SHIFT,
    SPAN,
    UNFINISHED,
    UNRESOLVED,
    TraceProcess,
    TraceRow,
    TraceRows,
    as_count,
    unpack_number,
)
from stepwell.journal.format import ABANDONED, ERROR
from stepwell.journal.process_writer import OPEN, ProcessWriter
from stepwell.telemetry import VERSION

RUN = "run.json"
EVERY = 0x3FFF

MAX_DEPTH = 1000
"""The parent of deeper spans is their ancestor at this depth."""
MAX_FAILED = 2000
MAX_REMEMBERED = 1 << 16
MAX_ANCESTORS = 50


class RunWriter:
    """Writes the processes of an import, then the documents."""

    def __init__(self, folder: Path, run_id: str, rows: TraceRows) -> None:
        self.folder = folder
        self.run_id = run_id
        self.rows = rows
        processes = [p for p in rows.processes.values() if p.first < NO_END]
        identify(processes)
        self._world_size = len({process.rank for process in processes})
        self._writers: dict[int, ProcessWriter] = {}

    def write(self, progress: Callable[[int, int], None]) -> None:
        """Write all rows, outer spans before inner ones."""
        nesting = Nesting()
        current = -1
        total = self.rows.sorter.count
        writer: ProcessWriter | None = None
        for count, row in enumerate(self.rows.sorter.sorted()):
            if row.lane != current or writer is None:
                current = row.lane
                nesting.clear()
                writer = self._begin_lane(current)
            self._write_row(writer, nesting, row)
            if not count & EVERY:
                progress(count, total)
        if nesting.too_deep:
            self.rows.notes.append(
                f"{nesting.too_deep} spans are nested deeper than {MAX_DEPTH} levels; "
                "their parent is the ancestor at that level"
            )

    def _begin_lane(self, number: int) -> ProcessWriter:
        lane = self.rows.lanes[number]
        key = id(lane.process)
        if key not in self._writers:
            name = lane.process.folder
            self._writers[key] = ProcessWriter(self.folder / name, name)
        thread = lane.thread[1] if isinstance(lane.thread, tuple) else lane.thread
        self._writers[key].begin_lane(lane.name, as_count(thread) or 0)
        return self._writers[key]

    def _write_row(self, writer: ProcessWriter, nesting: Nesting, row: TraceRow) -> None:
        kind = row.word & KIND_MASK
        category, name = self.rows.names[row.word >> NAME_SHIFT]
        start = row.start + SHIFT
        payload = row.payload
        if row.word & UNRESOLVED:
            payload = self.rows.resolve(payload)
        if kind == SPAN:
            parent = nesting.parent_of(row)
            end = OPEN if row.minus_end == -NO_END else SHIFT - row.minus_end
            mark = ERROR if row.word & FAILED else ABANDONED if row.word & UNFINISHED else 0
            identity = writer.span(name, category, start, end, parent, payload, mark)
            nesting.add(row, identity)
        elif kind == EVENT:
            writer.event(name, start, nesting.span_of(row), payload or b"{}")
        else:
            value, step = unpack_number(payload)
            writer.metric(name, start, value, step)

    # Documents

    def close(self, name: str, imported_from: dict[str, Any]) -> None:
        """Write names, the process.json of each process, and run.json."""
        processes = [p for p in self.rows.processes.values() if id(p) in self._writers]
        for process in processes:
            self._writers[id(process)].close(self._document(process))
        started = min((wall(p, p.first) for p in processes), default=0) or time.time_ns()
        sizes = [p.world_size for p in processes if p.world_size]
        world_size = max([*sizes, self._world_size])
        attempts = [
            {"attempt": n, "started": started, "world_size": world_size, "launcher": "import"}
            for n in sorted({p.attempt for p in processes})
        ]
        document = {
            "stepwell": 1,
            "id": self.run_id,
            "name": name,
            "tags": [],
            "config": {},
            "labels": {},
            "created": started,
            "world_size": world_size,
            "attempts": attempts,
            "imported_from": {**plain_mapping(imported_from), "stepwell_version": VERSION},
        }
        write_json(self.folder / RUN, document)

    def _document(self, process: TraceProcess) -> dict[str, Any]:
        rank, parent = process.rank, process.parent
        return {
            "process": process.folder,
            "role": "main" if parent is None else "worker",
            "parent": None if parent is None else parent.folder,
            "worker": process.worker,
            "run": self.run_id,
            "attempt": process.attempt,
            "rank": rank,
            "local_rank": rank if parent is None else None,
            "world_size": process.world_size or self._world_size,
            "host": process.host or "unknown",
            # Two processes share a clock only if their file has the same origin for both.
            "boot": f"imported-{process.origin_ns}",
            "pid": process.pid,
            "start": 0,
            "started": wall(process, process.first),
            "status": "finished",
            "error": None,
            "heartbeat": wall(process, process.last),
            "interval": 5.0,
            "anchors": [[SHIFT, process.origin_ns]],
            "drops": {},
            "problems": 0,
            "title": process.name,
            "trace": plain_mapping(process.info),
        }


class Nesting:
    """Finds the parents of the spans of one lane; rows must come in order.

    The parent is the innermost span of the thread that contains a row in time. Spans that overlap without
    nesting are siblings. If one span ends exactly when the other starts, or both end together, it contains
    the other only if the file says so, by a level or by its order.
    """

    def __init__(self) -> None:
        self._open: list[tuple[TraceRow, int]] = []
        self._by_key: dict[int, int] = {}
        self._failed: deque[tuple[int, int]] = deque(maxlen=MAX_FAILED)
        self.too_deep = 0

    def clear(self) -> None:
        """Start with another lane."""
        self._open.clear()
        self._by_key.clear()
        self._failed.clear()

    def parent_of(self, row: TraceRow) -> int | None:
        """Return the identity of the innermost span that contains this row."""
        open_spans = self._open
        while open_spans and not _contains(open_spans[-1][0], row):
            open_spans.pop()
        return open_spans[-1][1] if open_spans else None

    def add(self, row: TraceRow, identity: int) -> None:
        """Add a span after its parent was looked up."""
        if len(self._open) < MAX_DEPTH:
            self._open.append((row, identity))
        else:
            self.too_deep += 1
        if row.word & FAILED:
            self._failed.append((-row.minus_end, identity))
        if row.key:
            self._by_key[row.key] = identity
            if len(self._by_key) > MAX_REMEMBERED:
                del self._by_key[next(iter(self._by_key))]

    def span_of(self, event: TraceRow) -> int | None:
        """Return the identity of an event's span: the one that it names, or the innermost at its time."""
        if event.word & FAILED:
            # An exception is recorded right after the end of the first span that it left.
            ended = [pair for pair in self._failed if pair[0] <= event.start]
            if ended:
                return max(ended)[1]
        if event.key:
            for row, identity in reversed(self._open):
                if row.key == event.key:
                    return identity
            if event.key in self._by_key:
                return self._by_key[event.key]
        for row, identity in reversed(self._open):
            if -row.minus_end >= event.start:
                return identity
        return None


def _contains(outer: TraceRow, inner: TraceRow) -> bool:
    if outer.minus_end > inner.minus_end:
        return False
    if outer.begun and outer.depth >= 0 and inner.depth >= 0:
        return outer.depth < inner.depth
    if -outer.minus_end > inner.start:
        return True
    if outer.depth >= 0 and inner.depth >= 0:
        return outer.depth < inner.depth
    if not outer.word & inner.word & CLOSED_IN_ORDER:
        return False
    return outer.start < inner.start and abs(outer.order) > abs(inner.order)


def identify(processes: list[TraceProcess]) -> None:
    """Set the parents of workers, missing ranks, and the folder of each process."""
    _find_parents(processes)
    _assign_ranks(processes)
    used: Counter[str] = Counter()
    for process in processes:
        name = f"rank-{process.rank:05d}.attempt-{process.attempt}.pid-{process.pid}"
        used[name] += 1
        process.folder = f"{name}.{used[name]}" if used[name] > 1 else name


def _find_parents(processes: list[TraceProcess]) -> None:
    by_pid = {(p.host, p.attempt, p.pid): p for p in processes}
    mains = {(p.rank, p.attempt): p for p in processes if not p.is_worker}
    for process in processes:
        parent = None
        if process.rank is None and process.parent_pid is not None:
            parent = by_pid.get((process.host, process.attempt, process.parent_pid))
        elif process.rank is not None and process.is_worker:
            parent = mains.get((process.rank, process.attempt))
        process.parent = None if parent is process else parent


def _assign_ranks(processes: list[TraceProcess]) -> None:
    """Set missing ranks: the next free one, or for a worker that of its nearest ancestor with a rank."""
    taken = {process.rank for process in processes}
    free = 0
    for process in sorted(processes, key=lambda p: wall(p, p.first)):
        if process.rank is None and process.parent is None:
            while free in taken:
                free += 1
            taken.add(free)
            process.rank = free
    for process in processes:
        # The parents in a file may form a cycle.
        passed: list[TraceProcess] = []
        above: TraceProcess | None = process
        while above is not None and above.rank is None and len(passed) < MAX_ANCESTORS:
            passed.append(above)
            above = above.parent
        for descendant in passed:
            descendant.rank = (above.rank if above is not None else None) or 0


def wall(process: TraceProcess, time_ns: int) -> int:
    """Return a time of a process in ns since the epoch, 0 for none."""
    return max(0, time_ns + process.origin_ns) if abs(time_ns) < NO_END else 0
