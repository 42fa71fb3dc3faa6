"""The spans of a process as a few columns for each of its threads, sorted by start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepwell.analysis.timeline.intervals import CHUNK, Ints
from stepwell.analysis.timeline.phases import (
    CODE_MASK,
    GARBAGE,
    HAS_NO_PHASE,
    INHERITED,
    IS_COMPUTING,
    ITERATION,
    LIKE_ITERATION,
    NOTHING,
    OWN_NAME,
    Bytes,
    Mask,
    code_table,
    lookup_table,
)
from stepwell.journal.format import SLOT_BITS, SPAN_SLOTS
from stepwell.reading.segments import RecordedSegment
from stepwell.reading.spans import FAILED, OK, OPEN, SpanReader, SpanRows, as_slice
from stepwell.reading.tables import ProcessTables
from stepwell.vocabulary import StandardTrainingJobSpanName

FOREVER = (1 << 62) - 1
"""The end of an open span."""
MAIN_THREAD = "MainThread"
LOOPS = (
    StandardTrainingJobSpanName.TRAINING_LOOP.value,
    StandardTrainingJobSpanName.VALIDATION_LOOP.value,
)
_HAS_NO_PHASE = lookup_table(HAS_NO_PHASE)


@dataclass(frozen=True)
class Loop:
    """A training or validation loop. ``step`` is None if no step was set."""

    name: str
    rank: int
    attempt: int
    start_ns: int
    step: int | None
    attributes: dict[str, Any]


@dataclass
class LaneSpans:
    """The spans of one thread.

    Attributes:
        thread: name of the thread.
        is_main: whether it is the main thread.
        starts: nanoseconds since the epoch, ascending.
        ends: likewise; ``FOREVER`` for open spans.
        codes: phase of each span's own time, with flags (see ``phases``).
        declared: row, step and epoch (-1 for none) of iterations that have these as attributes.
        failed: rows of iterations that ended with an exception.
        named: row and name number of the user's own spans that have no phase.
        around_steps: name number of the user's own span around each step.
    """

    thread: str
    is_main: bool
    starts: Ints
    ends: Ints
    codes: Bytes
    declared: Ints
    failed: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    named: Ints = field(default_factory=lambda: np.empty((2, 0), np.int64))
    around_steps: int | None = None

    @property
    def rank_as_trainer(self) -> tuple[int, bool, bool, int]:
        """A sort key that is greatest for the training thread."""
        iterations = int(np.count_nonzero(self.codes & ITERATION))
        computing = int(np.count_nonzero(self.which(IS_COMPUTING)))
        return iterations, computing > 0, self.is_main, computing

    def which(self, table: Mask) -> Mask:
        """Return for each span the entry of its code in a table such as ``IS_DATA``."""
        entries = np.empty(len(self.codes), bool)
        for low in range(0, len(entries), CHUNK):
            # In chunks: an index array takes eight times the memory of the codes.
            entries[low : low + CHUNK] = table[self.codes[low : low + CHUNK]]
        return entries


class _Columns:
    """The columns of one lane while it is read. ``most`` is an upper bound for the number of spans.

    ``row_of`` has the rows, by span id, of the spans that continue in a later segment.
    """

    def __init__(self, thread: str, is_main: bool, most: int) -> None:
        self.thread = thread
        self.is_main = is_main
        self.count = 0
        # The system provides the memory as it is filled.
        self.starts: Ints = np.empty(most, np.int64)
        self.ends: Ints = np.empty(most, np.int64)
        self.codes: Bytes = np.empty(most, np.uint8)
        self.row_of: dict[int, int] = {}
        self.declared: list[Ints] = []
        self.failed: list[int] = []
        self.named: list[Ints] = []
        self.around_steps: int | None = None

    def add(self, starts: Ints, ends: Ints, codes: Bytes) -> None:
        """Append spans."""
        after = self.count + len(starts)
        self.starts[self.count : after] = starts
        self.ends[self.count : after] = ends
        self.codes[self.count : after] = codes
        self.count = after

    def finish(self) -> LaneSpans:
        """Return the spans sorted by start."""
        starts, ends = self.starts[: self.count], self.ends[: self.count]
        codes = self.codes[: self.count]
        np.maximum(ends, starts, out=ends)
        declared = np.concatenate([np.empty((3, 0), np.int64), *self.declared], axis=1)
        named = np.concatenate([np.empty((2, 0), np.int64), *self.named], axis=1)
        failed = np.array(sorted(set(self.failed)), np.int64)
        if (starts[1:] < starts[:-1]).any():
            # The user set a start back, or a span from a lost segment was read with a later segment.
            order = np.argsort(starts, kind="stable")
            starts, ends, codes = starts[order], ends[order], codes[order]
            rows = np.empty_like(order)
            rows[order] = np.arange(len(order))
            declared[0], failed = rows[declared[0]], np.sort(rows[failed])
            named[0] = rows[named[0]]
            named = named[:, np.argsort(named[0], kind="stable")]
        return LaneSpans(
            self.thread,
            self.is_main,
            starts,
            ends,
            codes,
            declared,
            failed,
            named,
            self.around_steps,
        )


class LaneReader:
    """Reads the spans of one process, segment by segment.

    Attributes:
        pauses: garbage collections, which stop all threads.
        loops: the training and validation loops, by span id.
        left_ns: start of the last training iteration that is open or did not end normally.
    """

    def __init__(self, tables: ProcessTables) -> None:
        self._tables = tables
        self._process = tables.process
        self._reader = SpanReader(self._process)
        self._codes = code_table(self._process.names)
        self._texts = {s.seq: s for s in self._process.of_kind("attributes")}
        self._threads = tables.threads
        # Code of each span's time, by segment and slot, for its children: one byte each.
        self._segment_codes: dict[int, Bytes] = {}
        # The same for spans that began in another segment, in case that segment is lost.
        self._lost_codes: dict[int, int] = {}
        self.pauses: list[tuple[Ints, Ints]] = []
        self._loop_names = [n for n, (_, _, name) in self._process.names.items() if name in LOOPS]
        self.loops: dict[int, Loop] = {}
        self.left_ns: int | None = None

    def read(self) -> list[LaneSpans]:
        """Return all lanes of the process."""
        lanes: dict[int, _Columns] = {}
        sizes = Counter(segment.lane for segment in self._reader.segments)
        for segment in self._reader.segments:
            if segment.lane not in lanes:
                lanes[segment.lane] = self._columns(segment, sizes[segment.lane])
            rows = self._reader.rows(segment, carried=True, depths=False)
            self._add(lanes[segment.lane], segment, rows)
        return [columns.finish() for columns in lanes.values() if columns.count]

    def _columns(self, segment: RecordedSegment, segments: int) -> _Columns:
        native = segment.header.get("native")
        is_main = segment.thread == MAIN_THREAD or native == self._process.document["pid"]
        thread = self._threads.get(segment.lane, "")
        return _Columns(thread, is_main, segments * SPAN_SLOTS)

    def _add(self, lane: _Columns, segment: RecordedSegment, rows: SpanRows) -> None:
        own = self._codes[np.minimum(rows.name, len(self._codes) - 1)]
        is_own = (rows.id >> SLOT_BITS) == segment.seq
        codes = self._resolve(segment, rows, own & np.uint8(CODE_MASK), is_own)
        codes |= own & (ITERATION | LIKE_ITERATION)
        starts = rows.start.astype(np.int64) + self._tables.offset
        ends = rows.end.astype(np.int64) + self._tables.offset
        ends[rows.end == 0] = 0
        ends[(rows.end == 0) & (rows.status == OPEN)] = FOREVER
        kept = self._kept(lane, rows, own, is_own)
        if (own == GARBAGE).any():
            pauses = is_own & (own == GARBAGE)
            self.pauses.append((starts[pauses], ends[pauses]))
        numbers = lane.count - 1 + np.cumsum(kept)
        goes_on = self._join_segments(lane, segment, rows, ends, kept, numbers)
        left = starts[(codes & (ITERATION | LIKE_ITERATION) != 0) & (rows.status != OK) & ~goes_on]
        if len(left):
            self.left_ns = max(int(left.max()), self.left_ns or 0)
        self._note_failed(lane, rows, codes, kept, numbers)
        self._note_declared(lane, segment, rows, codes, kept, numbers)
        self._note_loops(segment, rows)
        self._note_names(lane, rows, own, codes, kept, numbers)
        own_rows = as_slice(kept)
        lane.add(starts[own_rows], ends[own_rows], codes[own_rows])

    def _kept(self, lane: _Columns, rows: SpanRows, own: Bytes, is_own: Mask) -> Mask:
        """Return which spans get a row in the lane: those that began here or in a segment that is lost."""
        kept: Mask = is_own & (own != GARBAGE)
        for at in np.flatnonzero(~is_own & (own != GARBAGE)).tolist():
            kept[at] = int(rows.id[at]) not in lane.row_of
        return kept

    def _resolve(self, segment: RecordedSegment, rows: SpanRows, own: Bytes, is_own: Mask) -> Bytes:
        """Return the code of each span's time: its own, or that of the nearest span around it with one."""
        mine = np.flatnonzero(is_own)
        slots = rows.id[mine] & (SPAN_SLOTS - 1)
        place = np.full(SPAN_SLOTS, -1, np.int16)
        place[slots] = mine
        is_here = (rows.parent >> SLOT_BITS) == segment.seq
        parent = place[rows.parent & (SPAN_SLOTS - 1)]
        parent[~is_here] = -1
        codes: Bytes = INHERITED[NOTHING, own]
        for at in np.flatnonzero(~is_own).tolist():
            self._lost_codes.setdefault(int(rows.id[at]), int(codes[at]))
        elsewhere = np.flatnonzero(~is_here & (rows.parent >= 0))
        parents = rows.parent[elsewhere]
        while len(elsewhere):
            # There are few distinct parents: spans that are open for long.
            same = parents == parents[0]
            these = elsewhere[same]
            codes[these] = INHERITED[self._code_of(int(parents[0])), own[these]]
            elsewhere, parents = elsewhere[~same], parents[~same]
        children = np.flatnonzero(parent >= 0)
        parent, own = parent[children], own[children].astype(np.intp)
        before = codes[children]
        while len(children):
            fresh = INHERITED.ravel().take(codes[parent] * np.intp(len(INHERITED)) + own)
            if (fresh == before).all():
                break
            codes[children] = before = fresh
        by_slot = np.full(SPAN_SLOTS, NOTHING, np.uint8)
        by_slot[slots] = codes[mine]
        self._segment_codes[segment.seq] = by_slot
        return codes

    def _code_of(self, identity: int) -> int:
        codes = self._segment_codes.get(identity >> SLOT_BITS)
        if codes is None:
            return self._lost_codes.get(identity, NOTHING)
        return int(codes[identity & (SPAN_SLOTS - 1)])

    def _join_segments(
        self,
        lane: _Columns,
        segment: RecordedSegment,
        rows: SpanRows,
        ends: Ints,
        kept: Mask,
        numbers: Ints,
    ) -> Mask:
        """Keep the rows of spans that continue later, and set the ends of spans that began earlier.

        Return which spans continue later.
        """
        went_on = self._reader.went_on_in
        goes_on = np.zeros(len(ends), bool)
        # A span that continues in another segment has no end here, or the mark CARRIED.
        for at in np.flatnonzero(rows.status != OK).tolist():
            identity = int(rows.id[at])
            last = went_on(identity)
            if last is not None and last > segment.seq:
                ends[at] = 0
                goes_on[at] = True
                if kept[at]:
                    lane.row_of[identity] = int(numbers[at])
        for at in np.flatnonzero(~kept).tolist():
            row = lane.row_of.get(int(rows.id[at]))
            if row is not None and ends[at]:
                lane.ends[row] = ends[at]
        return goes_on

    def _note_failed(
        self, lane: _Columns, rows: SpanRows, codes: Bytes, kept: Mask, numbers: Ints
    ) -> None:
        """Note the rows of iterations that ended with an exception."""
        for at in np.flatnonzero(rows.status == FAILED).tolist():
            if codes[at] & (ITERATION | LIKE_ITERATION):
                row = int(numbers[at]) if kept[at] else lane.row_of.get(int(rows.id[at]))
                lane.failed += [] if row is None else [row]

    def _note_declared(
        self,
        lane: _Columns,
        segment: RecordedSegment,
        rows: SpanRows,
        codes: Bytes,
        kept: Mask,
        numbers: Ints,
    ) -> None:
        """Note the step and epoch of iterations that have them as attributes."""
        chosen = (codes & (ITERATION | LIKE_ITERATION) != 0) & (rows.attributes != 0) & kept
        texts = self._texts.get(segment.seq)
        if texts is None or not chosen.any():
            return
        wanted = {"step", "epoch", "attributes"}
        frame = self._tables.span_frame(segment, rows.where(chosen), texts, wanted)
        has_step = frame["attributes"].str.contains('"step":', literal=True).fill_null(False)
        has_own = (has_step & frame["step"].is_not_null()).to_numpy()
        if has_own.any():
            steps = frame["step"].fill_null(-1).to_numpy()[has_own]
            epochs = frame["epoch"].fill_null(-1).to_numpy()[has_own]
            lane.declared.append(np.stack((numbers[chosen][has_own], steps, epochs)))

    def _note_loops(self, segment: RecordedSegment, rows: SpanRows) -> None:
        """Keep the training and validation loops of a segment."""
        by_name = [np.flatnonzero(rows.name == name) for name in self._loop_names]
        if not any(map(len, by_name)):
            return
        at = np.concatenate(by_name)
        texts, document = self._texts.get(segment.seq), self._process.document
        steps = self._tables.context.at(rows.start[at])[0].tolist()
        for row, step in zip(at.tolist(), steps, strict=True):
            identity = int(rows.id[row])
            attributes = self._tables.attributes_of(identity, int(rows.attributes[row]), texts)
            own = attributes.get("step")
            # A span that continues in another segment is read again there, with all of its attributes.
            self.loops[identity] = Loop(
                name=self._process.names[int(rows.name[row])][2],
                rank=document["rank"],
                attempt=document["attempt"],
                start_ns=int(rows.start[row]) + self._tables.offset,
                step=own if type(own) is int else step if step >= 0 else None,
                attributes=attributes,
            )

    def _note_names(
        self,
        lane: _Columns,
        rows: SpanRows,
        own: Bytes,
        codes: Bytes,
        kept: Mask,
        numbers: Ints,
    ) -> None:
        """Note the names of the user's own spans that have no phase, and of those around steps."""
        if lane.around_steps is None:
            around = rows.name[(own & LIKE_ITERATION != 0) & kept]
            lane.around_steps = int(around[0]) if len(around) else None
        is_named = (own & OWN_NAME != 0) & kept
        if is_named.any():
            at = np.flatnonzero(is_named & _HAS_NO_PHASE[codes])
            lane.named.append(np.stack((numbers[at], rows.name[at].astype(np.int64))))
