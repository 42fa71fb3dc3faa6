"""The spool: live files on the node when the run folder is on a network file system.

Mapping files there is not safe, and every node would pay for it. So the live files are on a local disk,
named in process.json, and the pump copies what is new into the run folder once a second by plain
writes. A reader on the node looks at the spool itself; ``stepwell recover`` collects an abandoned one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from stepwell.journal.format import HEADER_BYTES, METRIC_BYTES, ROW_BYTES, SPAN_SLOTS
from stepwell.journal.journal import EVENTS, NAMES, Journal
from stepwell.journal.lane import Lane
from stepwell.journal.segment import Segment
from stepwell.journal.system import is_network

METAS, STARTS, ENDS = 0, SPAN_SLOTS, 2 * SPAN_SLOTS


def choose_spool(run_folder: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where live files go instead of the run folder; None: they can be in it.

    ``STEPWELL_SPOOL=off`` never spools, ``STEPWELL_SPOOL=DIR`` always does, there.
    """
    wanted = environ.get("STEPWELL_SPOOL", "")
    if wanted.lower() == "off":
        return None
    if not wanted and not is_network(run_folder):
        return None
    root = Path(wanted) if wanted else _local_root(environ)
    if root is None:
        return None
    uid = os.getuid() if hasattr(os, "getuid") else 0
    return root.absolute() / f"stepwell-{uid}" / run_folder.name


def _local_root(environ: Mapping[str, str]) -> Path | None:
    asked = [environ.get("SLURM_TMPDIR"), environ.get("TMPDIR"), tempfile.gettempdir()]
    for name in [*asked, "/var/tmp", "/dev/shm"]:
        if name and os.path.isdir(name) and os.access(name, os.W_OK) and not is_network(Path(name)):
            return Path(name)
    return None


class SpoolCopy:
    """Keeps copies of a journal's live files in the run folder."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        self.journal = journal
        self.folder = folder
        self._texts: dict[str, int] = {}
        self._spans: dict[str, tuple[int, list[int]]] = {}
        self._bytes: dict[str, int] = {}

    def copy(self) -> None:
        """Copy what is new since the last time."""
        for name in (NAMES, EVENTS):
            self._copy_text(name)
        for lane in list(self.journal.lanes):
            self._copy_lane(lane)

    def _copy_lane(self, lane: Lane) -> None:
        # Attributes before the spans that refer to them.
        if lane.blob is not None:
            self._copy_bytes(lane.blob, lane.blob_next)
        segment, high = lane.segment, lane.next
        if segment is not None and lane.segment is segment:
            self._copy_spans(segment, min(high, SPAN_SLOTS))
        metrics, end = lane.metrics, lane.row_next
        if metrics is not None and lane.metrics is metrics:
            self._copy_bytes(metrics, _written_rows(metrics, end))

    def forget(self, segment: Segment) -> None:
        """A segment was sealed: its copy has served."""
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
            with (self.folder / name).open("ab") as target:
                target.write(data)
            self._texts[name] = done + len(data)

    def _copy_bytes(self, segment: Segment, end: int) -> None:
        """Copy a segment whose bytes are written once and in order."""
        done = self._bytes.get(segment.path.name, 0)
        if end > done:
            self._write(segment, [(done, end)])
            self._bytes[segment.path.name] = end

    def _copy_spans(self, segment: Segment, high: int) -> None:
        """Copy new rows, and ends that older rows got meanwhile."""
        name = segment.path.name
        low, still_open = self._spans.get(name, (0, []))
        starts = [slot for slot in range(max(low, 1), high) if segment.starts[slot]]
        ended = [slot for slot in still_open if segment.ends[slot]]
        ranges = [(0, HEADER_BYTES)] if low == 0 else []
        ranges += [_cells(slot + ENDS, 1) for slot in ended]
        # Starts last: a reader takes a row as written when it sees its start.
        ranges += [_cells(low + column, high - low) for column in (METAS, ENDS, STARTS)]
        self._write(segment, ranges)
        left = [slot for slot in (*still_open, *starts) if not segment.ends[slot]]
        # The last row may be half written: it is copied once more.
        low = high if high - 1 in starts[-1:] else high - 1
        self._spans[name] = (low, [slot for slot in left if slot < low])

    def _write(self, segment: Segment, ranges: list[tuple[int, int]]) -> None:
        path = self.folder / segment.path.name
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            if os.fstat(fd).st_size < len(segment.map):
                os.ftruncate(fd, len(segment.map))
            for begin, end in ranges:
                os.pwrite(fd, segment.map[begin:end], begin)
        finally:
            os.close(fd)


def _written_rows(segment: Segment, end: int) -> int:
    """Where the rows end that are complete; the last one may still be being written."""
    end = min(end, METRIC_BYTES)
    if end > HEADER_BYTES and not segment.words[(end - HEADER_BYTES) // 8 - 1]:
        end -= ROW_BYTES
    return end


def _cells(index: int, count: int) -> tuple[int, int]:
    begin = HEADER_BYTES + 8 * index
    return begin, begin + 8 * count
