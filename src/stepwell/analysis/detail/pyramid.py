"""The spans of a lane at any resolution, from cached levels of sealed segments and from live ones.

A sealed segment never changes. Its spans are merged into entries (see ``boxes``) at growing exponents, from
the one at which half as many entries are left up to a few entries, and stored in the cache, 32 segments to a
file. A window reads the segments that touch it: the level that its resolution needs, or for few spans the
segments themselves. Spans that continue in other segments are stored beside the levels.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepwell.analysis.cache import Shelf, memory, read_shelf, shelf_path, write_shelf
from stepwell.analysis.detail.boxes import (
    ENTRY,
    FAILED,
    MAX_ROWS,
    OPEN,
    Entries,
    is_narrow,
    join_entries,
    merge_entries,
)
from stepwell.analysis.detail.source import ProcessSource, by_group, fingerprint
from stepwell.journal.format import SLOT_BITS
from stepwell.reading import spans as reading_spans
from stepwell.reading.segments import RecordedSegment, ends_of, spans_touched

FEW = 3
"""Segments of a lane that are read as they are, instead of being merged for the cache."""
SMALL = 64
"""Entries of the coarsest level."""
STEP = 0.7
"""A level is stored if it has at most this share of the entries of the level before."""
MAX_EXPONENT = 60
CROSSING = "crossing"


@dataclass(frozen=True)
class SegmentEntries:
    """The spans of a segment.

    Attributes:
        entries: spans that began and ended in the segment, merged up to some exponent.
        crossing: spans that began in another segment, or have no end in this one (then ``end`` is 0).
    """

    entries: Entries
    crossing: Entries


def load_lane(
    source: ProcessSource,
    lane: int,
    window: tuple[int, int],
    exponent: int,
    until: float | None = None,
) -> tuple[Entries, int]:
    """Return the spans of a lane that touch a window; of short ones, those that begin in it.

    Also return the number of segments that were left out because the time was up.

    Args:
        source: the process.
        lane: the number of the lane.
        window: the beginning and the end, on the clock of the process.
        exponent: spans may be merged in buckets of up to ``2**exponent`` ns.
        until: when to stop reading segments that are not cached, by ``time.monotonic``.
    """
    # Whole buckets, so that a short span is in the same box whatever the window is.
    first, end = window[0] >> exponent << exponent, -(-window[1] >> exponent) << exponent
    segments = source.reader.lanes.get(lane, [])
    touched = spans_touched(segments, (max(0, first), max(0, end)))
    levels = SegmentLevels(source)
    parts = levels.load(touched, exponent, until)
    crossing = join_entries(part.crossing for part in parts)
    complete = _complete(source, levels, segments, crossing)
    entries = join_entries([*(part.entries for part in parts), complete])
    touches = (entries["end"] >= first) & ~is_narrow(entries, exponent)
    touches |= entries["start"] >= first
    touches &= entries["start"] < end
    return entries[touches], len(touched) - len(parts)


def _complete(
    source: ProcessSource,
    levels: SegmentLevels,
    segments: Sequence[RecordedSegment],
    crossing: Entries,
) -> Entries:
    """Return each crossing span once, with the end from the last segment in which it continued."""
    ended = crossing[crossing["end"] != 0]
    rest = crossing[crossing["end"] == 0]
    rest = rest[~np.isin(rest["id"], ended["id"])]
    by_last: dict[int, list[int]] = {}
    for identity in np.unique(rest["id"]).tolist():
        seq = source.reader.went_on_in(identity)
        by_last.setdefault(identity >> SLOT_BITS if seq is None else seq, []).append(identity)
    parts = [ended]
    for segment in segments:
        if segment.seq in by_last:
            rows = levels.load([segment], MAX_EXPONENT, None)[0].crossing
            rows = rows[np.isin(rows["id"], by_last[segment.seq])]
            is_endless = rows["end"] == 0
            parts.append(rows[~is_endless])
            if is_endless.any():
                parts.append(_until_now(source, segment, rows[is_endless]))
    return join_entries(parts)


def _until_now(source: ProcessSource, segment: RecordedSegment, rows: Entries) -> Entries:
    """Return open spans with an end: now, or the last sign of life of their process.

    The end of an unfinished span is unknown: it is drawn up to the last record of its segment.
    """
    endless = source.endless(segment)
    rows = rows[[identity in endless for identity in rows["id"].tolist()]]
    is_open = np.array([endless[identity] for identity in rows["id"].tolist()], bool)
    last = np.where(is_open, source.last_seen, ends_of(segment))
    rows["end"] = np.maximum(last, rows["start"])
    rows["busy"] = rows["end"] - rows["start"]
    rows["flags"] = OPEN
    return rows


# Segments


class SegmentLevels:
    """The span segments of a process at several exponents, from the cache or made for it."""

    def __init__(self, source: ProcessSource) -> None:
        self._source = source
        self._shelves: dict[int, Shelf] = {}

    def load(
        self, segments: Sequence[RecordedSegment], exponent: int, until: float | None
    ) -> list[SegmentEntries]:
        """Return the spans of segments of one lane, those of sealed segments merged.

        Segments that are not cached are left out after ``until``.
        """
        live = [segment for segment in segments if segment.sealed is None]
        parts = [read_segment(self._source, segment) for segment in live]
        missing: list[RecordedSegment] = []
        for group, members in by_group(segments).items():
            cached, others = self._cached(group, members, exponent)
            parts += cached
            missing += others
        if len(segments) <= FEW:
            return parts + [self._whole(segment) for segment in missing]
        for group, members in by_group(missing).items():
            parts += self._made(group, members, exponent, until)
        return parts

    def _cached(
        self, group: int, segments: list[RecordedSegment], exponent: int
    ) -> tuple[list[SegmentEntries], list[RecordedSegment]]:
        """Return the cached ones of these segments, and those that are not cached."""
        shelf = self._shelf(group)
        levels = {s.seq: _level_for(shelf.note, s, exponent) for s in segments}
        keys = [(seq, part) for seq, e in levels.items() if e is not None for part in (e, CROSSING)]
        blobs = shelf.get(f"{seq}/{part}" for seq, part in keys)
        parts, rest = [], []
        for segment in segments:
            entries = blobs.get(f"{segment.seq}/{levels[segment.seq]}")
            crossing = blobs.get(f"{segment.seq}/{CROSSING}")
            if entries is None or crossing is None:
                rest.append(segment)
            else:
                parts.append(SegmentEntries(_decode(entries), _decode(crossing)))
        return parts, rest

    def _made(
        self, group: int, segments: list[RecordedSegment], exponent: int, until: float | None
    ) -> list[SegmentEntries]:
        """Add segments to the cache, unless only their finest level is too coarse. Return them."""
        parts: list[SegmentEntries] = []
        shelf = self._shelf(group)
        noted: dict[str, list[Any]] = dict(shelf.note)
        blobs: dict[str, bytes] = {}
        for segment in segments:
            if until is not None and time.monotonic() > until:
                break
            whole = self._whole(segment)
            mark = noted.get(str(segment.seq))
            if mark is None or mark[0] != fingerprint(segment) or exponent >= min(mark[1]):
                levels = make_levels(whole.entries)
                noted[str(segment.seq)] = [fingerprint(segment), sorted(levels)]
                blobs |= {f"{segment.seq}/{e}": rows.tobytes() for e, rows in levels.items()}
                blobs[f"{segment.seq}/{CROSSING}"] = whole.crossing.tobytes()
                chosen = [e for e in levels if e <= exponent]
                if chosen:
                    whole = SegmentEntries(levels[max(chosen)], whole.crossing)
            parts.append(whole)
        if blobs:
            old = shelf.packed(shelf.stored)
            self._shelves[group] = write_shelf(shelf.path, noted, blobs, old)
        return parts

    def _whole(self, segment: RecordedSegment) -> SegmentEntries:
        """Return the spans of a sealed segment as they are; recent ones are remembered."""
        home = self._source.process.home
        key = "segment", str(home), segment.process, segment.seq, fingerprint(segment)
        return memory.kept(
            key,
            lambda: read_segment(self._source, segment),
            lambda part: part.entries.nbytes + part.crossing.nbytes + 500,
        )

    def _shelf(self, group: int) -> Shelf:
        """Return the cached levels of a group. The note has fingerprint and exponents by segment."""
        if group not in self._shelves:
            name = self._source.process.name
            path = shelf_path(self._source.run, name, "spans", str(group))
            shelf = read_shelf(path)
            if shelf is None or not isinstance(shelf.note, dict):
                shelf = Shelf(path, {}, {}, {})
            self._shelves[group] = shelf
        return self._shelves[group]


def read_segment(source: ProcessSource, segment: RecordedSegment) -> SegmentEntries:
    """Return the spans of a segment, not merged."""
    rows = source.reader.rows(segment, carried=True)
    entries = np.empty(len(rows.id), ENTRY)
    entries["start"] = rows.start
    entries["end"] = np.where(rows.end == 0, 0, np.maximum(rows.end, rows.start))
    entries["busy"] = entries["end"] - entries["start"]
    entries["id"] = rows.id
    entries["name"] = rows.name
    entries["count"] = 1
    entries["row"] = np.minimum(rows.depth, MAX_ROWS - 1)
    entries["flags"] = np.where(rows.status == reading_spans.FAILED, FAILED, 0)
    is_own = (rows.id >> SLOT_BITS == segment.seq) & (rows.end != 0)
    return SegmentEntries(entries[is_own], entries[~is_own])


def make_levels(entries: Entries) -> dict[int, Entries]:
    """Return entries by exponent: the finest level has half as many, the coarsest only a few."""
    if len(entries) <= SMALL:
        return {0: entries}
    most = len(entries) // 2
    length = int(entries["end"].max()) - int(entries["start"].min())
    exponent = min((length // len(entries)).bit_length(), MAX_EXPONENT)
    level = merge_entries(entries, exponent)
    while len(level) <= most and exponent > 0:
        finer = merge_entries(entries, exponent - 1)
        if len(finer) > most:
            break
        exponent, level = exponent - 1, finer
    while len(level) > most and exponent < MAX_EXPONENT:
        exponent += 1
        level = merge_entries(level, exponent)
    # Few spans in many rows cannot be merged to half as many.
    levels = {exponent: level} if len(level) <= most else {0: entries}
    while len(level) > SMALL and exponent < MAX_EXPONENT:
        exponent += 1
        coarser = merge_entries(level, exponent)
        if len(coarser) <= STEP * len(level):
            level = levels[exponent] = coarser
    return levels


def _level_for(noted: dict[str, list[Any]], segment: RecordedSegment, exponent: int) -> int | None:
    """Return the coarsest cached level up to an exponent; None if there is none."""
    mark = noted.get(str(segment.seq))
    if mark is None or mark[0] != fingerprint(segment):
        return None
    return max((int(e) for e in mark[1] if e <= exponent), default=None)


def _decode(data: bytes) -> Entries:
    return np.frombuffer(data, ENTRY, len(data) // ENTRY.itemsize)
