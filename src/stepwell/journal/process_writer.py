"""Write a process folder from given records, without a clock or live files: for imports and simulated runs.

Segments have the same layout as those of a lane and are sealed into the same archives, so readers cannot tell
the difference. Records are written lane by lane, and in a lane a parent before its children.
"""

from __future__ import annotations

import itertools
import os
from array import array
from pathlib import Path
from typing import Any

from stepwell._core.files import write_json
from stepwell._core.values import cut, encode
from stepwell.journal.archive import Archive, archive_kind
from stepwell.journal.format import (
    ATTRIBUTE_BYTES,
    ATTRIBUTE_SHIFT,
    CARRIED,
    COLUMN_BYTES,
    CONTEXT_NAME,
    EVENTS,
    HEADER_BYTES,
    IMPLICIT_STEP,
    LINK_WORD,
    METRIC,
    METRIC_ROWS,
    NAME_MASK,
    NAME_SHIFT,
    NAMES,
    PROCESS,
    ROW,
    ROW_HEAD,
    SLOT_BITS,
    SPAN,
    SPAN_SLOTS,
    STEP_BIAS,
    context_word,
    pack_header,
    span_id,
)
from stepwell.journal.names import NameTable
from stepwell.journal.seal import seal

OPEN = 0
"""In place of an end: the span has none."""
MAX_CARRIED = 4000
"""Open spans that are carried into the next segment."""
MAX_HELD = 1 << 20
"""Bytes of event lines that are buffered."""


class ProcessWriter:
    """Writes the records of one process, lane by lane; ``close`` writes its documents."""

    def __init__(self, folder: Path, process: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.process = process
        self.title: dict[str, Any] = {}
        self._names = NameTable()
        self._seq = itertools.count()
        self._lane_numbers = itertools.count()
        self._archives = {kind: Archive(folder, kind) for kind in ("spans", "metrics")}
        self._spans: SpanColumns | None = None
        self._rows = bytearray()
        self._counts: dict[int, int] = {}
        self._events: list[bytes] = []
        self._held = 0

    def begin_lane(self, thread: str, native: int = 0) -> None:
        """Start the lane of another thread."""
        self._end_lane()
        number = next(self._lane_numbers)
        self.title = {"lane": number, "thread": cut(thread, 200), "native": native}

    def span(
        self,
        name: str,
        category: str,
        start: int,
        end: int,
        parent: int | None = None,
        attributes: bytes = b"",
        mark: int = 0,
    ) -> int:
        """Write a span of the current lane and return its id. ``parent`` is the id of an earlier span.

        ``mark`` is ERROR or ABANDONED for a span that failed or has no real end.
        """
        spans = self._spans
        if spans is None or not spans.has_room(len(attributes)):
            spans = self._roll(spans)
        meta = self._names.intern(SPAN, name, category) << NAME_SHIFT
        return spans.add(meta, start, end and end | mark, parent, attributes)

    def metric(self, name: str, time: int, value: float, step: int | None = None) -> None:
        """Write a metric; without a step, its step is the number of earlier values of that name."""
        word = self._names.intern(METRIC, name)
        if step is None:
            count = self._counts.get(word, 0)
            self._counts[word] = count + 1
            step_word = IMPLICIT_STEP | count
        else:
            step_word = step + STEP_BIAS
        self._add_row(time, step_word, value, word)

    def context(self, time: int, step: int | None, epoch: int | None) -> None:
        """Set the step and the epoch from this time on."""
        self._add_row(time, context_word(step, epoch), 0.0, CONTEXT_NAME)

    def _add_row(self, time: int, step_word: int, value: float, word: int) -> None:
        self._rows += ROW.pack(ROW_HEAD.pack(time, step_word), value, word)
        if len(self._rows) >= METRIC_ROWS * ROW.size:
            self._seal_metrics()

    def event(
        self, name: str, time: int, span: int | None, attributes: bytes = b"{}", kind: str = "event"
    ) -> None:
        """Write an event of the current lane, on the span with this id or on none."""
        head = {"kind": kind, "name": cut(name, 1000), "time": time, "span": span, **self.title}
        line = encode(head)[:-1] + b',"attributes":' + attributes + b"}\n"
        self._events.append(line)
        self._held += len(line)
        if self._held >= MAX_HELD:
            self._write_events()

    def close(self, document: dict[str, Any]) -> None:
        """Write the remaining records, the names, and process.json with this content."""
        self._end_lane()
        self._write_events()
        fd = os.open(self.folder / NAMES, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(fd, "wb") as file:
            # In one write: a short write on a full disk raises an error.
            file.write(self._names.lines())
        write_json(self.folder / PROCESS, document)

    # Segments

    def _end_lane(self) -> None:
        if self._spans is not None:
            self._seal_spans(self._spans)
            self._spans = None
        self._seal_metrics()

    def _roll(self, old: SpanColumns | None) -> SpanColumns:
        fresh = SpanColumns(next(self._seq))
        if old is not None:
            fresh.carry(old)
            self._seal_spans(old)
        self._spans = fresh
        return fresh

    def _seal_spans(self, spans: SpanColumns) -> None:
        if len(spans.blob):
            self._append("attributes", spans.seq, bytes(spans.blob))
        self._append("spans", spans.seq, spans.body())

    def _seal_metrics(self) -> None:
        if self._rows:
            self._append("metrics", next(self._seq), bytes(self._rows))
            self._rows.clear()

    def _append(self, kind: str, seq: int, body: bytes) -> None:
        header = pack_header({"kind": kind, "seq": seq, **self.title})
        block = seal(self.process, header.ljust(HEADER_BYTES, b"\0") + body)
        if block is not None:
            self._archives[archive_kind(kind)].append(block)

    def _write_events(self) -> None:
        if self._events:
            with open(self.folder / EVENTS, "ab") as file:
                file.writelines(self._events)
        self._events.clear()
        self._held = 0


class SpanColumns:
    """A span segment that is being filled, with its attributes."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.blob = bytearray()
        # Slot 0 is never a span.
        self._metas = array("Q", [0])
        self._starts = array("Q", [0])
        self._ends = array("Q", [0])
        self._texts: dict[bytes, int] = {}
        self._open: list[int] = []
        # Slots of spans of other segments: proxies, and open spans that were carried over.
        self._slots: dict[int, int] = {}
        self._ids: dict[int, int] = {}

    def has_room(self, size: int) -> bool:
        """Return whether a span with attributes of this size and a proxy of its parent fit."""
        fits = HEADER_BYTES + len(self.blob) + size + 8 < ATTRIBUTE_BYTES
        return len(self._starts) + 2 <= SPAN_SLOTS and fits

    def add(self, meta: int, start: int, end: int, parent: int | None, attributes: bytes) -> int:
        """Add a row and return the id of the span."""
        above = 0 if parent is None else self._slot_of(parent)
        slot = self._put(meta | above | self._text(attributes) << ATTRIBUTE_SHIFT, start, end)
        if not end:
            self._open.append(slot)
        return span_id(self.seq, slot)

    def carry(self, old: SpanColumns) -> None:
        """Copy the open spans of the previous segment, parents first."""
        for was in old._open[-MAX_CARRIED:]:
            identity = old._identity(was)
            meta = old._metas[was]
            above = meta & (1 << NAME_SHIFT) - 1
            parent = self._slot_of(old._identity(above)) if above else 0
            self._link(len(self._starts) + 1, identity)
            text = self._text(old._text_at(meta >> ATTRIBUTE_SHIFT)) << ATTRIBUTE_SHIFT
            slot = self._put(meta & NAME_MASK | parent | text, old._starts[was], OPEN)
            self._open.append(slot)
            self._slots[identity] = slot
            self._ids[slot] = identity
            old._ends[was] = CARRIED

    def body(self) -> bytes:
        """Return the columns, each as long as in a live segment."""
        columns = (self._metas, self._starts, self._ends)
        return b"".join(column.tobytes().ljust(COLUMN_BYTES, b"\0") for column in columns)

    def _identity(self, slot: int) -> int:
        return self._ids.get(slot) or span_id(self.seq, slot)

    def _slot_of(self, identity: int) -> int:
        """Return the slot of a span in this segment, or of a proxy of it."""
        if identity >> SLOT_BITS == self.seq:
            return identity & SPAN_SLOTS - 1
        slot = self._slots.get(identity)
        if slot is None:
            slot = self._slots[identity] = len(self._starts)
            self._ids[slot] = identity
            self._link(slot, identity)
        return slot

    def _link(self, target: int, identity: int) -> None:
        self._put(target | LINK_WORD, identity + 1, 0)

    def _put(self, meta: int, start: int, end: int) -> int:
        self._metas.append(meta)
        self._starts.append(start)
        self._ends.append(end)
        return len(self._starts) - 1

    def _text(self, data: bytes) -> int:
        """Return the offset of an attribute set in 8-byte units; equal ones are stored once."""
        if not data:
            return 0
        offset = self._texts.get(data)
        if offset is None:
            offset = self._texts[data] = HEADER_BYTES + len(self.blob) >> 3
            self.blob += data.ljust(len(data) + 8 & -8, b"\0")
        return offset

    def _text_at(self, offset: int) -> bytes:
        begin = (offset << 3) - HEADER_BYTES
        return bytes(self.blob[begin : self.blob.find(b"\0", begin)]) if offset else b""
