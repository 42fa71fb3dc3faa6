"""Lanes: where one thread writes. No locks on the hot path, because only that thread writes there.

A lane holds its current segments and its open spans: those of plain code in ``stack``, those of asyncio
code in ``frames``, and ``orphans``, whose enclosing span ended before them (an unfinished generator, or
an interrupt inside the recorder). An *entry* is ``slot | name id << 16``, with ``DROPPED`` set if there
was no space for the span. Entering is one append and leaving one pop, so that the stack is consistent
for an interrupt between any two bytecodes.
"""

from __future__ import annotations

import threading
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from stepwell._core import clock
from stepwell._core.values import cut, encode
from stepwell.journal import task_spans
from stepwell.journal.format import (
    ABANDONED,
    ATTRIBUTE_BYTES,
    ATTRIBUTE_SHIFT,
    CARRIED,
    HEADER_BYTES,
    LINK_WORD,
    METRIC_BYTES,
    NAME_MASK,
    SLOT_BITS,
    SLOT_MASK,
    SPAN_SLOTS,
)
from stepwell.journal.state import hide_lane, is_current, local

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal
    from stepwell.journal.segment import Segment
    from stepwell.journal.task_spans import TaskSpan

DROPPED = 1 << 40
MAX_OPEN = 4000
MAX_FRAMES = 2000
MAX_ORPHANS = 64
MOST_NESTED = 3
"""Depth of signal handlers that interrupt each other while segments change; deeper records are dropped."""


class Lane:
    """One thread's place in the journal of its process."""

    __slots__ = (
        "blob",
        "blob_limit",
        "blob_map",
        "blob_next",
        "depth",
        "ends",
        "frames",
        "journal",
        "last_data",
        "last_offset",
        "last_seq",
        "limit",
        "lock",
        "metas",
        "metrics",
        "next",
        "number",
        "origins",
        "orphans",
        "place",
        "proxy_slots",
        "row_limit",
        "row_next",
        "rows",
        "second",
        "segment",
        "seq_bits",
        "stack",
        "starts",
        "thread",
        "title",
    )

    def __init__(self, journal: Journal, number: int, thread: threading.Thread) -> None:
        self.journal = journal
        self.number = number
        self.thread = thread
        # Short enough for a header page, even if every character is escaped.
        name = cut(thread.name, 200)
        self.title = {"lane": number, "thread": name, "native": threading.get_native_id()}
        self.place = b""
        # Held while another thread closes a span here, and while rolling over.
        self.lock = threading.RLock()
        # The lane for signal handlers that record in this thread while this lane is changed, and how many
        # lanes this one is behind.
        self.second: Lane | None = None
        self.depth = 0
        # Spans: the slots of the current segment, and the open spans.
        self.segment: Segment | None = None
        # The latest segment that readers may have seen, also if an interrupt undid the switch to it.
        self.last_seq = -1
        self.metas = self.starts = self.ends = memoryview(bytearray()).cast("Q")
        self.seq_bits = 0
        self.next = 0
        self.limit = 0
        self.stack: list[int] = [0]
        self.orphans: list[int] = []
        self.frames: dict[TaskSpan, None] = {}
        self.origins: dict[int, int] = {}
        self.proxy_slots: dict[int, int] = {}
        # Attributes: the blob beside the current span segment.
        self.blob: Segment | None = None
        self.blob_map: Any = None
        self.blob_next = 0
        self.blob_limit = 0
        # The attribute set appended last, and its offset: the next span may have the same one.
        self.last_data: bytes | None = None
        self.last_offset = 0
        # Metrics.
        self.metrics: Segment | None = None
        self.rows: Any = None
        self.row_next = 0
        self.row_limit = 0

    def encode_place(self) -> bytes:
        """Return the title as encoded in event lines."""
        self.place = encode(self.title)
        return self.place

    # Spans

    def reserve(self) -> int:
        """Return a free slot, in a new segment if necessary; 0 if there is no space."""
        if self.next >= self.limit and not self.roll():
            self.journal.count_drop("spans")
            return 0
        slot = self.next
        self.next = slot + 1
        return slot

    def make_room(self) -> None:
        """Roll over if there is no room for a span and a proxy of its parent."""
        if self.next + 2 > self.limit:
            self.roll()

    def _take(self, kind: str, seq: int | None = None, after: int = -1) -> Segment | None:
        # Signals may come faster than segments are created. Each handler then interrupts the one before it,
        # and without a limit they would create segments until the stack is full.
        return None if self.depth > MOST_NESTED else self.journal.take(kind, seq, after)

    def roll(self) -> bool:
        """Switch to a new segment and copy the open spans into it."""
        is_own = is_current(self)
        try:
            if is_own:
                hide_lane(self)
            with self.lock:
                return self._roll()
        finally:
            if is_own:
                local.lane = self

    def _roll(self) -> bool:
        fresh = self._take("spans", after=self.last_seq)
        if fresh is None:
            self.limit = 0
            return False
        self.last_seq = fresh.seq
        old, old_blob = self.segment, self.blob
        old_space = self.blob_map, self.blob_next, self.blob_limit
        moved = {0: 0}
        origins: dict[int, int] = {}
        self.last_data = None
        try:
            self.blob = None
            self.blob_limit = 0
            fresh.attach(**self.title)
            following = self._carry(fresh, old, old_blob, moved, origins) if old is not None else 1
            self._switch(fresh, following, moved, origins)
        except BaseException:
            # An interrupt: unless the switch is complete, restore the previous state.
            if self.segment is not fresh:
                begun = [fresh] if self.blob in (None, old_blob) else [fresh, self.blob]
                self.blob = old_blob
                self.blob_map, self.blob_next, self.blob_limit = old_space
                for segment in begun:
                    segment.discard()
            raise
        if old is not None:
            for slot in moved:
                if slot and not old.ends[slot]:
                    old.ends[slot] = CARRIED
            self.journal.retire(old, old_blob)
        return True

    def _switch(
        self, fresh: Segment, following: int, moved: dict[int, int], origins: dict[int, int]
    ) -> None:
        """Make ``fresh`` the current segment. ``moved`` maps old slots of open spans to new ones."""
        stack = [entry & ~SLOT_MASK | moved.get(entry & SLOT_MASK, 0) for entry in self.stack]
        orphans = [entry & ~SLOT_MASK | moved.get(entry & SLOT_MASK, 0) for entry in self.orphans]
        for frame in self.frames:
            frame.slot = moved[frame.slot]
        # No calls from here on: an interrupt is handled after a call, and must not see half a switch.
        self.stack[:] = stack
        self.orphans = orphans
        self.origins = origins
        self.proxy_slots = {}
        self.segment = fresh
        self.seq_bits = fresh.seq << SLOT_BITS
        self.metas, self.starts, self.ends = fresh.metas, fresh.starts, fresh.ends
        self.next = following
        self.limit = SPAN_SLOTS

    def _carry(
        self,
        fresh: Segment,
        old: Segment,
        old_blob: Segment | None,
        moved: dict[int, int],
        origins: dict[int, int],
    ) -> int:
        """Copy the open spans into ``fresh``, parents first, each after a link row with its span id.

        Fill ``moved`` (old slot: new slot) and ``origins`` (new slot: span id). Return the first free slot.
        """
        self._abandon_outermost()
        open_slots = {entry & SLOT_MASK for entry in self.entries()}
        open_slots.update(frame.slot for frame in self.frames)
        open_slots.discard(0)
        slot = 1
        for was in sorted(open_slots):
            meta = old.metas[was]
            parent = meta & SLOT_MASK
            if parent not in moved:
                # The parent has ended: a link row that targets itself is its proxy.
                origins[slot] = self.origin(parent)
                _link(fresh, slot, slot, origins[slot])
                moved[parent] = slot
                slot += 1
            row = slot + 1
            origins[row] = self.origin(was)
            _link(fresh, slot, row, origins[row])
            attributes = self._copy_attributes(old_blob, meta >> ATTRIBUTE_SHIFT, fresh)
            fresh.metas[row] = moved[parent] | meta & NAME_MASK | attributes << ATTRIBUTE_SHIFT
            fresh.starts[row] = old.starts[was]
            moved[was] = row
            slot = row + 1
        return slot

    def entries(self) -> list[int]:
        """Return the entries of the open spans of plain code, including orphans."""
        return [*self.orphans, *self.stack]

    def _abandon_outermost(self) -> None:
        """Abandon the outermost spans if more are open than fit into a new segment."""
        for i, entry in enumerate(self.stack[: max(0, len(self.stack) - MAX_OPEN)]):
            if entry and not entry & DROPPED:
                self.end(entry, clock.now() | ABANDONED)
                self.stack[i] = entry & NAME_MASK | DROPPED
        for frame in list(self.frames)[: max(0, len(self.frames) - MAX_FRAMES)]:
            if frame.slot:
                self.end(frame.slot, clock.now() | ABANDONED)
            del self.frames[frame]

    def write_finished(self, word: int, start: int, end: int, attributes: bytes) -> bool:
        """Write a span that has ended, as a child of the innermost open span that began before it.

        Return whether there was space for it.
        """
        offset = self.put_attributes(attributes) if attributes else 0
        slot = self.reserve()
        if not slot:
            return False
        self.metas[slot] = word | self._open_at(start) | offset << ATTRIBUTE_SHIFT
        # The start is stored last because it publishes the span: readers never see it open.
        self.ends[slot] = end
        self.starts[slot] = start
        return True

    def _open_at(self, start: int) -> int:
        """Return the slot of the innermost open span that had begun at this time; 0 if there is none."""
        if self.frames:
            slot = task_spans.current_slot(self)
            return slot if self.starts[slot] <= start else 0
        for entry in reversed(self.stack):
            slot = entry & SLOT_MASK
            if slot and self.starts[slot] <= start:
                return slot
        return 0

    def origin(self, slot: int) -> int:
        """Return the id of the span in this slot of the current segment."""
        span_id = self.origins.get(slot)
        if span_id is not None:
            return span_id
        return self.seq_bits | slot

    def proxy_slot(self, origin: int) -> int:
        """Return the slot of a proxy in the current segment for a span of another one; 0: no space."""
        slot = self.proxy_slots.get(origin, 0) if self.next < self.limit else 0
        if not slot:
            slot = self.reserve()
            if slot and self.segment is not None:
                _link(self.segment, slot, slot, origin)
                self.origins[slot] = origin
                self.proxy_slots[origin] = slot
        return slot

    def end(self, entry: int, word: int) -> None:
        """Store the end of an entry, which closes its span."""
        self.ends[entry & SLOT_MASK] = word

    def leave(self, word: int, end: int) -> int:
        """Close the innermost open span of this name, also an orphan. Return its slot, or 0."""
        for i in range(len(self.stack) - 1, 0, -1):
            entry = self.stack[i]
            if entry & NAME_MASK == word:
                above = self.stack[i + 1 :]
                del self.stack[i:]
                self._orphan(above)
                return self._close(entry, end)
        for i in range(len(self.orphans) - 1, -1, -1):
            if self.orphans[i] & NAME_MASK == word:
                return self._close(self.orphans.pop(i), end)
        return 0

    def leave_by_id(self, identity: int, end: int) -> bool:
        """Close the span with this id, from any thread; its open children stay open."""
        with self.lock:
            slot = self.slot_of(identity)
            if not slot:
                return False
            for entries in (self.stack, self.orphans):
                for entry in list(entries):
                    if entry & SLOT_MASK == slot:
                        entries.remove(entry)
            self.ends[slot] = end
            return True

    def set_aside(self, identity: int, aside: bool) -> None:
        """Exclude an open span from becoming a parent (``aside``), or allow it again."""
        with self.lock:
            slot = self.slot_of(identity)
            source, target = (self.stack, self.orphans) if aside else (self.orphans, self.stack)
            for entry in source[1:] if aside else list(source):
                if slot and entry & SLOT_MASK == slot:
                    source.remove(entry)
                    target.append(entry)

    def drop_orphan(self, word: int) -> None:
        """Remove the latest orphan of this name, as if it had never been opened."""
        for i in range(len(self.orphans) - 1, -1, -1):
            entry = self.orphans[i]
            if entry & NAME_MASK == word:
                del self.orphans[i]
                slot = entry & SLOT_MASK
                if slot in self.origins:
                    # It began in an earlier segment and cannot be removed there.
                    self.end(entry, clock.now() | ABANDONED)
                else:
                    self.starts[slot] = 0
                return

    def leave_dropped(self, word: int) -> None:
        """Remove the innermost entry of this name without a slot (there was no space)."""
        with self.lock:
            for i in range(len(self.stack) - 1, 0, -1):
                entry = self.stack[i]
                if entry & DROPPED and entry & NAME_MASK == word:
                    del self.stack[i]
                    return

    def is_dropped(self, word: int) -> bool:
        """Return whether there was no space for the innermost open span of this name."""
        for entry in reversed(self.stack):
            if entry & NAME_MASK == word:
                return bool(entry & DROPPED)
        return False

    def abandon_open(self) -> None:
        """End every open span now, marked as abandoned: its real end will not be recorded."""
        word = clock.now() | ABANDONED
        for entry in self.entries():
            if entry and not entry & DROPPED:
                self.end(entry, word)
        for frame in self.frames:
            if frame.slot:
                self.ends[frame.slot] = word
        # Also spans that were popped from the stack before an interrupt, and have no end yet.
        metas, starts, ends = self.metas, self.starts, self.ends
        for slot in range(1, min(self.next, len(starts))):
            if not ends[slot] and starts[slot] and metas[slot] & NAME_MASK != LINK_WORD:
                ends[slot] = word

    def _close(self, entry: int, end: int) -> int:
        if entry & DROPPED:
            return 0
        self.end(entry, end)
        return entry & SLOT_MASK

    def _orphan(self, entries: list[int]) -> None:
        self.orphans += [e for e in entries if not e & DROPPED]
        while len(self.orphans) > MAX_ORPHANS:
            self.end(self.orphans.pop(0), clock.now() | ABANDONED)

    def parent_slot(self) -> int:
        """Return the slot of the innermost open span; 0 if there is none."""
        if self.frames:
            return task_spans.current_slot(self)
        return self.plain_parent_slot()

    def plain_parent_slot(self) -> int:
        """Return the slot of the innermost open span of plain code; 0 if there is none."""
        return self.stack[-1] & SLOT_MASK

    def find(self, word: int) -> int:
        """Return the slot of the innermost open span of this name; 0 if there is none."""
        if self.frames:
            slot = task_spans.find(self, word)
            if slot:
                return slot
        for entry in reversed(self.stack):
            if entry & ~SLOT_MASK == word:
                return entry & SLOT_MASK
        return 0

    def innermost(self, words: Container[int]) -> int:
        """Return the name bits of the innermost open span with one of these names; 0 if there is none."""
        frame = task_spans.innermost_of(words) if self.frames else None
        if frame is not None:
            return frame.word
        for entry in reversed(self.stack):
            if entry & NAME_MASK in words:
                return entry & NAME_MASK
        return 0

    def find_origin(self, word: int) -> int | None:
        """Return the id of the open span that leaving this name would end; None if there is none."""
        frame = task_spans.innermost(word) if self.frames else None
        if frame is not None:
            return frame.origin
        for entry in reversed(self.entries()):
            if entry & NAME_MASK == word:
                return None if entry & DROPPED else self.origin(entry & SLOT_MASK)
        return None

    def slot_of(self, identity: int) -> int:
        """Return the slot of the open span of plain code with this id; 0 if it is not open here."""
        for entry in reversed(self.entries()):
            slot = entry & SLOT_MASK
            if slot and self.origin(slot) == identity:
                return slot
        return 0

    def current_span(self) -> int | None:
        """Return the id of the innermost open span of this thread; None if there is none."""
        slot = self.parent_slot()
        return self.origin(slot) if slot else None

    # Attributes

    def put_attributes(self, data: bytes) -> int:
        """Append an encoded attribute set. Return its offset in 8-byte units, 0 if there is no space.

        May roll over, which changes slots: call it before looking up the parent and the slot.
        """
        if self.blob is not None and self.blob_next + len(data) >= self.blob_limit:
            self.limit = 0
        if self.next >= self.limit and not self.roll():
            return 0
        if self.blob is None and not self._open_blob(self.segment):
            return 0
        return self._append(data)

    def _open_blob(self, segment: Segment | None) -> bool:
        is_own = is_current(self)
        try:
            if is_own:
                hide_lane(self)
            return self._attach_blob(segment)
        finally:
            if is_own:
                local.lane = self

    def _attach_blob(self, segment: Segment | None) -> bool:
        blob = None if segment is None else self._take("attributes", segment.seq)
        if blob is None:
            self.journal.count_drop("attributes")
            return False
        blob.attach(**self.title)
        self.blob = blob
        self.blob_map = blob.map
        self.blob_next = HEADER_BYTES
        self.blob_limit = ATTRIBUTE_BYTES
        return True

    def _append(self, data: bytes) -> int:
        # Texts contain no zero byte and the space after them is zero, so no length is stored.
        size = len(data)
        offset = self.blob_next
        self.blob_next = (offset + size + 8) & -8
        self.blob_map[offset : offset + size] = data
        return offset >> 3

    def _copy_attributes(self, old_blob: Segment | None, offset: int, fresh: Segment) -> int:
        if not offset or old_blob is None or (self.blob is None and not self._open_blob(fresh)):
            return 0
        data = _text_at(old_blob, offset)
        return self._append(data) if self.blob_next + len(data) < self.blob_limit else 0

    def attributes_of(self, slot: int) -> bytes:
        """Return the encoded attribute set of a slot of the current segment; b"" if it has none."""
        offset = self.metas[slot] >> ATTRIBUTE_SHIFT
        return b"" if not offset or self.blob is None else _text_at(self.blob, offset)

    # Metrics

    def roll_metrics(self) -> bool:
        """Switch to a new metric segment."""
        is_own = is_current(self)
        try:
            if is_own:
                hide_lane(self)
            return self._roll_metrics()
        finally:
            if is_own:
                local.lane = self

    def _roll_metrics(self) -> bool:
        fresh = self._take("metrics")
        if fresh is None:
            self.row_limit = 0
            return False
        fresh.attach(**self.title)
        old, self.metrics = self.metrics, fresh
        self.rows = fresh.map
        self.row_next = HEADER_BYTES
        self.row_limit = METRIC_BYTES
        if old is not None:
            self.journal.retire(old, None)
        return True

    def close(self) -> None:
        """Make the next write ask for a new segment."""
        self.limit = 0
        self.row_limit = 0


def _text_at(blob: Segment, offset: int) -> bytes:
    begin = offset << 3
    return blob.map[begin : blob.map.find(b"\0", begin)]


def _link(segment: Segment, slot: int, target: int, origin: int) -> None:
    segment.metas[slot] = target | LINK_WORD
    segment.starts[slot] = origin + 1
