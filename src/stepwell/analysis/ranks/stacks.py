"""The open spans of every rank and thread, now or when its process died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from stepwell._core import clock
from stepwell.analysis.timeline.wall import Liveness, life_of
from stepwell.analysis.tracebacks import own_line
from stepwell.journal.document import STALE_HEARTBEATS, status_of
from stepwell.journal.tail import parse_object
from stepwell.reading import RecordedRun
from stepwell.reading.documents import PythonStacks, SourceLine
from stepwell.reading.spans import SpanReader
from stepwell.reading.tables import ProcessTables

MAIN = "MainThread"
COLUMNS = {"thread", "step", "name", "category", "depth", "start_ns", "attributes", "id"}
ENDED = {"thread", "step", "name", "category", "start_ns", "duration_ns"}


@dataclass(frozen=True)
class StackFrame:
    """One open span."""

    name: str
    category: str
    start_ns: int
    seconds: float
    """How long it has been open, or was when its process ended."""
    attributes: dict[str, Any]


@dataclass(frozen=True)
class LastSpan:
    """The span that ended last, for a thread that is in none."""

    name: str
    category: str
    seconds: float
    """How long ago it ended."""


@dataclass(frozen=True)
class Stack:
    """One thread and its open spans, the outermost first."""

    rank: int
    attempt: int
    process: str
    role: str
    status: str
    """Status of its process: running, finished, failed, interrupted or killed."""
    host: str
    pid: int
    thread: str
    step: int | None
    frames: tuple[StackFrame, ...]
    last: LastSpan | None
    seen_ns: int
    """The time this describes: now, or the last sign of life of its process."""
    lines: tuple[SourceLine, ...] = ()
    """Its Python stack, outermost first; recorded if its process made no progress."""
    quiet_s: float | None = None
    """Seconds since its process last recorded something, if the Python stack was recorded."""
    silent_s: float | None = None
    """Seconds since the last heartbeat, if a running process has stopped sending them; else None."""

    @property
    def place(self) -> str | None:
        """The innermost line of the user's code: ``train.py:42 in load_batch``."""
        line = own_line(self.lines)
        return None if line is None else line.place

    @property
    def innermost(self) -> StackFrame | None:
        """The innermost open span."""
        return self.frames[-1] if self.frames else None


def stacks(run: RecordedRun) -> list[Stack]:
    """Return the threads that have open spans in the latest attempt, by rank.

    The main thread of a running process is always included.
    """
    documents = run.documents()
    attempt = max((int(d["attempt"]) for d in documents), default=0)
    statuses = {str(d["process"]): status_of(d) for d in documents}
    # The clock is read after the spans: an open span then never begins in the future.
    result = []
    for tables in run.by_process(partial=True):
        document = tables.process.document
        if document["attempt"] == attempt:
            result += stacks_of(tables, seen_status(document, statuses))
    return in_order(result)


def in_order(unsorted: Iterable[Stack]) -> list[Stack]:
    """Sort stacks by rank, with the main thread of each first."""
    return sorted(unsorted, key=lambda s: (s.rank, s.role != "main", s.process, s.thread != MAIN))


def seen_status(document: dict[str, Any], statuses: Mapping[str, str]) -> str:
    """Return the status of a process. A worker has no heartbeat of its own: it ends with its parent."""
    own = statuses.get(document["process"]) or status_of(document)
    if document["role"] != "worker" or own != "running":
        return own
    return own if statuses.get(str(document.get("parent")), own) == "running" else "killed"


def stacks_of(tables: ProcessTables, status: str, now_ns: int | None = None) -> list[Stack]:
    """Return the threads of one process that have open spans, at ``now_ns`` or the current time."""
    frames = [f for f in tables.spans(COLUMNS, only_open=True) if f.height]
    spans = pl.concat(frames).sort("depth", "start_ns") if frames else None
    begun = [] if spans is None else spans["start_ns"].to_list()
    _, seen = life_of(tables, Liveness(status, clock.wall() if now_ns is None else now_ns), begun)
    python = tables.process.python_stacks() if status in ("running", "killed") else None
    step = tables.context.latest()[0]
    result = []
    if spans is not None:
        for (thread,), part in spans.group_by("thread", maintain_order=True):
            inside = tuple(_frame(row, seen) for row in part.iter_rows(named=True))
            # The current step: the main thread's loop began at an earlier one.
            own = step if thread == MAIN and step is not None else part["step"][-1]
            result.append(_stack(tables, status, seen, str(thread), own, inside))
    has_main = any(stack.thread == MAIN for stack in result)
    is_main = tables.process.document["role"] == "main"
    if not has_main and is_main and (status == "running" or python is not None):
        result.append(_stack(tables, status, seen, MAIN, step, (), _last(tables, seen)))
    return result if python is None else _with_lines(result, python)


def _with_lines(bare: list[Stack], python: PythonStacks) -> list[Stack]:
    """Add the Python stacks that were recorded since each thread entered its innermost span."""
    return [
        replace(
            stack,
            lines=python.threads.get(stack.thread, ()),
            quiet_s=python.quiet_s + max(0, stack.seen_ns - python.time_ns) / 1e9,
        )
        if stack.innermost is None or stack.innermost.start_ns <= python.time_ns
        else stack
        for stack in bare
    ]


def _stack(
    tables: ProcessTables,
    status: str,
    seen: int,
    thread: str,
    step: int | None,
    frames: tuple[StackFrame, ...],
    last: LastSpan | None = None,
) -> Stack:
    document = tables.process.document
    silent = max(0, seen - int(document["heartbeat"] or seen)) / 1e9
    is_silent = status == "running" and silent > STALE_HEARTBEATS * document["interval"]
    return Stack(
        rank=int(document["rank"]),
        attempt=int(document["attempt"]),
        process=tables.process.name,
        role=str(document["role"] or "main"),
        status=status,
        host=str(document["host"]),
        pid=int(document["pid"]),
        thread=thread,
        step=step,
        frames=frames,
        last=last,
        seen_ns=seen,
        silent_s=silent if is_silent else None,
    )


def _frame(row: dict[str, Any], seen: int) -> StackFrame:
    return StackFrame(
        name=row["name"],
        category=row["category"],
        start_ns=row["start_ns"],
        seconds=max(0, seen - row["start_ns"]) / 1e9,
        attributes=parse_object(row["attributes"] or "") or {},
    )


def _last(tables: ProcessTables, seen: int) -> LastSpan | None:
    """Return the span of the main thread that ended last. Reads only its newest segments."""
    mine = [lane for lane, name in tables.threads.items() if name == MAIN]
    reader = SpanReader(tables.process)
    segments = [s for s in reader.segments if s.lane in mine]
    for segment in reversed(segments):
        frame = tables.span_frame(segment, reader.rows(segment, depths=False), None, ENDED)
        ended = frame.drop_nulls("duration_ns").with_columns(
            (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")
        )
        if ended.height:
            row = ended.sort("end_ns").row(-1, named=True)
            return LastSpan(row["name"], row["category"], max(0, seen - row["end_ns"]) / 1e9)
    return None
