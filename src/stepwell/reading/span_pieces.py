"""Spans segment by segment, each in the segment in which it began, with its end from a later one.

In the tables a span is in the segment in which it ended. Trace exports need parents before children, and for
a window also the spans that began before it or end after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stepwell.journal.format import SLOT_BITS
from stepwell.reading.segments import RecordedSegment, Window, spans_touched
from stepwell.reading.spans import SpanReader, SpanRows
from stepwell.reading.tables import SPANS, ProcessTables

COLUMNS = (
    "id",
    "parent",
    "start_ns",
    "duration_ns",
    "status",
    "name",
    "category",
    "step",
    "epoch",
    "attributes",
)


class SpanPieces:
    """The spans of one process, a segment at a time, the lanes one after the other.

    Args:
        tables: the process.
        window: only spans that overlap with it. Segments without any are not unpacked, except those with
            the end of a span that encloses the window.
        depths: whether rows have the depth of the span as a last value.
    """

    def __init__(
        self, tables: ProcessTables, window: Window | None = None, depths: bool = False
    ) -> None:
        self._tables = tables
        self._window = window
        self._depths = depths
        self._reader = SpanReader(tables.process)
        self._by_seq = {s.seq: s for s in self._reader.segments}
        self._texts = {s.seq: s for s in tables.process.of_kind("attributes")}
        self._names = (*COLUMNS, "depth") if depths else COLUMNS
        self._wanted = {name for name in SPANS if name in self._names}
        self._ends: dict[int, dict[int, Any]] = {}
        self._elsewhere: dict[int, SpanRows] = {}

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        for lane, segments in sorted(self._reader.lanes.items()):
            yield from ((lane, rows) for rows in self._of_lane(segments))

    def _of_lane(self, segments: list[RecordedSegment]) -> Iterator[list[Any]]:
        chosen = segments if self._window is None else spans_touched(segments, self._window)
        numbers = {segment.seq for segment in chosen}
        # A span that began before the window is returned once, in the first segment that has it.
        before: set[int] = set()
        for segment in chosen:
            rows = self._reader.rows(segment, carried=True, depths=self._depths)
            origins = rows.id >> SLOT_BITS
            keep = origins == segment.seq
            for at in np.flatnonzero(~keep).tolist():
                identity = int(rows.id[at])
                if int(origins[at]) not in numbers and identity not in before:
                    before.add(identity)
                    keep[at] = True
            yield self._rows(segment, self._within(segment, rows.where(keep)))

    def _within(self, segment: RecordedSegment, rows: SpanRows) -> SpanRows:
        """Return the rows that overlap with the window."""
        if self._window is None:
            return rows
        begin, end = self._window
        ends = rows.end.copy()
        for at in np.flatnonzero(ends == 0).tolist():
            last = self._last(segment, int(rows.id[at]))
            elsewhere = None if last is None else self._from_elsewhere(last)
            if elsewhere is not None:
                ends[at] = elsewhere.end[elsewhere.id == rows.id[at]].max(initial=0)
        is_over = (ends != 0) & (ends <= begin) & (rows.start < begin)
        return rows.where((rows.start < end) & ~is_over)

    def _rows(self, segment: RecordedSegment, rows: SpanRows) -> list[Any]:
        """Return the values of these rows; for continued spans, those of their last segment."""
        values = self._values(segment, rows)
        for at in np.flatnonzero(rows.end == 0).tolist():
            last = self._last(segment, int(rows.id[at]))
            if last is not None:
                values[at] = self._ends_in(last).get(values[at][0], values[at])
        # Ordered by start, which differs from the order of slots if a span was opened with an earlier start.
        if (np.diff(rows.start.astype(np.int64)) < 0).any():
            values.sort(key=lambda row: row[2])
        return values

    def _values(self, segment: RecordedSegment, rows: SpanRows) -> list[Any]:
        texts = self._texts.get(segment.seq)
        frame = self._tables.span_frame(segment, rows, texts, self._wanted)
        return list(frame.select(self._names).rows())

    def _last(self, segment: RecordedSegment, identity: int) -> RecordedSegment | None:
        """Return the last segment in which a span continued, if it is a later one."""
        seq = self._reader.went_on_in(identity)
        return None if seq is None or seq <= segment.seq else self._by_seq.get(seq)

    def _ends_in(self, segment: RecordedSegment) -> dict[int, Any]:
        """Return the spans that ended in this segment but began in another, by their id in the tables."""
        if segment.seq not in self._ends:
            rows = self._within(segment, self._from_elsewhere(segment))
            self._ends[segment.seq] = {row[0]: row for row in self._values(segment, rows)}
        return self._ends[segment.seq]

    def _from_elsewhere(self, segment: RecordedSegment) -> SpanRows:
        """Return the rows of spans that began in another segment; there are few, so they are cached."""
        if segment.seq not in self._elsewhere:
            rows = self._reader.rows(segment, carried=True, depths=self._depths)
            self._elsewhere[segment.seq] = rows.where(rows.id >> SLOT_BITS != segment.seq)
        return self._elsewhere[segment.seq]
