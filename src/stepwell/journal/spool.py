"""The spool: live files on a local disk if the run folder is on a network file system.

Mapped files are neither safe nor fast there. The live files are in a local folder, whose path is in
process.json, and once a second the pump copies new content into the run folder with plain writes. Readers on
the same machine read the spool itself. ``stepwell recover`` collects an abandoned spool.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stepwell._core.errors import warn_once
from stepwell._core.system import is_network
from stepwell.journal.format import (
    ATTRIBUTE_SHIFT,
    EVENTS,
    HEADER_BYTES,
    NAMES,
    ROW_BYTES,
    SPAN_SLOTS,
)
from stepwell.journal.journal import Journal
from stepwell.journal.lane import Lane
from stepwell.journal.segment import Segment

METAS, STARTS, ENDS = 0, SPAN_SLOTS, 2 * SPAN_SLOTS
LEAST_OFFSET = 1 << ATTRIBUTE_SHIFT


def choose_spool(run_folder: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder for live files; None if they can be in the run folder.

    ``STEPWELL_SPOOL=off`` never uses a spool; ``STEPWELL_SPOOL=DIR`` always uses one in ``DIR``.
    """
    wanted = environ.get("STEPWELL_SPOOL", "")
    if wanted.lower() == "off":
        return None
    if not wanted and not is_network(run_folder):
        return None
    root = Path(wanted) if wanted else _local_root(environ)
    own = None if root is None else _own_folder(root.absolute())
    if own is None:
        warn_once(
            "spool",
            "%s cannot hold a spool: live files go to the run folder itself. Set STEPWELL_SPOOL to "
            "a local folder that belongs to you",
            root or "no local disk",
        )
        return None
    return own / run_folder.name


def _own_folder(root: Path) -> Path | None:
    """Return a folder below ``root`` that only this user can write; None if another user created it."""
    uid = os.getuid() if hasattr(os, "getuid") else 0
    own = root / f"stepwell-{uid}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            own.mkdir(mode=0o700)
        status = own.lstat()
    except OSError:
        return None
    trusted = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022
    return own if trusted and (uid == status.st_uid or uid == 0) else None


def _local_root(environ: Mapping[str, str]) -> Path | None:
    asked = [environ.get("SLURM_TMPDIR"), environ.get("TMPDIR"), tempfile.gettempdir()]
    for name in [*asked, "/var/tmp", "/dev/shm"]:
        if name and os.path.isdir(name) and os.access(name, os.W_OK) and not is_network(Path(name)):
            return Path(name)
    return None


class SpoolCopy:
    """Copies the live files of a journal to the run folder."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        self.journal = journal
        self.folder = folder
        self._texts: dict[str, int] = {}
        self._spans: dict[str, tuple[int, list[int]]] = {}
        self._bytes: dict[str, int] = {}

    def copy(self, seal_retired: Callable[[], None]) -> None:
        """Copy the content that is new since the last time.

        A record is written after the names and attributes that it refers to. So these are copied after the
        records were read, and before they are copied; and the previous segment of a lane before the next.
        """
        self._copy_text(EVENTS)
        seen = [self._look_at(lane) for lane in list(self.journal.lanes)]
        seal_retired()
        self.copy_names()
        for look in seen:
            self._copy_lane(look)

    def copy_names(self) -> None:
        """Copy new names, before the records that use them."""
        self._copy_text(NAMES)

    def _look_at(self, lane: Lane) -> _Look:
        spans, metrics = lane.segment, lane.metrics
        rows = None if spans is None else self._look(spans)
        return _Look(lane, spans, rows, metrics, _complete_rows(metrics) if metrics else 0)

    def _copy_lane(self, look: _Look) -> None:
        spans, rows, blob = look.spans, look.rows, look.lane.blob
        if spans is not None and rows is not None and not spans.map.closed:
            has_blob = blob is not None and blob.seq == spans.seq
            if blob is not None and has_blob:
                self._copy_bytes(blob, _text_end(blob))
            # Without its attributes: the lane has just left this segment, and the next round seals it.
            if has_blob or not rows.have_attributes:
                self._write(spans, rows.pieces)
                self._spans[spans.path.name] = rows.high, rows.still_open
        if look.metrics is not None and not look.metrics.map.closed:
            self._copy_bytes(look.metrics, look.complete)

    def forget(self, segment: Segment) -> None:
        """Remove the copy of a segment that was sealed."""
        (self.folder / segment.path.name).unlink(missing_ok=True)
        self._spans.pop(segment.path.name, None)
        self._bytes.pop(segment.path.name, None)

    def finish(self) -> None:
        """Copy the rest and remove the spool."""
        for name in (NAMES, EVENTS):
            self._copy_text(name)
            (self.journal.folder / name).unlink(missing_ok=True)
        for folder in (self.journal.folder / "workers", self.journal.folder):
            try:
                folder.rmdir()
            except OSError:
                return

    def _copy_text(self, name: str) -> None:
        done = self._texts.get(name, 0)
        try:
            with (self.journal.folder / name).open("rb") as source:
                source.seek(done)
                data = source.read()
        except FileNotFoundError:
            return
        if data:
            self._write_pieces(name, [(done, data)])
            self._texts[name] = done + len(data)

    def _copy_bytes(self, segment: Segment, end: int) -> None:
        """Copy the new bytes of a segment that is written once and in order."""
        done = self._bytes.get(segment.path.name, 0)
        if end > done:
            self._write(segment, [(done, segment.map[done:end])])
            self._bytes[segment.path.name] = end

    def _look(self, segment: Segment) -> _Rows | None:
        """Return new rows, and older ones that were open the last time; None if there are none."""
        low, still_open = self._spans.get(segment.path.name, (0, []))
        # Like readers: a row with a start is complete except for its end.
        starts = segment.map[_at(STARTS + low) : _at(STARTS + SPAN_SLOTS)].rstrip(b"\0")
        count = -(-len(starts) // 8)
        if not count and not still_open:
            return None
        high = low + count
        starts = starts.ljust(8 * count, b"\0")
        metas = segment.map[_at(METAS + low) : _at(METAS + high)]
        ends = segment.map[_at(ENDS + low) : _at(ENDS + high)]
        pieces = [(0, segment.map[:HEADER_BYTES])] if low == 0 else []
        left = []
        have_attributes = max(array("Q", metas), default=0) >= LEAST_OFFSET
        for slot in still_open:
            meta = segment.map[_at(METAS + slot) : _at(METAS + slot + 1)]
            end = segment.map[_at(ENDS + slot) : _at(ENDS + slot + 1)]
            have_attributes = have_attributes or int.from_bytes(meta, sys.byteorder) >= LEAST_OFFSET
            pieces += [(_at(METAS + slot), meta), (_at(ENDS + slot), end)]
            if not any(end):
                left.append(slot)
        # Starts last: they publish the rows to readers.
        for column, data in ((METAS, metas), (ENDS, ends), (STARTS, starts)):
            pieces.append((_at(column + low), data))
        words = zip(array("Q", starts), array("Q", ends), strict=True)
        left += [low + i for i, (start, end) in enumerate(words) if start and not end]
        return _Rows(high, left, pieces, have_attributes)

    def _write(self, segment: Segment, pieces: list[tuple[int, bytes]]) -> None:
        self._write_pieces(segment.path.name, pieces, len(segment.map))

    def _write_pieces(self, name: str, pieces: list[tuple[int, bytes]], size: int = 0) -> None:
        fd = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
            for begin, data in pieces:
                if os.pwrite(fd, data, begin) != len(data):
                    raise OSError(errno.ENOSPC, "short write", name)
        finally:
            os.close(fd)


@dataclass(frozen=True)
class _Look:
    """The content of a lane at one moment; its thread continues meanwhile."""

    lane: Lane
    spans: Segment | None
    rows: _Rows | None
    metrics: Segment | None
    complete: int


@dataclass(frozen=True)
class _Rows:
    """Rows of a span segment to be copied: up to slot ``high``, and the slots of open spans."""

    high: int
    still_open: list[int]
    pieces: list[tuple[int, bytes]]
    have_attributes: bool


def _complete_rows(segment: Segment) -> int:
    """Return the end of the complete metric rows: the last word of a row is stored last."""
    used = len(segment.map[HEADER_BYTES:].rstrip(b"\0"))
    rows, rest = divmod(used, ROW_BYTES)
    return HEADER_BYTES + ROW_BYTES * (rows + (rest > ROW_BYTES - 8))


def _text_end(segment: Segment) -> int:
    """Return the offset of the next attribute set."""
    return (len(segment.map[:].rstrip(b"\0")) + 8) & -8


def _at(cell: int) -> int:
    return HEADER_BYTES + 8 * cell
