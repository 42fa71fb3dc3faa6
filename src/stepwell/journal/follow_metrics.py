"""The metric segments of a process, wherever they lie just now, and how far each was given out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stepwell.journal.archive import Frame, read_frames
from stepwell.journal.follow_document import MAX_TIME
from stepwell.journal.metric_names import MetricNames
from stepwell.journal.metric_rows import (
    NOWHERE,
    WHOLE,
    Columns,
    LiveMetrics,
    PendingRows,
    Position,
    Wanted,
    lane_of,
    read_live_metrics,
    read_sealed_metrics,
)
from stepwell.journal.segment_files import MAX_SEQ, numbered_files

_LIVE = re.compile(r"metrics-(\d+)\.(?:live|full)")
_ARCHIVE = re.compile(r"metrics-(\d+)\.zst")

Place = tuple[int, int]
"""Number of an archive, and an offset in it."""
START: Place = (-1, 0)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed segment; ``place`` is where its frame begins, ``first`` the time of its first row."""

    seq: int
    thread: str
    first: int
    place: Place
    frame: Frame


class FollowedMetrics:
    """Finds the metric segments of a process and gives out their rows.

    Attributes:
        threads: the names of threads by the numbers of their lanes.
        lost: how many segments or archives were gone (the size cap), or damaged, before they were read.
        missed: whether something could not be read just now.
    """

    def __init__(self, folder: Path, names: MetricNames, cursor: dict[str, Any]) -> None:
        self.folder = folder
        self.threads: dict[int, str] = {}
        self.lost = 0
        self.missed = False
        self._names = names
        number, offset = cursor.get("archive") or START
        self._done_before: Place = (int(number), int(offset))
        rows = cursor.get("rows") or {}
        self._positions = {int(seq): Position.from_json(at) for seq, at in rows.items()}
        self._done: set[int] = set()
        self._scanned: Place = START
        self._sealed: dict[int, Sealed] = {}
        self._live: dict[int, LiveMetrics] = {}
        self._unpacked: dict[int, PendingRows] = {}

    def to_json(self) -> dict[str, Any]:
        """How far it is, as plain values. All that stands in archives before ``archive`` is done."""
        left = [s.place for s in self._sealed.values() if not self._is_done(s.seq)]
        first = min(left, default=self._scanned)
        kept = {seq: at for seq, at in self._positions.items() if not self._is_behind(seq, first)}
        return {
            "archive": list(first),
            "rows": {str(seq): at.to_json() for seq, at in sorted(kept.items())},
        }

    def _is_behind(self, seq: int, place: Place) -> bool:
        sealed = self._sealed.get(seq)
        return seq in self._done or (sealed is not None and sealed.place < place)

    def _is_done(self, seq: int) -> bool:
        return self._positions.get(seq) == WHOLE

    # Finding them

    def look(self, live_folder: Path) -> None:
        """Find out what there is now. Names have to be read after it."""
        self.missed = False
        files = numbered_files(live_folder, _LIVE)
        self._look_at_archives()
        self._live = {}
        gone = []
        for seq in sorted(files.keys() - self._sealed.keys() - self._done):
            try:
                first = self._positions.get(seq, NOWHERE).first
                live = read_live_metrics(files[seq], seq, first)
            except OSError:
                gone.append(seq)
                continue
            if live is not None:
                self._live[seq] = live
                self.threads[live.lane] = live.thread
        if gone:
            # It is in an archive before it goes.
            self._look_at_archives()
            self.missed = not self._sealed.keys() >= set(gone)

    def _look_at_archives(self) -> None:
        files = numbered_files(self.folder, _ARCHIVE)
        for number in sorted(files):
            file, offset = self._scanned
            if number < file:
                continue
            if number > file:
                if file >= 0 or self._done_before == START:
                    # The size cap removes the oldest: those in between were never seen.
                    self.lost += number - file - 1
                offset = 0
            self._scan(number, files[number], offset)

    def _scan(self, number: int, path: Path, offset: int) -> None:
        self._scanned = number, offset
        try:
            if path.stat().st_size <= offset:
                return
        except OSError:
            return
        for frame in read_frames(path, offset):
            self._add(frame, self._scanned)
            self._scanned = number, frame.end

    def _add(self, frame: Frame, place: Place) -> None:
        header = frame.header
        if not isinstance(header, dict) or header.get("process") != self.folder.name:
            return
        seq = header.get("seq")
        if header.get("kind") != "metrics" or type(seq) is not int or not 0 <= seq <= MAX_SEQ:
            return
        thread = str(header.get("thread"))
        self.threads[lane_of(header)] = thread
        if place < self._done_before:
            self._done.add(seq)
        elif seq not in self._done and seq not in self._sealed:
            place_only = Frame(frame.path, frame.offset, frame.size, {})
            self._sealed[seq] = Sealed(seq, thread, _first_time(header), place, place_only)
            self._live.pop(seq, None)

    # Giving them out

    def pending(self, horizon: int, until: FollowedMetrics | None = None) -> Iterator[PendingRows]:
        """What is to be given out of each; ``until`` is how far to go in place of the horizon."""
        for seq, sealed in self._sealed.items():
            if self._is_done(seq):
                continue
            found = self._unpacked.get(seq)
            if found is None:
                load = partial(self._unpack, sealed)
                wanted = Wanted(self._names, until=self._bound(seq, until), final=True)
                begin = self._positions.get(seq, NOWHERE)
                found = PendingRows(seq, sealed.thread, begin, wanted, load, sealed.first)
                self._unpacked[seq] = found
            yield found
        for seq, live in self._live.items():
            begin = self._positions.get(seq, NOWHERE)
            wanted = Wanted(self._names, horizon, self._bound(seq, until), final=False)
            yield PendingRows(seq, live.thread, begin, wanted, live.load)

    def _bound(self, seq: int, until: FollowedMetrics | None) -> Position | None:
        if until is None:
            return None
        sealed = self._sealed.get(seq)
        if sealed is not None and sealed.place < until._done_before:
            return WHOLE
        return until._positions.get(seq, NOWHERE)

    def _unpack(self, sealed: Sealed) -> Columns:
        try:
            return read_sealed_metrics(sealed.frame)
        except (FileNotFoundError, ValueError):
            # Removed to keep to a size cap, or damaged: no later try would find it.
            self.lost += 1
            return Columns.none()

    def note(self, rows: PendingRows) -> None:
        """Remember how far this one was given out."""
        position = rows.position
        if position != NOWHERE:
            self._positions[rows.seq] = position
        if position == WHOLE:
            self._unpacked.pop(rows.seq, None)


def _first_time(header: dict[str, Any]) -> int:
    times = header.get("time")
    first = times[0] if isinstance(times, list) and times else 0
    return first if type(first) is int and 0 <= first <= MAX_TIME else 0


def place_since(folder: Path, since: int, most: int) -> list[int]:
    """Where in the archives the first segment is that goes on after this time: archive and offset.

    Of those that do, only the last ``most`` count.
    """
    place, later = [-1, 0], []
    for path in sorted(folder.glob("metrics-*.zst")):
        number = path.stem.rpartition("-")[2]
        if not number.isdecimal():
            continue
        place = [int(number), 0]
        for frame in read_frames(path):
            times = frame.header.get("time") if isinstance(frame.header, dict) else None
            last = times[-1] if isinstance(times, list) and times else None
            if not isinstance(last, int) or last >= since:
                later.append(place)
            place = [int(number), frame.end]
    return later[-most:][0] if later else place
