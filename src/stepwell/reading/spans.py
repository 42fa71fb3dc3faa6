"""Span segments as rows: identities, parents, depths, states."""

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
from stepwell.reading.segments import Segment

STATUSES = ("ok", "error", "open", "unfinished")
OK, FAILED, OPEN, UNFINISHED = range(4)
MAX_LEVEL = 200
"""How many segments are gone through for the depth of one span; a stranger's may lead on and on."""

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
        """Those of them for which this is true."""
        return SpanRows(*(getattr(self, entry.name)[keep] for entry in fields(self)))


class SpanReader:
    """Reads the span segments of one process; knows which spans went on in a later segment."""

    def __init__(self, process: Process) -> None:
        self.segments = process.of_kind("spans")
        self._by_seq = {segment.seq: segment for segment in self.segments}
        self._depths: dict[int, Array] = {}
        self._level = 0
        lanes: dict[int, list[Segment]] = {}
        self._continued: dict[int, int] = {}
        for segment in self.segments:
            lanes.setdefault(segment.lane, []).append(segment)
            # Oldest first, so what stays is the last segment that each went on in.
            self._continued.update((o, segment.seq) for _, o in _continuations(segment))
        self._lanes = lanes
        self._open_from: dict[int, int] = {}

    def went_on_in(self, identity: int) -> int | None:
        """Number of the last segment that a span went on in; None when it ended where it began."""
        return self._continued.get(identity)

    def rows(self, segment: Segment, carried: bool = False, depths: bool = True) -> SpanRows:
        """The spans of a segment, those that went on elsewhere left out, or here without an end.

        Without ``depths`` these are all 0: to know them, other segments may have to be read.
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
                # Killed between copying an open span and marking the copied one.
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
            self._open_from[lane] = _open_from(self._lanes[lane])
        return self._open_from[lane]

    def _bases(self, meta: Array, start: Array, links: Array) -> Array:
        """Depths of the slots that stand for spans of other segments; 0 for all others."""
        base = np.zeros(len(start), np.int32)
        for slot in links[(meta[links] & SLOT_MASK) == links]:
            base[slot] = self._depth_of(int(start[slot]) - 1)
        return base

    def _depth_of(self, identity: int) -> int:
        """Depth of a span that another segment began."""
        seq, slot = identity >> SLOT_BITS, identity % SPAN_SLOTS
        if seq not in self._depths:
            # Known from here on, in case a damaged file leads back to itself.
            self._depths[seq] = np.zeros(0, np.int32)
            if seq in self._by_seq and self._level < MAX_LEVEL:
                self._level += 1
                meta, start, _ = self._by_seq[seq].columns
                is_link = (start != 0) & ((meta >> NAME_SHIFT) & 0xFFFFFF == LINK_NAME)
                base = self._bases(meta, start, np.flatnonzero(is_link))
                self._depths[seq] = _depths(_parents(meta, start), base)
                self._level -= 1
        found = self._depths[seq]
        return int(found[slot]) if slot < len(found) else 0


def as_slice(keep: Array) -> Array | slice:
    """The same as a slice where all from one on are kept, as most are: nothing is copied then."""
    first = int(keep.argmax()) if len(keep) else 0
    return slice(first, None) if keep[first:].all() else keep


def _open_from(segments: list[Segment]) -> int:
    """Number of the first segment of a lane, given in order, whose spans may still be open.

    That is the last one, unless its writer had not yet taken everything along when it was read:
    then nothing of its own is in the last one, and nothing in the one before is marked as carried.
    """
    *earlier, last = segments
    meta, start, _ = last.columns
    own = start != 0
    own[(meta >> NAME_SHIFT) & 0xFFFFFF == LINK_NAME] = False
    own[[target for target, _ in _continuations(last) if target < len(own)]] = False
    if earlier and not own.any() and not (earlier[-1].columns[2] & CARRIED != 0).any():
        return earlier[-1].seq
    return last.seq


def may_be_open(segment: Segment) -> bool:
    """Whether a segment may hold spans without an end."""
    return segment.sealed is None or bool(segment.header.get("open", 1))


def _continuations(segment: Segment) -> list[tuple[int, int]]:
    """(slot, identity) of the spans that went on in this segment."""
    if segment.sealed is not None:
        found = segment.header.get("links")
        pairs = [p for p in found if isinstance(p, list)] if isinstance(found, list) else []
        links = [(p[0], p[1]) for p in pairs if len(p) == 2 and all(isinstance(n, int) for n in p)]
    else:
        meta, start, _ = segment.columns
        slots = np.flatnonzero((start != 0) & ((meta >> NAME_SHIFT) & 0xFFFFFF == LINK_NAME))
        links = [(int(meta[s] & SLOT_MASK), int(start[s]) - 1) for s in slots]
        # A link to itself stands for a span; the span does not go on here.
        links = [(t, o) for s, (t, o) in zip(slots, links, strict=True) if t != s]
        links = [(t, o) for t, o in links if t < len(start) and start[t]]
    return links


def _parents(meta: Array, start: Array) -> Array:
    """Parent slots; a parent that was never published (an interrupt) is passed over."""
    parent = (meta & SLOT_MASK).astype(np.int64)
    parent[parent >= len(meta)] = 0
    # A parent is always entered before its child; anything else is damage.
    parent[parent >= np.arange(len(meta))] = 0
    for _ in range(64):
        hole = (parent > 0) & (start[parent] == 0)
        if not hole.any():
            break
        parent[hole] = parent[parent[hole]]
    return parent


def _depths(parent: Array, base: Array) -> Array:
    """Number of ancestors of each slot, added to what its outermost one has as its base."""
    depth = np.zeros(len(parent), np.int32)
    top = np.arange(len(parent))
    above = parent.copy()
    while (above > 0).any():
        depth[above > 0] += 1
        top = np.where(above > 0, above, top)
        above = parent[above]
    return depth + base[top]
