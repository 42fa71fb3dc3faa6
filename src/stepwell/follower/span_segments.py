"""The span segments of one process, live or sealed, and the ancestors of spans in them.

A segment may be sealed and its file removed at any time. It is in an archive before the file is removed, so
a reader that misses the file finds the block.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stepwell._core.files import open_file
from stepwell.follower.document import is_time
from stepwell.follower.names import SpanNameFilter
from stepwell.follower.rows import (
    LiveRows,
    SealedRows,
    SealedTexts,
    SpanRow,
    read_live_row,
    read_live_rows,
    read_live_text,
)
from stepwell.journal.archive import Block, read_blocks
from stepwell.journal.format import (
    HEADER_BYTES,
    LINK_NAME,
    NAME_SHIFT,
    SIZES,
    SLOT_BITS,
    SLOT_MASK,
    SPAN_SLOTS,
    parse_header,
    span_id,
)

MAX_SEQ = (1 << 31) - 1
MAX_UNPACKED = {"spans": SIZES["spans"], "attributes": 4 * SIZES["attributes"]}
KEPT_UNPACKED = 8
KEPT_PLACES = 4096
"""Sealed segments that are remembered after reading, for spans whose parents are in them."""

_LIVE = re.compile(r"spans-(\d+)\.(?:live|full)")
_ARCHIVE = re.compile(r"spans-(\d+)\.zst")

T = TypeVar("T")


@dataclass(slots=True)
class SealedSegment:
    """A sealed segment: its number of slots, when its first and last span began, and its block."""

    seq: int
    thread: str
    slots: int
    first: int
    last: int
    block: Block


class SegmentFiles:
    """Finds segments and reads from them.

    Attributes:
        live: files of live segments by their number, as of the last ``look``.
        sealed: segments in archives for which ``done`` was not called yet, by their number.
        lost: the number of segments or archives removed or damaged before they were read. An archive of
            which only the end may be missing counts, too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live_folder = folder
        self.live: dict[int, Path] = {}
        self.sealed: dict[int, SealedSegment] = {}
        self.lost = 0
        self._process = folder.name
        self._file = -1
        self._offset = 0
        self._last = 0
        self._done: dict[int, bool] = {}
        self._places: dict[int, SealedSegment] = {}
        self._blobs: dict[int, Block] = {}
        self._unpacked: OrderedDict[tuple[str, int], Any] = OrderedDict()

    # Finding

    def look(self) -> None:
        files = numbered_files(self.live_folder, _LIVE)
        self.live = {seq: path for seq, path in files.items() if seq not in self._done}
        self.look_at_archives()

    def look_at_archives(self) -> None:
        """Find segments that were sealed since the last time."""
        files = numbered_files(self.folder, _ARCHIVE)
        for number in sorted(files):
            if number < self._file:
                continue
            if number > self._file:
                # The size cap removed the archives in between. If the one that was read last is gone, too,
                # its end may be lost.
                is_last_gone = self._file >= 0 and self._file not in files
                self.lost += number - self._file - 1 + is_last_gone
                self._file, self._offset = number, 0
            self._read_archive(files[number])

    def _read_archive(self, path: Path) -> None:
        try:
            if path.stat().st_size <= self._offset:
                return
        except OSError:
            return
        for block in read_blocks(path, self._offset):
            self._offset = block.end
            self._add(block)

    def _add(self, block: Block) -> None:
        header = block.header
        if not isinstance(header, dict) or header.get("process") != self._process:
            return
        kind, seq = header.get("kind"), header.get("seq")
        if not isinstance(seq, int) or not 0 <= seq <= MAX_SEQ or seq in self._done:
            return
        place = Block(block.path, block.offset, block.size, {})
        if kind == "attributes":
            self._blobs[seq] = place
        elif kind == "spans":
            slots, first, last = _extent(header)
            # All of its spans may have begun in earlier segments.
            self._last = max(self._last, last)
            segment = SealedSegment(
                seq, str(header.get("thread")), slots, first, last or self._last, place
            )
            self.sealed.setdefault(seq, segment)

    @property
    def progress(self) -> tuple[int, int]:
        """The numbers of segments that are done and that wait; changes with every progress."""
        return len(self._done), len(self.sealed)

    def was_read(self, seq: int) -> bool | None:
        """Return True if a segment was read, False if it was lost, None if it is not done."""
        return self._done.get(seq)

    def done(self, seq: int, was_read: bool) -> None:
        """Mark a segment as done: read, or lost."""
        self._done[seq] = was_read
        self._blobs.pop(seq, None)
        segment = self.sealed.pop(seq, None)
        if not was_read:
            self.lost += 1
        elif segment is not None:
            self._places[seq] = segment
            if len(self._places) > KEPT_PLACES:
                del self._places[next(iter(self._places))]

    # Reading

    def thread_of(self, seq: int) -> str | None:
        """Return the name of the thread that writes a live segment; None while it is not in use.

        Raise OSError if the file was removed.
        """
        fd = open_file(self.live[seq])
        try:
            header = parse_header(os.pread(fd, HEADER_BYTES, 0))
        finally:
            os.close(fd)
        if header is None or header.get("kind") != "spans" or header.get("seq") != seq:
            return None
        return str(header.get("thread"))

    def live_rows(self, seq: int, first: int, slots: list[int]) -> LiveRows:
        """Return new rows of a live segment and these older ones. Raise OSError if the file was removed."""
        return read_live_rows(self.live[seq], first, slots)

    def sealed_rows(self, seq: int) -> SealedRows | None:
        """Return the rows of a sealed segment; None if lost. Raise OSError for a temporary problem."""
        place = self.sealed.get(seq) or self._places.get(seq)
        return None if place is None else self._unpack("spans", seq, place.block, SealedRows)

    def row(self, seq: int, slot: int) -> SpanRow | None:
        """Return one row of any segment; None if it cannot be found."""
        try:
            if seq not in self.sealed and seq in self.live:
                try:
                    return read_live_row(self.live[seq], slot)
                except OSError:
                    self.look_at_archives()
            rows = self.sealed_rows(seq)
        except OSError:
            return None
        return None if rows is None else rows.row(slot)

    def text(self, seq: int, offset: int) -> bytes:
        """Return the attribute text at an offset of any segment; b"" if it cannot be found."""
        for state in () if seq in self.sealed else ("live", "full"):
            try:
                return read_live_text(self.live_folder / f"attributes-{seq:05d}.{state}", offset)
            except OSError:
                continue
        if seq not in self._blobs:
            self.look_at_archives()
        try:
            block = self._blobs.get(seq)
            if block is not None:
                texts = self._unpack("attributes", seq, block, SealedTexts)
                return b"" if texts is None else texts.text(offset)
        except OSError:
            pass
        return b""

    def _unpack(self, kind: str, seq: int, block: Block, take: type[T]) -> T | None:
        key = kind, seq
        if key in self._unpacked:
            self._unpacked.move_to_end(key)
            content: T | None = self._unpacked[key]
            return content
        try:
            content = take(block.payload(MAX_UNPACKED[kind]))  # type: ignore[call-arg]
        except (FileNotFoundError, ValueError):
            # Removed by the size cap, or damaged: trying again does not help.
            content = None
        self._unpacked[key] = content
        if len(self._unpacked) > KEPT_UNPACKED:
            self._unpacked.popitem(last=False)
        return content


def numbered_files(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """Return the files in a folder whose names match, by the number in the first group of the pattern."""
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    matches = [match for match in map(pattern.fullmatch, names) if match is not None]
    return {int(match[1]): folder / match[0] for match in matches if len(match[1]) < 12}


def _extent(header: dict[str, Any]) -> tuple[int, int, int]:
    """Return slots, first and last time of a header; 0 for missing or invalid values."""
    time = header.get("time")
    values = [header.get("slots"), *(time if isinstance(time, list) and len(time) == 2 else (0, 0))]
    slots, first, last = (n if is_time(n) else 0 for n in values)
    return slots, first, last


MAX_REMEMBERED = 1 << 16
MAX_JUMPS = 200
"""Segments visited for one ancestor: links of a malicious file may never end."""


class Ancestry:
    """Finds the ancestors of spans. ``live`` has rows that were read already, by segment."""

    def __init__(self, files: SegmentFiles, names: SpanNameFilter) -> None:
        self.live: dict[int, LiveRows] = {}
        self._files = files
        self._names = names
        self._nearest: dict[int, int | None] = {}

    def nearest(self, seq: int, slot: int) -> int | None:
        """Return the id of the span in this slot if it is kept, else of its nearest ancestor that is."""
        passed = []
        nearest = None
        jumps = 0
        while jumps < MAX_JUMPS:
            place = span_id(seq, slot)
            if place in self._nearest:
                nearest = self._nearest[place]
                break
            passed.append(place)
            row = self.row(seq, slot)
            if row is None:
                break
            _, start, meta = row
            above = meta & SLOT_MASK
            if _name(meta) == LINK_NAME and start:
                # A link to a span in another segment.
                jumps += 1
                seq, slot = (start - 1) >> SLOT_BITS, (start - 1) % SPAN_SLOTS
            elif start and _name(meta) and self._names.find(_name(meta)) is not None:
                nearest = self.identity(seq, slot)
                break
            elif 0 < above < slot:
                slot = above
            else:
                break
        self._remember(passed, nearest)
        return nearest

    def _remember(self, places: list[int], nearest: int | None) -> None:
        if len(self._nearest) > MAX_REMEMBERED:
            for place in list(self._nearest)[: MAX_REMEMBERED // 2]:
                del self._nearest[place]
        for place in places:
            self._nearest[place] = nearest

    def identity(self, seq: int, slot: int) -> int:
        """Return the id of the span in a slot. A continued span follows a link row with its id."""
        row = self.row(seq, slot - 1) if slot > 1 else None
        if row is not None and row[1]:
            meta = row[2]
            if _name(meta) == LINK_NAME and meta & SLOT_MASK == slot:
                return row[1] - 1
        return span_id(seq, slot)

    def row(self, seq: int, slot: int) -> SpanRow | None:
        """Return one row of any segment; None if it cannot be found."""
        rows = self.live.get(seq)
        row = None if rows is None else rows.row(slot)
        return self._files.row(seq, slot) if row is None else row


def _name(meta: int) -> int:
    return meta >> NAME_SHIFT & LINK_NAME
