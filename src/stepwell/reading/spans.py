"""The spans of a segment as rows: ids, parents, depths, statuses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.journal.format import (
    ABANDONED,
    ATTRIBUTE_SHIFT,
    CARRIED,
    ERROR,
    LINK_NAME,
    NAME_SHIFT,
    SLOT_BITS,
    SLOT_MASK,
    SPAN_SLOTS,
    TIME_MASK,
    span_id,
)
from stepwell.reading.process import Process
from stepwell.reading.segments import RecordedSegment

STATUSES = ("ok", "error", "open", "unfinished")
OK, FAILED, OPEN, UNFINISHED = range(4)
MAX_LEVEL = 200
"""Segments visited for the depth of one span: links of a malicious file may never end."""

Array = NDArray[Any]


@dataclass(frozen=True)
class SpanRows:
    """The spans of one segment; ``parent`` is -1 for none."""

    id: Array
    parent: Array
    depth: Array
    name: Array
    start: Array
    end: Array
    status: Array
    attributes: Array

    def where(self, keep: Array) -> SpanRows:
        """Return the rows for which this mask is true."""
        return SpanRows(*(getattr(self, entry.name)[keep] for entry in fields(self)))


class SpanReader:
    """Reads the span segments of one process, and finds the segments in which spans continue.

    ``lanes`` has its segments by lane, oldest first.
    """

    def __init__(self, process: Process) -> None:
        self.segments = process.of_kind("spans")
        self._by_seq = {segment.seq: segment for segment in self.segments}
        self._depths: dict[int, Array] = {}
        self._level = 0
        self.lanes: dict[int, list[RecordedSegment]] = {}
        self._continued: dict[int, int] = {}
        for segment in self.segments:
            self.lanes.setdefault(segment.lane, []).append(segment)
            # Oldest first, so that the last segment of each span remains.
            self._continued.update((o, segment.seq) for _, o in _continuations(segment))
        self._open_from: dict[int, int] = {}

    def went_on_in(self, identity: int) -> int | None:
        """Return the number of the last segment in which a span continued; None if it did not."""
        return self._continued.get(identity)

    def rows(
        self, segment: RecordedSegment, carried: bool = False, depths: bool = True
    ) -> SpanRows:
        """Return the spans of a segment.

        Spans that continue in a later segment are left out, or with ``carried`` included without an end.
        Without ``depths`` all depths are 0, which avoids reading other segments.
        """
        meta, start, end = segment.columns
        name = ((meta >> NAME_SHIFT) & 0xFFFFFF).astype(np.int64)
        published = (start != 0) & (meta != 0)
        links = np.flatnonzero(published & (name == LINK_NAME))
        identity = np.arange(len(start), dtype=np.int64) + span_id(segment.seq, 0)
        target = (meta[links] & SLOT_MASK).astype(np.int64)
        inside = target < len(start)
        identity[target[inside]] = start[links[inside]].astype(np.int64) - 1
        parent = _parents(meta, start)
        depth = np.zeros(len(start), np.int32)
        if depths:
            depth = _depths(parent, self._bases(meta, start, links))
        keep = published.copy()
        keep[links] = False
        if not carried:
            keep &= (end & CARRIED) == 0
            for slot in np.flatnonzero(keep & (end == 0)).tolist():
                # The process was killed after copying an open span, before marking the original.
                keep[slot] = self._continued.get(int(identity[slot]), -1) <= segment.seq
        status = np.where(end & ERROR != 0, FAILED, OK)
        status[end & ABANDONED != 0] = UNFINISHED
        status[end & CARRIED != 0] = UNFINISHED
        endless = end == 0
        if endless[keep].any():
            is_last = segment.seq >= self._first_open(segment.lane)
            status[endless] = OPEN if is_last else UNFINISHED
        kept = as_slice(keep)
        return SpanRows(
            id=identity[kept],
            parent=np.where(parent > 0, identity[parent], -1)[kept],
            depth=depth[kept],
            name=name[kept],
            start=start[kept],
            end=(end & TIME_MASK)[kept],
            status=status[kept],
            attributes=(meta >> ATTRIBUTE_SHIFT)[kept].astype(np.int64),
        )

    def _first_open(self, lane: int) -> int:
        if lane not in self._open_from:
            self._open_from[lane] = _open_from(self.lanes[lane])
        return self._open_from[lane]

    def _bases(self, meta: Array, start: Array, links: Array) -> Array:
        """Return the depths of proxy rows, which stand for spans of other segments; 0 for other rows."""
        base = np.zeros(len(start), np.int32)
        for slot in links[(meta[links] & SLOT_MASK) == links]:
            base[slot] = self._depth_of(int(start[slot]) - 1)
        return base

    def _depth_of(self, identity: int) -> int:
        """Return the depth of a span that began in another segment."""
        seq, slot = identity >> SLOT_BITS, identity % SPAN_SLOTS
        if seq not in self._depths:
            # Set before the recursion, in case a damaged file links to itself.
            self._depths[seq] = np.zeros(0, np.int32)
            if seq in self._by_seq and self._level < MAX_LEVEL:
                self._level += 1
                meta, start, _ = self._by_seq[seq].columns
                is_link = (start != 0) & ((meta >> NAME_SHIFT) & 0xFFFFFF == LINK_NAME)
                base = self._bases(meta, start, np.flatnonzero(is_link))
                self._depths[seq] = _depths(_parents(meta, start), base)
                self._level -= 1
        depths = self._depths[seq]
        return int(depths[slot]) if slot < len(depths) else 0


def as_slice(keep: Array) -> Array | slice:
    """Return a mask as a slice if all rows from some row on are kept: then nothing is copied."""
    first = int(keep.argmax()) if len(keep) else 0
    return slice(first, None) if keep[first:].all() else keep


def _open_from(segments: list[RecordedSegment]) -> int:
    """Return the number of the first segment of a lane, given in order, whose spans may still be open.

    It is the last one, unless the writer was still copying open spans into it when it was read: then the
    last one has no span of its own, and none of the previous one is marked as carried.
    """
    *earlier, last = segments
    meta, start, _ = last.columns
    own = start != 0
    own[(meta >> NAME_SHIFT) & 0xFFFFFF == LINK_NAME] = False
    own[[target for target, _ in _continuations(last) if target < len(own)]] = False
    if earlier and not own.any() and not (earlier[-1].columns[2] & CARRIED != 0).any():
        return earlier[-1].seq
    return last.seq


def may_be_open(segment: RecordedSegment) -> bool:
    """Return whether a segment may contain spans without an end."""
    return segment.sealed is None or bool(segment.header.get("open", 1))


def _continuations(segment: RecordedSegment) -> list[tuple[int, int]]:
    """Return (slot, span id) of the spans that continue in this segment."""
    if segment.sealed is not None:
        entries = segment.header.get("links")
        pairs = [p for p in entries if isinstance(p, list)] if isinstance(entries, list) else []
        links = [(p[0], p[1]) for p in pairs if len(p) == 2 and all(isinstance(n, int) for n in p)]
    else:
        meta, start, _ = segment.columns
        slots = np.flatnonzero((start != 0) & ((meta >> NAME_SHIFT) & 0xFFFFFF == LINK_NAME))
        links = [(int(meta[s] & SLOT_MASK), int(start[s]) - 1) for s in slots]
        # A link to itself is a proxy: the span does not continue here.
        links = [(t, o) for s, (t, o) in zip(slots, links, strict=True) if t != s]
        links = [(t, o) for t, o in links if t < len(start) and start[t]]
    return links


def _parents(meta: Array, start: Array) -> Array:
    """Return parent slots; a parent that was never published (interrupt) is replaced by its parent."""
    parent = (meta & SLOT_MASK).astype(np.int64)
    parent[parent >= len(meta)] = 0
    # A parent always has a lower slot than its child; anything else is damage.
    parent[parent >= np.arange(len(meta))] = 0
    for _ in range(64):
        hole = (parent > 0) & (start[parent] == 0)
        if not hole.any():
            break
        parent[hole] = parent[parent[hole]]
    return parent


def _depths(parent: Array, base: Array) -> Array:
    """Return the number of ancestors of each slot, plus the base depth of its outermost ancestor."""
    depth = np.zeros(len(parent), np.int32)
    top = np.arange(len(parent))
    above = parent.copy()
    while (above > 0).any():
        depth[above > 0] += 1
        top = np.where(above > 0, above, top)
        above = parent[above]
    return depth + base[top]
