"""The spans of a process as a few columns for each of its threads, in the order of their starts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepwell.analysis.time.intervals import Ints
from stepwell.analysis.time.words import (
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
    is_one_of,
    table_of,
)
from stepwell.journal.format import SLOT_BITS, SPAN_SLOTS
from stepwell.reading.segments import Segment
from stepwell.reading.spans import FAILED, OK, OPEN, SpanReader, SpanRows, as_slice
from stepwell.reading.tables import ProcessTables
from stepwell.vocabulary import StandardTrainingJobSpanName

FOREVER = (1 << 62) - 1
"""The end of a span that is open."""
MAIN_THREAD = "MainThread"
LOOPS = (
    StandardTrainingJobSpanName.TRAINING_LOOP.value,
    StandardTrainingJobSpanName.VALIDATION_LOOP.value,
)
_HAS_NO_PHASE = is_one_of(HAS_NO_PHASE)
BLOCK = 1 << 16
"""Spans that are looked through at once, so that memory does not grow with their number."""


@dataclass(frozen=True)
class Loop:
    """A training or validation loop; ``step`` is None where none is known."""

    name: str
    rank: int
    attempt: int
    start_ns: int
    step: int | None
    attributes: dict[str, Any]


@dataclass
class Lane:
    """The spans of one thread: times in nanoseconds since the epoch, and the code of their own time.

    ``told`` has row, step and epoch (-1 for none) of those iterations that say so themselves, ``failed`` the
    rows of those that an exception went through. ``named`` has row and number of the name of the user's own
    spans that are in no phase, ``around_steps`` is the name that the user gave to spans around steps.
    """

    thread: str
    is_main: bool
    starts: Ints
    ends: Ints
    codes: Bytes
    told: Ints
    failed: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    named: Ints = field(default_factory=lambda: np.empty((2, 0), np.int64))
    around_steps: int | None = None

    @property
    def rank_as_trainer(self) -> tuple[int, bool, bool, int]:
        """Greatest for the thread that trains."""
        iterations = int(np.count_nonzero(self.codes & ITERATION))
        computing = int(np.count_nonzero(self.which(IS_COMPUTING)))
        return iterations, computing > 0, self.is_main, computing

    def which(self, wanted: Mask) -> Mask:
        """Whether the code of each span is wanted by a table such as ``IS_DATA``."""
        found = np.empty(len(self.codes), bool)
        for low in range(0, len(found), BLOCK):
            # An index takes eight times the memory of the codes.
            found[low : low + BLOCK] = wanted[self.codes[low : low + BLOCK]]
        return found


class _Columns:
    """What is being gathered of one lane, which has no more than ``most`` spans.

    ``row_of`` has the rows of the spans that went on in a later segment, by their identity.
    """

    def __init__(self, thread: str, is_main: bool, most: int) -> None:
        self.thread = thread
        self.is_main = is_main
        self.count = 0
        # Memory is taken as it is filled.
        self.starts: Ints = np.empty(most, np.int64)
        self.ends: Ints = np.empty(most, np.int64)
        self.codes: Bytes = np.empty(most, np.uint8)
        self.row_of: dict[int, int] = {}
        self.told: list[Ints] = []
        self.failed: list[int] = []
        self.named: list[Ints] = []
        self.around_steps: int | None = None

    def add(self, starts: Ints, ends: Ints, codes: Bytes) -> None:
        """Put these spans after those that are there."""
        after = self.count + len(starts)
        self.starts[self.count : after] = starts
        self.ends[self.count : after] = ends
        self.codes[self.count : after] = codes
        self.count = after

    def finish(self) -> Lane:
        """The spans in the order of their starts."""
        starts, ends = self.starts[: self.count], self.ends[: self.count]
        codes = self.codes[: self.count]
        np.maximum(ends, starts, out=ends)
        told = np.concatenate([np.empty((3, 0), np.int64), *self.told], axis=1)
        named = np.concatenate([np.empty((2, 0), np.int64), *self.named], axis=1)
        failed = np.array(sorted(set(self.failed)), np.int64)
        if (starts[1:] < starts[:-1]).any():
            # A start was set back, or what began in a segment that is lost came with a later one.
            order = np.argsort(starts, kind="stable")
            starts, ends, codes = starts[order], ends[order], codes[order]
            rows = np.empty_like(order)
            rows[order] = np.arange(len(order))
            told[0], failed = rows[told[0]], np.sort(rows[failed])
            named[0] = rows[named[0]]
            named = named[:, np.argsort(named[0], kind="stable")]
        return Lane(
            self.thread,
            self.is_main,
            starts,
            ends,
            codes,
            told,
            failed,
            named,
            self.around_steps,
        )


class LaneReader:
    """Reads the spans of one process, segment by segment."""

    def __init__(self, tables: ProcessTables) -> None:
        self._tables = tables
        self._process = tables.process
        self._reader = SpanReader(self._process)
        self._codes = table_of(self._process.names)
        self._texts = {s.seq: s for s in self._process.of_kind("attributes")}
        self._threads = tables.threads
        # Codes of the time of each span, by segment and slot: one byte each, for their children.
        self._known: dict[int, Bytes] = {}
        # The same of spans that began in another segment, should that have been lost.
        self._lost: dict[int, int] = {}
        self.pauses: list[tuple[Ints, Ints]] = []
        """Garbage collections, which belong to no thread."""
        self._loop_names = [n for n, (_, _, name) in self._process.names.items() if name in LOOPS]
        self.loops: dict[int, Loop] = {}
        """The training and validation loops by their ids."""

    def read(self) -> list[Lane]:
        """All lanes of the process."""
        lanes: dict[int, _Columns] = {}
        sizes = Counter(segment.lane for segment in self._reader.segments)
        for segment in self._reader.segments:
            if segment.lane not in lanes:
                lanes[segment.lane] = self._columns(segment, sizes[segment.lane])
            rows = self._reader.rows(segment, carried=True, depths=False)
            self._add(lanes[segment.lane], segment, rows)
        return [columns.finish() for columns in lanes.values() if columns.count]

    def _columns(self, segment: Segment, segments: int) -> _Columns:
        native = segment.header.get("native")
        is_main = segment.thread == MAIN_THREAD or native == self._process.about["pid"]
        thread = self._threads.get(segment.lane, "")
        return _Columns(thread, is_main, segments * SPAN_SLOTS)

    def _add(self, lane: _Columns, segment: Segment, rows: SpanRows) -> None:
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
        self._follow(lane, segment, rows, ends, kept, numbers)
        self._note_failed(lane, rows, codes, kept, numbers)
        self._note(lane, segment, rows, codes, kept, numbers)
        self._note_loops(segment, rows)
        self._note_names(lane, rows, own, codes, kept, numbers)
        own_rows = as_slice(kept)
        lane.add(starts[own_rows], ends[own_rows], codes[own_rows])

    def _kept(self, lane: _Columns, rows: SpanRows, own: Bytes, is_own: Mask) -> Mask:
        """Which rows are spans that have no row yet: those that began here, or in a segment that is lost."""
        kept: Mask = is_own & (own != GARBAGE)
        for at in np.flatnonzero(~is_own & (own != GARBAGE)).tolist():
            kept[at] = int(rows.id[at]) not in lane.row_of
        return kept

    def _resolve(self, segment: Segment, rows: SpanRows, own: Bytes, is_own: Mask) -> Bytes:
        """The code of the time of each span: its own, or that of the nearest around it that has one."""
        mine = np.flatnonzero(is_own)
        slots = rows.id[mine] & (SPAN_SLOTS - 1)
        place = np.full(SPAN_SLOTS, -1, np.int16)
        place[slots] = mine
        is_here = (rows.parent >> SLOT_BITS) == segment.seq
        parent = place[rows.parent & (SPAN_SLOTS - 1)]
        parent[~is_here] = -1
        codes: Bytes = INHERITED[NOTHING, own]
        for at in np.flatnonzero(~is_own).tolist():
            self._lost.setdefault(int(rows.id[at]), int(codes[at]))
        elsewhere = np.flatnonzero(~is_here & (rows.parent >= 0))
        parents = rows.parent[elsewhere]
        while len(elsewhere):
            # Of few distinct ones: what is open for long.
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
        known = np.full(SPAN_SLOTS, NOTHING, np.uint8)
        known[slots] = codes[mine]
        self._known[segment.seq] = known
        return codes

    def _code_of(self, identity: int) -> int:
        known = self._known.get(identity >> SLOT_BITS)
        if known is None:
            return self._lost.get(identity, NOTHING)
        return int(known[identity & (SPAN_SLOTS - 1)])

    def _follow(
        self,
        lane: _Columns,
        segment: Segment,
        rows: SpanRows,
        ends: Ints,
        kept: Mask,
        numbers: Ints,
    ) -> None:
        """Remember the rows of spans that go on, and note the ends of those that came from elsewhere."""
        went_on = self._reader.went_on_in
        # A span that goes on has no end here, or the mark of having been taken along.
        for at in np.flatnonzero(rows.status != OK).tolist():
            identity = int(rows.id[at])
            last = went_on(identity)
            if last is not None and last > segment.seq:
                ends[at] = 0
                if kept[at]:
                    lane.row_of[identity] = int(numbers[at])
        for at in np.flatnonzero(~kept).tolist():
            row = lane.row_of.get(int(rows.id[at]))
            if row is not None and ends[at]:
                lane.ends[row] = ends[at]

    def _note_failed(
        self, lane: _Columns, rows: SpanRows, codes: Bytes, kept: Mask, numbers: Ints
    ) -> None:
        """The rows of iterations that an exception went through."""
        for at in np.flatnonzero(rows.status == FAILED).tolist():
            if codes[at] & (ITERATION | LIKE_ITERATION):
                row = int(numbers[at]) if kept[at] else lane.row_of.get(int(rows.id[at]))
                lane.failed += [] if row is None else [row]

    def _note(
        self,
        lane: _Columns,
        segment: Segment,
        rows: SpanRows,
        codes: Bytes,
        kept: Mask,
        numbers: Ints,
    ) -> None:
        """The step and epoch of iterations that tell them in their attributes."""
        tells = (codes & (ITERATION | LIKE_ITERATION) != 0) & (rows.attributes != 0) & kept
        texts = self._texts.get(segment.seq)
        if texts is None or not tells.any():
            return
        wanted = {"step", "epoch", "attributes"}
        frame = self._tables.span_frame(segment, rows.where(tells), texts, wanted)
        has_step = frame["attributes"].str.contains('"step":', literal=True).fill_null(False)
        known = (has_step & frame["step"].is_not_null()).to_numpy()
        if known.any():
            steps = frame["step"].fill_null(-1).to_numpy()[known]
            epochs = frame["epoch"].fill_null(-1).to_numpy()[known]
            lane.told.append(np.stack((numbers[tells][known], steps, epochs)))

    def _note_loops(self, segment: Segment, rows: SpanRows) -> None:
        """Keep the training and validation loops of a segment."""
        found = [np.flatnonzero(rows.name == name) for name in self._loop_names]
        if not any(map(len, found)):
            return
        at = np.concatenate(found)
        texts, about = self._texts.get(segment.seq), self._process.about
        steps = self._tables.context.at(rows.start[at])[0].tolist()
        for row, step in zip(at.tolist(), steps, strict=True):
            identity = int(rows.id[row])
            attributes = self._tables.attributes_of(identity, int(rows.attributes[row]), texts)
            own = attributes.get("step")
            # A span that goes on in another segment comes again there, with all of its attributes.
            self.loops[identity] = Loop(
                name=self._process.names[int(rows.name[row])][2],
                rank=about["rank"],
                attempt=about["attempt"],
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
        """The names of the user's own spans that are in no phase, and of those around steps."""
        if lane.around_steps is None:
            around = rows.name[(own & LIKE_ITERATION != 0) & kept]
            lane.around_steps = int(around[0]) if len(around) else None
        is_named = (own & OWN_NAME != 0) & kept
        if is_named.any():
            at = np.flatnonzero(is_named & _HAS_NO_PHASE[codes])
            lane.named.append(np.stack((numbers[at], rows.name[at].astype(np.int64))))
