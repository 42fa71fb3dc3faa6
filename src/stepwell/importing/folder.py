"""Rows become a run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell.importing.family import Family, wall
from stepwell.importing.nesting import MAX_DEPTH, Nesting
from stepwell.importing.rows import (
    EVENT,
    FAILED,
    KIND_MASK,
    NAME_SHIFT,
    NO_END,
    SHIFT,
    SPAN,
    UNFINISHED,
    UNRESOLVED,
    Process,
    Rows,
    unpack_number,
)
from stepwell.importing.sorting import Row
from stepwell.journal.careful import plain_mapping
from stepwell.journal.document import write_json
from stepwell.journal.format import ABANDONED, ERROR
from stepwell.journal.writing import OPEN, ProcessWriter
from stepwell.telemetry.version import VERSION

RUN = "run.json"
EVERY = 0x3FFF


class RunWriter:
    """Writes the processes of an import, then the documents."""

    def __init__(self, folder: Path, run_id: str, rows: Rows) -> None:
        self.folder = folder
        self.run_id = run_id
        self.rows = rows
        self._family = Family([p for p in rows.processes.values() if p.first < NO_END])
        self._writers: dict[int, ProcessWriter] = {}

    def write(self, progress: Callable[[int, int], None]) -> None:
        """Write all rows, in the order in which they nest."""
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
                f"{nesting.too_deep} spans are nested deeper than {MAX_DEPTH} levels: "
                "their parent is the ancestor at that level"
            )

    def _begin_lane(self, number: int) -> ProcessWriter:
        lane = self.rows.lanes[number]
        key = id(lane.process)
        if key not in self._writers:
            name = self._family.name(lane.process)
            self._writers[key] = ProcessWriter(self.folder / name, name)
        thread = lane.thread[1] if isinstance(lane.thread, tuple) else lane.thread
        native = thread if type(thread) is int and 0 <= thread < 1 << 31 else 0
        self._writers[key].begin_lane(lane.name, native)
        return self._writers[key]

    def _write_row(self, writer: ProcessWriter, nesting: Nesting, row: Row) -> None:
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
        """Write names, process.json of each process, and run.json."""
        processes = [p for p in self.rows.processes.values() if id(p) in self._writers]
        for process in processes:
            self._writers[id(process)].close(self._document(process))
        started = min((wall(p, p.first) for p in processes), default=0) or time.time_ns()
        told = [p.world_size for p in processes if p.world_size]
        world_size = max([*told, self._family.world_size()])
        attempts = [
            {"attempt": n, "started": started, "world_size": world_size, "launcher": "import"}
            for n in sorted({p.attempt for p in processes})
        ]
        about = {
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
        write_json(self.folder / RUN, about)

    def _document(self, process: Process) -> dict[str, Any]:
        rank, parent = self._family.rank(process), self._family.parent(process)
        return {
            "process": self._family.name(process),
            "role": "main" if parent is None else "worker",
            "parent": None if parent is None else self._family.name(parent),
            "worker": process.worker,
            "run": self.run_id,
            "attempt": process.attempt,
            "rank": rank,
            "local_rank": rank if parent is None else None,
            "world_size": process.world_size or self._family.world_size(),
            "host": process.host or "unknown",
            # No two processes share a clock unless their file has one origin for both.
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
            "trace": plain_mapping(process.about),
        }
