"""What every rank and thread is inside of now, or was when it died."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from stepwell.analysis.source_lines import own_line
from stepwell.journal.liveness import STALE_HEARTBEATS, status_of
from stepwell.reading import RecordedRun
from stepwell.reading.documents import PythonStacks, SourceLine
from stepwell.reading.spans import SpanReader
from stepwell.reading.tables import ProcessTables
from stepwell.reading.window import ends_of

MAIN = "MainThread"
COLUMNS = {"thread", "step", "name", "category", "depth", "start_ns", "attributes", "id"}
ENDED = {"thread", "step", "name", "category", "start_ns", "duration_ns"}


@dataclass(frozen=True)
class Frame:
    """One open span."""

    name: str
    category: str
    start_ns: int
    seconds: float
    """For how long it is open, or was when its process ended."""
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Last:
    """The span that ended last, of a thread that is in none."""

    name: str
    category: str
    seconds: float
    """How long ago it ended."""


@dataclass(frozen=True)
class Stack:
    """One thread: the spans that it is in, the outermost first."""

    rank: int
    attempt: int
    process: str
    role: str
    status: str
    """Of its process: running, finished, failed, interrupted or killed."""
    host: str
    pid: int
    thread: str
    step: int | None
    frames: tuple[Frame, ...]
    last: Last | None
    seen_ns: int
    """As of when: now, or the last sign of life of its process."""
    lines: tuple[SourceLine, ...] = ()
    """Its Python stack, outermost first; written when its process made no progress."""
    quiet_s: float | None = None
    """Seconds since its process recorded anything, where the stack was written for that reason."""
    silent_s: float | None = None
    """Seconds without a heartbeat of a process that lives here; None where it has one."""

    @property
    def place(self) -> str | None:
        """The innermost line of the user's code: ``train.py:42 in load_batch``."""
        line = own_line(self.lines)
        return None if line is None else line.place

    @property
    def innermost(self) -> Frame | None:
        """What it is in at the moment."""
        return self.frames[-1] if self.frames else None


def stacks(run: RecordedRun, *, attempt: int | None = None) -> list[Stack]:
    """The threads that are inside of something, by rank; of the latest attempt if none is given.

    A main thread is told of while its process runs, also when it is inside of nothing.
    """
    documents = run.documents()
    if attempt is None:
        attempt = max((int(d["attempt"]) for d in documents), default=0)
    statuses = {str(d["process"]): status_of(d) for d in documents}
    # Read first, looked at afterwards: what is open has been open since before that.
    found = []
    for tables in run.by_process(partial=True):
        about = tables.process.about
        if about["attempt"] == attempt:
            found += stacks_of(tables, seen_status(about, statuses))
    return in_order(found)


def in_order(found: Iterable[Stack]) -> list[Stack]:
    """By rank, of each the main thread first."""
    return sorted(found, key=lambda s: (s.rank, s.role != "main", s.process, s.thread != MAIN))


def seen_status(about: dict[str, Any], statuses: Mapping[str, str]) -> str:
    """How a process is. A worker renews no heartbeat of its own: where its parent has ended, so has it."""
    own = statuses.get(about["process"]) or status_of(about)
    if about["role"] != "worker" or own != "running":
        return own
    return own if statuses.get(str(about.get("parent")), own) == "running" else "killed"


def stacks_of(tables: ProcessTables, status: str, now_ns: int | None = None) -> list[Stack]:
    """The threads of one process that are inside of something, as of now if no time is given."""
    frames = [f for f in tables.spans(COLUMNS, only_open=True) if f.height]
    spans = pl.concat(frames).sort("depth", "start_ns") if frames else None
    seen = _seen(tables, status, spans, time.time_ns() if now_ns is None else now_ns)
    python = tables.process.python_stacks() if status in ("running", "killed") else None
    step = tables.context.latest()[0]
    found = []
    if spans is not None:
        for (thread,), part in spans.group_by("thread", maintain_order=True):
            inside = tuple(_frame(row, seen) for row in part.iter_rows(named=True))
            # A loop that the main thread is in began long before.
            own = step if thread == MAIN and step is not None else part["step"][-1]
            found.append(_stack(tables, status, seen, str(thread), own, inside))
    has_main = any(stack.thread == MAIN for stack in found)
    is_main = tables.process.about["role"] == "main"
    if not has_main and is_main and (status == "running" or python is not None):
        found.append(_stack(tables, status, seen, MAIN, step, (), _last(tables, seen)))
    return found if python is None else _with_lines(found, python)


def _with_lines(found: list[Stack], python: PythonStacks) -> list[Stack]:
    """Add the Python stacks that were taken since each thread entered its innermost span."""
    return [
        replace(
            stack,
            lines=python.threads.get(stack.thread, ()),
            quiet_s=python.quiet_s + max(0, stack.seen_ns - python.time_ns) / 1e9,
        )
        if stack.innermost is None or stack.innermost.start_ns <= python.time_ns
        else stack
        for stack in found
    ]


def _stack(
    tables: ProcessTables,
    status: str,
    seen: int,
    thread: str,
    step: int | None,
    frames: tuple[Frame, ...],
    last: Last | None = None,
) -> Stack:
    about = tables.process.about
    silent = max(0, seen - int(about["heartbeat"] or seen)) / 1e9
    is_silent = status == "running" and silent > STALE_HEARTBEATS * about["interval"]
    return Stack(
        rank=int(about["rank"]),
        attempt=int(about["attempt"]),
        process=tables.process.name,
        role=str(about["role"] or "main"),
        status=status,
        host=str(about["host"]),
        pid=int(about["pid"]),
        thread=thread,
        step=step,
        frames=frames,
        last=last,
        seen_ns=seen,
        silent_s=silent if is_silent else None,
    )


def _seen(tables: ProcessTables, status: str, spans: pl.DataFrame | None, now_ns: int) -> int:
    """Until when something is known of a process."""
    if status == "running":
        return now_ns
    about = tables.process.about
    latest = max((ends_of(s) for s in tables.process.of_kind("spans")), default=0)
    began = 0 if spans is None else int(spans["start_ns"].max() or 0)  # type: ignore[arg-type]
    return max(int(about["heartbeat"] or 0), latest + tables.offset if latest else 0, began)


def _frame(row: dict[str, Any], seen: int) -> Frame:
    try:
        attributes = json.loads(row["attributes"] or "{}")
    except (ValueError, RecursionError):
        attributes = {}
    return Frame(
        name=row["name"],
        category=row["category"],
        start_ns=row["start_ns"],
        seconds=max(0, seen - row["start_ns"]) / 1e9,
        attributes=attributes if isinstance(attributes, dict) else {},
    )


def _last(tables: ProcessTables, seen: int) -> Last | None:
    """The span of the main thread that ended last; only its newest segment is read."""
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
            return Last(row["name"], row["category"], max(0, seen - row["end_ns"]) / 1e9)
    return None
