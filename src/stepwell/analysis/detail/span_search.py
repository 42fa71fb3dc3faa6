"""Spans by id, and spans whose name, category or attributes contain a text."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.detail.source import ProcessSource, RunSource, pack_id, unpack_id
from stepwell.analysis.timeline.intervals import Ints
from stepwell.journal.format import SLOT_BITS
from stepwell.journal.names import MAX_NAME
from stepwell.journal.tail import parse_object
from stepwell.reading import RecordedRun
from stepwell.reading.process import read_processes
from stepwell.reading.segments import RecordedSegment
from stepwell.reading.spans import SpanReader, SpanRows
from stepwell.reading.tables import SPANS, ProcessTables

Bools = NDArray[np.bool_]

MAX_HITS = 10_000
MAX_STATS = 200
"""Names with statistics, those with the most time."""
MAX_PATH = 200
MAX_EVENTS = 1000


@dataclass(frozen=True)
class SpanHit:
    """One span. ``start`` is in ns since the run began; ``duration_ns`` is None for an open span."""

    id: int
    name: str
    category: str
    rank: int
    attempt: int
    process: str
    thread: str
    step: int | None
    start: int
    duration_ns: int | None
    status: str


@dataclass(frozen=True)
class SpanEvent:
    """An event on a span."""

    name: str
    time: int
    attributes: dict[str, Any]


@dataclass(frozen=True)
class SpanDetail(SpanHit):
    """One span with all that was recorded of it. ``path`` has the names of the spans around it."""

    epoch: int | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    events: tuple[SpanEvent, ...] = ()


@dataclass(frozen=True)
class NameStats:
    """The durations of the spans of one name, as far as they were searched."""

    name: str
    count: int
    total_ns: int
    p50_ns: int
    max_ns: int


@dataclass(frozen=True)
class SpanSearch:
    """The spans that match, the earliest first. ``more``: there are others, or the time was up."""

    hits: list[SpanHit]
    more: bool
    stats: list[NameStats]


def search_spans(
    run: RecordedRun, text: str, limit: int = 200, *, budget_s: float = 2.0
) -> SpanSearch:
    """Return spans whose name, category or attributes contain a text, in any case.

    Args:
        run: the run.
        text: the text.
        limit: the maximum number of spans.
        budget_s: seconds after which the search ends.
    """
    limit = min(max(0, limit), MAX_HITS)
    until = time.monotonic() + budget_s
    search = _Search(text.lower(), limit)
    for source in RunSource(run).processes():
        matches = search.names(source)
        for segment in source.reader.segments:
            if time.monotonic() > until:
                return search.result(is_cut=True)
            search.add(source, segment, matches)
    return search.result()


class _Search:
    """Collects the spans that contain a text."""

    def __init__(self, text: str, limit: int) -> None:
        self._text = text
        self._limit = limit
        self._hits: list[tuple[int, ProcessSource, RecordedSegment, SpanRows]] = []
        self._count = 0
        self._durations: dict[str, list[Ints]] = {}

    def names(self, source: ProcessSource) -> Bools:
        """Return which names of a process contain the text, or have a category that does."""
        names = source.process.names
        matches = np.zeros(max(names, default=0) + 2, bool)
        for number, (_, category, name) in names.items():
            matches[number] = self._text in name.lower() or self._text in category.lower()
        return matches

    def add(self, source: ProcessSource, segment: RecordedSegment, matches: Bools) -> None:
        """Search one segment. ``matches`` are the names that contain the text."""
        attributes = source.texts.get(segment.seq)
        texts = {} if attributes is None else attributes.texts
        offsets = [offset for offset, text in texts.items() if self._text in text.lower()]
        if not offsets and not matches.any():
            return
        rows = source.reader.rows(segment, depths=False)
        chosen = matches[np.minimum(rows.name, len(matches) - 1)]
        if offsets:
            chosen |= np.isin(rows.attributes, offsets)
        if not chosen.any():
            return
        rows = rows.where(chosen)
        self._count += len(rows.id)
        self._add_durations(source, rows)
        first = np.argsort(rows.start, kind="stable")[: self._limit]
        part = rows.where(first)
        self._hits += [
            (int(part.start[i]) + source.shift, source, segment, part.where(np.array([i])))
            for i in range(len(part.id))
        ]
        if len(self._hits) > 4 * self._limit:
            self._trim()

    def _add_durations(self, source: ProcessSource, rows: SpanRows) -> None:
        ended = rows.end != 0
        durations = (rows.end - rows.start)[ended].astype(np.int64)
        ids = rows.name[ended]
        for number in np.unique(ids).tolist():
            name = source.name(number)[0]
            self._durations.setdefault(name, []).append(durations[ids == number])

    def _trim(self) -> None:
        self._hits.sort(key=lambda hit: hit[0])
        del self._hits[self._limit :]

    def result(self, is_cut: bool = False) -> SpanSearch:
        """Return the earliest hits and the statistics."""
        self._trim()
        hits = [
            SpanHit(**_read(source, segment, rows)[0]) for _, source, segment, rows in self._hits
        ]
        stats = [_stats(name, np.concatenate(parts)) for name, parts in self._durations.items()]
        stats.sort(key=lambda line: -line.total_ns)
        return SpanSearch(hits, is_cut or self._count > len(hits), stats[:MAX_STATS])


def _stats(name: str, durations: Ints) -> NameStats:
    return NameStats(
        name,
        len(durations),
        int(durations.sum()),
        int(np.percentile(durations, 50, method="lower")) if len(durations) else 0,
        int(durations.max(initial=0)),
    )


def _read(
    source: ProcessSource,
    segment: RecordedSegment,
    rows: SpanRows,
    tables: ProcessTables | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of ``SpanHit`` of a single span, and its row in the table of spans."""
    texts = source.texts.get(segment.seq)
    row = (tables or source.tables).span_frame(segment, rows, texts, set(SPANS)).row(0, named=True)
    fields = {
        **{key: row[key][:MAX_NAME] for key in ("name", "category", "process", "thread")},
        **{key: row[key] for key in ("rank", "attempt")},
        "id": pack_id(source.number, int(rows.id[0])),
        "step": row["step"],
        "start": row["start_ns"] - source.tables.offset + source.shift,
        "duration_ns": row["duration_ns"],
        "status": row["status"],
    }
    return fields, row


def span_detail(run: RecordedRun, span_id: int, start: int | None = None) -> SpanDetail | None:
    """Return the span with this id; None if there is none.

    ``start`` is when it began, if that is known, in ns since the run began: a span that began at another
    time is not returned.
    """
    number, local = unpack_id(span_id)
    source = RunSource(run).process_numbered(number)
    if source is None:
        return None
    place = _find(source.reader, local)
    if place is None:
        return None
    segment, rows = place
    late = _lines_about(source, local)
    fields, row = _read(source, segment, rows, late)
    if start is not None and fields["start"] != start:
        return None
    return SpanDetail(
        **fields,
        epoch=row["epoch"],
        attributes=parse_object(row["attributes"] or "") or {},
        path=_path(source, int(rows.parent[0])),
        events=_events(source, late, local),
    )


def _find(reader: SpanReader, local: int) -> tuple[RecordedSegment, SpanRows] | None:
    """Return the segment in which a span ended, or is open, and its row."""
    last = reader.went_on_in(local)
    wanted = {local >> SLOT_BITS} if last is None else {last, local >> SLOT_BITS}
    for segment in sorted(reader.segments, key=lambda s: -s.seq):
        if segment.seq in wanted:
            rows = reader.rows(segment, depths=False)
            chosen = np.flatnonzero(rows.id == local)
            if len(chosen):
                return segment, rows.where(chosen[:1])
    return None


def _path(source: ProcessSource, parent: int) -> tuple[str, ...]:
    """Return the names of the spans around a span, outermost first."""
    names: list[str] = []
    by_seq = {segment.seq: segment for segment in source.reader.segments}
    rows: SpanRows | None = None
    while parent >= 0 and len(names) < MAX_PATH:
        if rows is None or parent not in rows.id:
            segment = by_seq.get(parent >> SLOT_BITS)
            if segment is None:
                break
            rows = source.reader.rows(segment, carried=True, depths=False)
        at = np.flatnonzero(rows.id == parent)
        if not len(at):
            break
        number, parent = int(rows.name[at[0]]), int(rows.parent[at[0]])
        names.append(source.name(number)[0])
    return tuple(reversed(names))


def _lines_about(source: ProcessSource, local: int) -> ProcessTables:
    """Return the process with only those of its event lines that are about a span."""
    name = source.process.name
    names_it = re.compile(rf'"span": ?{local}[,}}]')
    whole = next((p for p in read_processes(source.process.home) if p.name == name), None)
    lines = [] if whole is None else [line for line in whole.event_lines if names_it.search(line)]
    process = replace(source.process, event_lines=lines)
    tables = source.tables
    return ProcessTables(process, tables.context, tables.offset, 0, tables.run)


def _events(source: ProcessSource, late: ProcessTables, local: int) -> tuple[SpanEvent, ...]:
    wanted = {"name", "time_ns", "span", "attributes"}
    shift = source.shift - source.tables.offset
    return tuple(
        SpanEvent(row["name"], row["time_ns"] + shift, parse_object(row["attributes"] or "") or {})
        for frame in late.events(wanted)
        for row in frame.head(MAX_EVENTS).iter_rows(named=True)
        if row["span"] == local
    )
