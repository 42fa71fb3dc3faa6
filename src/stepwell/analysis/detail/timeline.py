"""The timeline of a run for one screen: boxes of spans by process, thread and depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.detail.boxes import (
    ENTRY,
    FAILED,
    MAX_ROWS,
    NO_ID,
    OPEN,
    Entries,
    to_boxes,
)
from stepwell.analysis.detail.source import ProcessSource, RunSource, pack_id
from stepwell.analysis.time.phases import phase_of_span
from stepwell.reading import RecordedRun
from stepwell.reading import spans as reading_spans
from stepwell.reading.segments import RecordedSegment
from stepwell.reading.spans import SpanReader

Ints = NDArray[np.int64]

MAX_BOXES = 60_000
MAX_WIDTH = 8192
STEP_PIXELS = 40
"""Least distance of the beginnings of steps."""


@dataclass(frozen=True)
class SpanName:
    """The name of spans, with the phase that it stands for."""

    name: str
    category: str
    phase: str | None


@dataclass(frozen=True)
class LaneBoxes:
    """The boxes of one thread as parallel arrays, sorted by row and start.

    Attributes:
        row: the depth of the spans.
        start, end: nanoseconds since the run began.
        name: index in ``TimelineWindow.names``.
        count: the number of spans in the box. Above 1, ``name`` has most of their time.
        id: the id of the span if it is a single one, else -1.
        flags: 1 if a span in it is open, 2 if one failed.
    """

    label: str
    rank: int
    attempt: int
    process: str
    thread: str
    is_worker: bool
    row: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int64]
    count: NDArray[np.int64]
    id: NDArray[np.int64]
    flags: NDArray[np.int64]


@dataclass(frozen=True)
class StepMark:
    """The beginning of a step."""

    step: int
    start: int


@dataclass(frozen=True)
class TimelineWindow:
    """A part of the timeline. Times are nanoseconds since the run began (see ``source.began_ns``).

    Attributes:
        full: the first and last time of the whole run.
        names: the names of the boxes.
        lanes: the lanes from ``offset`` on.
        lane_count: the number of lanes of the run, or of the requested ranks.
        ranks: all ranks of the run.
        steps: beginnings of steps on the lowest rank, at least 40 pixels apart.
        missing: sealed segments that were not read because the time was up: ask again for the rest.
    """

    full: tuple[int, int]
    start: int
    end: int
    names: list[SpanName]
    lanes: list[LaneBoxes]
    lane_count: int
    offset: int
    ranks: list[int]
    steps: list[StepMark]
    missing: int = 0


def timeline_at(
    run: RecordedRun,
    start: int | None = None,
    end: int | None = None,
    width: int = 1500,
    *,
    ranks: Sequence[int] | None = None,
    offset: int = 0,
    lanes: int = 40,
    budget_s: float | None = None,
) -> TimelineWindow:
    """Return the boxes that touch a time window.

    Args:
        run: the run.
        start: the beginning of the window in ns since the run began; None for the beginning of the run.
        end: its end; None for the end of the run.
        width: the width of the screen in pixels: shorter spans are merged with their neighbours.
        ranks: only these ranks; None for all.
        offset: the number of lanes to skip.
        lanes: the maximum number of lanes.
        budget_s: seconds after which segments that are not cached yet are left out; None for no limit.
    """
    source = RunSource(run)
    processes = list(source.processes(ranks))
    full = _extent(processes)
    start = full[0] if start is None else start
    end = full[1] if end is None else end
    end = max(end, start + 1)
    width = min(max(1, width), MAX_WIDTH)
    pairs = [(p, lane) for p in processes for lane in _lanes(p)]
    names = _Names()
    read = [_entries(p, lane, start, end) for p, lane in pairs[offset : offset + lanes]]
    exponent = max(0, int(-(-(end - start) // width) - 1).bit_length())
    boxes = [to_boxes(entries, exponent) for entries in read]
    while sum(map(len, boxes)) > MAX_BOXES and exponent < 62:
        exponent += 1
        boxes = [to_boxes(entries, exponent) for entries in read]
    has_restarts = any(d["attempt"] for d in source.documents)
    return TimelineWindow(
        full=full,
        start=start,
        end=end,
        names=names.all,
        lanes=[
            _lane(p, lane, part, names, has_restarts)
            for (p, lane), part in zip(pairs[offset:], boxes, strict=False)
        ],
        lane_count=len(pairs),
        offset=offset,
        ranks=source.ranks,
        steps=_steps(processes, start, end, width),
    )


class _Names:
    """Collects the names of the boxes of all processes."""

    def __init__(self) -> None:
        self.all: list[SpanName] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, name: str, category: str) -> int:
        key = name, category
        if key not in self._numbers:
            self._numbers[key] = len(self.all)
            self.all.append(SpanName(name, category, phase_of_span(name, category)))
        return self._numbers[key]


def _extent(processes: list[ProcessSource]) -> tuple[int, int]:
    ends = [p.last_seen() + p.shift for p in processes]
    return 0, max([1, *ends])


def _lanes(source: ProcessSource) -> list[int]:
    return sorted({s.lane for s in source.process.of_kind("spans")})


def _entries(source: ProcessSource, lane: int, start: int, end: int) -> Entries:
    reader = SpanReader(source.process)
    parts = [_of_segment(source, reader, s) for s in reader.lanes[lane]]
    entries = np.concatenate([np.empty(0, ENTRY), *parts])
    touches = (entries["start"] < end - source.shift) & (entries["end"] >= start - source.shift)
    return entries[touches]


def _of_segment(source: ProcessSource, reader: SpanReader, segment: RecordedSegment) -> Entries:
    rows = reader.rows(segment)
    entries = np.empty(len(rows.id), ENTRY)
    entries["start"] = rows.start
    endless = rows.end == 0
    entries["end"] = np.where(endless, np.uint64(max(0, source.last_seen())), rows.end)
    entries["end"] = np.maximum(entries["end"], entries["start"])
    entries["busy"] = entries["end"] - entries["start"]
    entries["id"] = rows.id
    entries["name"] = rows.name
    entries["count"] = 1
    entries["row"] = np.minimum(rows.depth, MAX_ROWS - 1)
    entries["flags"] = np.where(endless, OPEN, 0)
    entries["flags"][rows.status == reading_spans.FAILED] = FAILED
    return entries


def _lane(
    source: ProcessSource, lane: int, boxes: Entries, names: _Names, has_restarts: bool
) -> LaneBoxes:
    about = source.process.about
    thread = source.tables.threads.get(lane, "")
    label = f"rank {source.rank}"
    if source.is_worker:
        label += " worker" if about["worker"] is None else f" worker {about['worker']}"
    label += f" · attempt {source.attempt}" if has_restarts else ""
    used, inverse = np.unique(boxes["name"], return_inverse=True)
    known = source.process.names
    lost = ("", "", "(name was lost)")
    numbers = [names.number(*reversed(known.get(int(i), lost)[1:])) for i in used]
    return LaneBoxes(
        label=f"{label} · {thread}",
        rank=source.rank,
        attempt=source.attempt,
        process=source.process.name,
        thread=thread,
        is_worker=source.is_worker,
        row=boxes["row"].astype(np.int64),
        start=boxes["start"] + source.shift,
        end=boxes["end"] + source.shift,
        name=np.array(numbers, np.int64)[inverse],
        count=boxes["count"].astype(np.int64),
        id=np.where(boxes["id"] == NO_ID, NO_ID, boxes["id"] + pack_id(source.number, 0)),
        flags=boxes["flags"].astype(np.int64),
    )


def _steps(processes: list[ProcessSource], start: int, end: int, width: int) -> list[StepMark]:
    """Return the beginnings of steps on the lowest rank, none closer to the last than 40 pixels."""
    mains = [p for p in processes if not p.is_worker]
    lowest = min((p.rank for p in mains), default=0)
    marks: list[StepMark] = []
    gap = STEP_PIXELS * (end - start) / width
    for source in mains:
        if source.rank != lowest:
            continue
        clock, step, _ = source.tables.context.changes()
        changed = np.concatenate([[True], step[1:] != step[:-1]])[: len(step)] & (step >= 0)
        times, numbers = clock[changed] + source.shift, step[changed]
        inside = (times >= start) & (times < end)
        for time, number in zip(times[inside].tolist(), numbers[inside].tolist(), strict=True):
            if not marks or time - marks[-1].start >= gap:
                marks.append(StepMark(number, time))
    return marks
