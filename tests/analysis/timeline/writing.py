"""Run folders with exactly the spans that a test defines, however they overlap."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from stepwell import open_run
from stepwell._core.files import write_json
from stepwell.journal.format import CONTEXT_NAME, ROW, ROW_HEAD, context_word
from stepwell.journal.process_writer import ProcessWriter
from stepwell.reading import RecordedRun

ZERO = 1_000_000
"""The monotonic clock at time 0 of a test; the wall clock is ahead by WALL."""
WALL = 1_700_000_000_000_000_000
PID = 4711


@dataclass
class Written:
    """A span, in nanoseconds since the start of the run; ``parent`` is the index of another span."""

    name: str
    start: int
    end: int | None
    parent: int | None = None
    category: str = ""


@dataclass
class Thread:
    """The spans of a thread, in the order of their starts."""

    spans: list[Written]
    name: str = "MainThread"


@dataclass
class Process:
    """A process that recorded from 0 to ``end``; ``steps`` are (time, step, epoch)."""

    threads: list[Thread]
    end: int
    steps: list[tuple[int, int | None, int | None]] = field(default_factory=list)
    rank: int = 0
    attempt: int = 0
    worker: int | None = None
    start: int = 0
    status: str = "finished"


_numbers = itertools.count()


def write_run(folder: Path, *processes: Process) -> RecordedRun:
    """Write a run into a new folder below this one."""
    run = folder / f"run-{next(_numbers)}"
    write_json_to(run, processes)
    return open_run(run)


def write_json_to(run: Path, processes: tuple[Process, ...]) -> None:
    run.mkdir(parents=True)
    write_json(run / "run.json", {"id": run.name, "name": "test", "created": WALL})
    for process in processes:
        _write(run, process)


def _write(run: Path, process: Process) -> None:
    name = f"rank-{process.rank:05}.attempt-{process.attempt}"
    parent = f"{name}.pid-{PID}"
    full = parent if process.worker is None else f"{name}.worker-{process.worker}.pid-1"
    writer = ProcessWriter(run / full, full)
    for thread in process.threads:
        writer.begin_lane(thread.name)
        ids: list[int] = []
        for span in thread.spans:
            above = None if span.parent is None else ids[span.parent]
            end = 0 if span.end is None else ZERO + span.end
            ids.append(writer.span(span.name, span.category, ZERO + span.start, end, above))
    for time, step, epoch in process.steps:
        head = ROW_HEAD.pack(ZERO + time, context_word(step, epoch))
        writer._rows += ROW.pack(head, 0.0, CONTEXT_NAME)
    writer.close(
        {
            "process": full,
            "run": run.name,
            "host": "elsewhere",
            "boot": "another",
            "attempt": process.attempt,
            "rank": process.rank,
            "pid": PID if process.worker is None else 1,
            "start": 1,
            "role": "main" if process.worker is None else "worker",
            "parent": None if process.worker is None else parent,
            "worker": process.worker,
            "status": process.status,
            "started": WALL + process.start,
            "heartbeat": WALL + process.end,
            "anchors": [[ZERO, WALL]],
        }
    )
