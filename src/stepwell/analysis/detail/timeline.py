"""The timeline of a run for one screen: boxes of spans by process, thread and depth."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.analysis.detail.boxes import NO_ID, Entries, merge_entries, to_boxes
from stepwell.analysis.detail.columns import ProcessMetrics
from stepwell.analysis.detail.pyramid import MAX_EXPONENT, load_lane
from stepwell.analysis.detail.source import ProcessSource, RunSource, pack_id
from stepwell.analysis.timeline.intervals import Ints
from stepwell.analysis.timeline.phases import GARBAGE, code_of, phase_of_span
from stepwell.analysis.timeline.phases import NAMES as PHASE_NAMES
from stepwell.reading import RecordedRun

Names = dict[tuple[str, str], int]
"""The numbers of names with their categories."""

MAX_BOXES = 60_000
MAX_WIDTH = 8192
MAX_LANES = 500
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
    row: Ints
    start: Ints
    end: Ints
    name: Ints
    count: Ints
    id: Ints
    flags: Ints


@dataclass(frozen=True)
class StepMark:
    """The beginning of a step."""

    step: int
    start: int


@dataclass(frozen=True)
class TimelineWindow:
    """A part of the timeline. Times are nanoseconds since the run began (see ``timeline.began_ns``).

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
    until = None if budget_s is None else time.monotonic() + budget_s
    source = RunSource(run)
    outlines = source.outlines(ranks)
    full = 0, source.end(outlines)
    start = full[0] if start is None else start
    end = max(full[1] if end is None else end, start + 1)
    width = min(max(1, width), MAX_WIDTH)
    pairs = [(outline, lane) for outline in outlines for lane in outline.lanes]
    shown = pairs[max(0, offset) :][: min(max(0, lanes), MAX_LANES)]
    opened = [(source.open(outline), lane) for outline, lane in shown]
    exponent = int(-(-(end - start) // width) - 1).bit_length()
    loads = [
        (p, lane, *load_lane(p, lane, (start - p.shift, end - p.shift), exponent, until))
        for p, lane in opened
        if p is not None
    ]
    boxes = _bounded([entries for _, _, entries, _ in loads], exponent)
    names: Names = {}
    has_restarts = any(d["attempt"] for d in source.documents)
    shown_lanes = [
        _lane(p, lane, part, names, has_restarts)
        for (p, lane, *_), part in zip(loads, boxes, strict=True)
    ]
    return TimelineWindow(
        full=full,
        start=start,
        end=end,
        names=[SpanName(*key, _phase(*key)) for key in names],
        lanes=shown_lanes,
        lane_count=len(pairs),
        offset=offset,
        ranks=source.ranks,
        steps=_steps(source, start, end, width),
        missing=sum(missing for *_, missing in loads),
    )


def _phase(name: str, category: str) -> str | None:
    """Return the phase of a span as in the time table, which has a line for garbage collection."""
    if code_of(name, category) == GARBAGE:
        return PHASE_NAMES[GARBAGE]
    return phase_of_span(name, category)


def _bounded(entries: list[Entries], exponent: int) -> list[Entries]:
    """Return the boxes of lanes; merged further if there are too many."""
    boxes = [to_boxes(part, exponent) for part in entries]
    while sum(map(len, boxes)) > MAX_BOXES and exponent < MAX_EXPONENT:
        exponent += 1
        entries = [merge_entries(part, exponent) for part in entries]
        boxes = [to_boxes(part, exponent) for part in entries]
    return boxes


def _lane(
    source: ProcessSource, lane: int, boxes: Entries, names: Names, has_restarts: bool
) -> LaneBoxes:
    document = source.process.document
    thread = source.thread(lane)
    label = f"rank {source.rank}"
    if source.is_worker:
        label += " worker" if document["worker"] is None else f" worker {document['worker']}"
    label += f" · attempt {source.attempt}" if has_restarts else ""
    used, inverse = np.unique(boxes["name"], return_inverse=True)
    numbers = [names.setdefault(source.name(int(i)), len(names)) for i in used]
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


def _steps(source: RunSource, start: int, end: int, width: int) -> list[StepMark]:
    """Return the beginnings of steps on the lowest rank, none closer to the last than 40 pixels."""
    marks: list[StepMark] = []
    gap = STEP_PIXELS * (end - start) / width
    for process in source.processes(source.ranks[:1]):
        if process.is_worker:
            continue
        log = ProcessMetrics(process).steps
        changed = log.steps >= 0
        changed[1:] &= log.steps[1:] != log.steps[:-1]
        times, numbers = log.clock[changed] + process.shift, log.steps[changed]
        at = int(np.searchsorted(times, start))
        while at < len(times) and times[at] < end:
            marks.append(StepMark(int(numbers[at]), int(times[at])))
            at = max(at + 1, int(np.searchsorted(times, times[at] + gap)))
    return marks
