"""The span segments of one process, wherever they lie just now: live, or sealed in an archive.

A segment may be sealed and its file removed at any moment. It is in an archive before it goes, so whoever
does not find the one finds the other.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stepwell.journal.archive import Frame, read_frames
from stepwell.journal.files import open_file
from stepwell.journal.follow_document import MAX_TIME
from stepwell.journal.format import HEADER_BYTES, SIZES, parse_header
from stepwell.journal.segment_rows import (
    LiveRows,
    Row,
    SealedRows,
    SealedTexts,
    read_live_row,
    read_live_rows,
    read_live_text,
)

MAX_SEQ = (1 << 31) - 1
MAX_UNPACKED = {"spans": SIZES["spans"], "attributes": 4 * SIZES["attributes"]}
KEPT_UNPACKED = 8
KEPT_PLACES = 4096
"""So many sealed segments can be found again, for spans whose parents are in them."""

_LIVE = re.compile(r"spans-(\d+)\.(?:live|full)")
_ARCHIVE = re.compile(r"spans-(\d+)\.zst")

T = TypeVar("T")


@dataclass(slots=True)
class SealedSegment:
    """Where a sealed segment of so many slots is; when the first and last of its spans began."""

    seq: int
    thread: str
    slots: int
    first: int
    last: int
    frame: Frame


class SegmentFiles:
    """Finds segments and reads from them.

    Attributes:
        live: files of the segments that are live, by their number, as of the last ``look``.
        sealed: the segments that are in archives and that nobody has called ``done`` yet.
        lost: how many segments or whole archives were gone, or damaged, before they were read.
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
        self._blobs: dict[int, Frame] = {}
        self._unpacked: OrderedDict[tuple[str, int], Any] = OrderedDict()

    # Finding them

    def look(self) -> None:
        """Find out what there is now."""
        found = numbered_files(self.live_folder, _LIVE)
        self.live = {seq: path for seq, path in found.items() if seq not in self._done}
        self.look_at_archives()

    def look_at_archives(self) -> None:
        """Find what has been sealed since the last time."""
        files = numbered_files(self.folder, _ARCHIVE)
        for number in sorted(files):
            if number < self._file:
                continue
            if number > self._file:
                # The size cap removes the oldest: those in between were never seen.
                self.lost += number - self._file - 1
                self._file, self._offset = number, 0
            self._read_archive(files[number])

    def _read_archive(self, path: Path) -> None:
        try:
            if path.stat().st_size <= self._offset:
                return
        except OSError:
            return
        for frame in read_frames(path, self._offset):
            self._offset = frame.end
            self._add(frame)

    def _add(self, frame: Frame) -> None:
        header = frame.header
        if not isinstance(header, dict) or header.get("process") != self._process:
            return
        kind, seq = header.get("kind"), header.get("seq")
        if not isinstance(seq, int) or not 0 <= seq <= MAX_SEQ or seq in self._done:
            return
        place = Frame(frame.path, frame.offset, frame.size, {})
        if kind == "attributes":
            self._blobs[seq] = place
        elif kind == "spans":
            slots, first, last = _extent(header)
            # Without a span of its own, what goes on in it began in those before.
            self._last = max(self._last, last)
            segment = SealedSegment(
                seq, str(header.get("thread")), slots, first, last or self._last, place
            )
            self.sealed.setdefault(seq, segment)

    @property
    def progress(self) -> tuple[int, int]:
        """How many segments are done with, and how many wait: another value whenever either changes."""
        return len(self._done), len(self.sealed)

    def was_read(self, seq: int) -> bool | None:
        """Whether a segment that is done with was read or lost; None: it is not done with."""
        return self._done.get(seq)

    def done(self, seq: int, was_read: bool) -> None:
        """Say that a segment needs no more reading."""
        self._done[seq] = was_read
        self._blobs.pop(seq, None)
        segment = self.sealed.pop(seq, None)
        if not was_read:
            self.lost += 1
        elif segment is not None:
            self._places[seq] = segment
            if len(self._places) > KEPT_PLACES:
                del self._places[next(iter(self._places))]

    # Reading them

    def thread_of(self, seq: int) -> str | None:
        """Name of the thread that writes a live segment; None while it is not in use.

        OSError when it is gone.
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
        """New rows of a live segment, and these older ones; OSError when it is gone."""
        return read_live_rows(self.live[seq], first, slots)

    def sealed_rows(self, seq: int) -> SealedRows | None:
        """The rows of a sealed segment. OSError when they cannot be read just now."""
        place = self.sealed.get(seq) or self._places.get(seq)
        return None if place is None else self._unpack("spans", seq, place.frame, SealedRows)

    def row(self, seq: int, slot: int) -> Row | None:
        """One row of any segment, None when it cannot be found."""
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
        """The attribute text at an offset of any segment, b"" when it cannot be found."""
        for state in () if seq in self.sealed else ("live", "full"):
            try:
                return read_live_text(self.live_folder / f"attributes-{seq:05d}.{state}", offset)
            except OSError:
                continue
        if seq not in self._blobs:
            self.look_at_archives()
        try:
            frame = self._blobs.get(seq)
            if frame is not None:
                texts = self._unpack("attributes", seq, frame, SealedTexts)
                return b"" if texts is None else texts.text(offset)
        except OSError:
            pass
        return b""

    def _unpack(self, kind: str, seq: int, frame: Frame, take: type[T]) -> T | None:
        key = kind, seq
        if key in self._unpacked:
            self._unpacked.move_to_end(key)
            found: T | None = self._unpacked[key]
            return found
        try:
            found = take(frame.payload(MAX_UNPACKED[kind]))  # type: ignore[call-arg]
        except (FileNotFoundError, ValueError):
            # Removed to keep to a size cap, or damaged: no later try would find it.
            found = None
        self._unpacked[key] = found
        if len(self._unpacked) > KEPT_UNPACKED:
            self._unpacked.popitem(last=False)
        return found


def numbered_files(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """The files in a folder whose names match, by the number that the pattern finds in them."""
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    matches = [match for match in map(pattern.fullmatch, names) if match is not None]
    return {int(match[1]): folder / match[0] for match in matches if len(match[1]) < 12}


def _extent(header: dict[str, Any]) -> tuple[int, int, int]:
    """Slots, first and last time; 0 for what it does not tell."""
    time = header.get("time")
    told = [header.get("slots"), *(time if isinstance(time, list) and len(time) == 2 else (0, 0))]
    slots, first, last = (n if type(n) is int and 0 <= n <= MAX_TIME else 0 for n in told)
    return slots, first, last
