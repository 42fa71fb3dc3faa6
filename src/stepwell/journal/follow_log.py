"""Following the log of a process: metrics, parameters, files, for one of its loggers or as a whole.

As ``Follower`` does for spans, from the files alone, in any process, at any time. Unlike it, it goes on
where a cursor says, which is plain JSON: whoever keeps that can be killed and loses nothing. What lies
between two cursors is the same whenever it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from stepwell.journal.epochs import Epochs
from stepwell.journal.follow_document import ALWAYS, FollowedDocument
from stepwell.journal.follow_items import FollowedItems, item_of
from stepwell.journal.follow_metrics import FollowedMetrics, place_since
from stepwell.journal.format import CONTEXT_NAME, EPOCH_MASK, IMPLICIT_STEP, STEP_BIAS, STEP_SHIFT
from stepwell.journal.journal import EVENTS, NAMES
from stepwell.journal.liveness import ENDINGS
from stepwell.journal.metric_names import MetricNames
from stepwell.journal.metric_rows import PendingRows, Row
from stepwell.journal.records import LogRecord, MetricRecord, StatusRecord

MAX_RECORDS = 2000
MAX_LOOKS = 10
"""What cannot be read just now is left to the next time after so many tries."""
ITEMS = -1
"""In the place of a segment's number: an item."""

Key = tuple[int, int, int]
"""Time, number of the segment, and place in it: the order of records."""


class LogFollower:
    """Reads the log of the process in ``folder``, and gives out what is new.

    ``number`` is that of a logger of the process; None: whatever was logged. Records come ordered by
    time, but for those of other threads that were still on their way, and for scalars of a device.

    Attributes:
        limit: so many records are given out at most at once.
        lost: how many segments or archives were gone (the size cap), or damaged, before they were read.
        over: whether the ``StatusRecord`` was given out, which is the last one.
        on_context: called with the time since the epoch, step and epoch (None for none) from then on,
            before what was logged later is given out.
    """

    def __init__(
        self,
        folder: Path,
        number: int | None = None,
        cursor: dict[str, Any] | None = None,
        limit: int = MAX_RECORDS,
    ) -> None:
        self.folder = folder
        self.limit = limit
        self.number = number
        self.lost = 0
        self.on_context: Callable[[int, int | None, int | None], None] | None = None
        self._document = FollowedDocument(folder)
        self._names = MetricNames(number)
        self.seek(cursor)

    @property
    def about(self) -> dict[str, Any]:
        """process.json as last read; empty before it was written."""
        return self._document.about

    # Where it is

    def seek(self, cursor: dict[str, Any] | None) -> None:
        """Go on from where this cursor was taken; None: from the beginning."""
        cursor = cursor or {}
        self.over = bool(cursor.get("over"))
        if isinstance(cursor.get("offset"), int):
            # Times must be what they were: some receivers tell by them what they have.
            self._document.offset = cursor["offset"]
        self._metrics = FollowedMetrics(self.folder, self._names, cursor)
        self._items = FollowedItems(self.number, cursor)
        self._epochs = Epochs(cursor.get("epochs"))

    def skip_older(self, seconds: float, most_segments: int) -> None:
        """Go on with the metrics of so many seconds ago, and leave out items that are there.

        Of sealed segments no more than ``most_segments`` are read.
        """
        place = place_since(self.folder, self._document.ago(seconds), most_segments)
        self.seek({"archive": place, "events": self._document.size_of(EVENTS)})

    @property
    def cursor(self) -> dict[str, Any]:
        """Where it is after the last look, as plain values."""
        return {
            "offset": self._document.offset,
            "events": self._items.offset,
            **self._metrics.to_json(),
            "epochs": self._epochs.to_json(),
            "ended": self._items.ended,
            "over": self.over,
        }

    # Looking

    def poll(self) -> list[LogRecord] | list[StatusRecord]:
        """What is new, ``limit`` records at most; empty means that all was given.

        When there will be no more, the ``StatusRecord`` comes, alone.
        """
        document = self._document
        document.read()
        status = document.status
        ended = status != "running"
        if self.over or (document.offset is None and not ended):
            return []
        was_told = self._items.ended is not None
        for _ in range(MAX_LOOKS):
            horizon = document.now(ended)
            self._look()
            records = self._take(horizon, self.limit)
            if records:
                return records
            if not self._metrics.missed:
                # Where it was over before this look, there is nothing more to come.
                return [self._end(status)] if was_told or ended else []
        return []

    def between(self, begin: dict[str, Any], end: dict[str, Any]) -> list[LogRecord]:
        """What was given out between these two cursors, which goes on behind the latter."""
        self.seek({**begin, "offset": end.get("offset")})
        until = FollowedMetrics(self.folder, self._names, end)
        self._document.read()
        self._look(int(end.get("events") or 0))
        records: list[LogRecord] = []
        while found := self._take(ALWAYS, MAX_RECORDS, until):
            records += found
            self._items.read(self._paths(EVENTS), int(end.get("events") or 0))
        self.seek(end)
        return records

    def _look(self, until: int | None = None) -> None:
        """Find what is new. Names last: each row that was seen has its name then."""
        self._metrics.look(self._document.folders()[0])
        self._names.read(self._paths(NAMES))
        self._items.read(self._paths(EVENTS), until)

    def _paths(self, name: str) -> list[Path]:
        return [folder / name for folder in self._document.folders()]

    def _take(
        self, horizon: int, limit: int, until: FollowedMetrics | None = None
    ) -> list[LogRecord]:
        """Merge rows and items by time, up to the limit."""
        pending = list(self._metrics.pending(horizon, until))
        sources: list[PendingRows | FollowedItems] = [*pending, self._items]
        heap: list[tuple[int, int]] = []
        for number, source in enumerate(sources):
            if source.due is not None:
                heappush(heap, (source.due, number))
        taken: list[tuple[Key, LogRecord]] = []
        while heap and len(taken) < limit:
            _, number = heappop(heap)
            source = sources[number]
            try:
                self._take_one(source, taken)
            except OSError:
                # Too many open files, or the like: it is still there the next time.
                self._metrics.missed = True
                continue
            if source.due is not None:
                heappush(heap, (source.due, number))
        for rows in pending:
            self._metrics.note(rows)
        self.lost = self._metrics.lost
        taken.sort(key=lambda entry: entry[0])
        return [record for _, record in taken]

    def _take_one(
        self, source: PendingRows | FollowedItems, taken: list[tuple[Key, LogRecord]]
    ) -> None:
        offset = self._document.offset or 0
        if isinstance(source, FollowedItems):
            place, line = source.take()
            taken.append(((line["time"], ITEMS, place), item_of(line, offset)))
            return
        row = source.take()
        if row is None:
            return
        if row.name == CONTEXT_NAME:
            self._epochs.add(row.time, row.word)
            if self.on_context is not None:
                step, epoch = (row.word >> STEP_SHIFT) - 1, (row.word & EPOCH_MASK) - 1
                told = step if step >= 0 else None, epoch if epoch >= 0 else None
                self.on_context(row.time + offset, *told)
        else:
            taken.append(((row.time, row.seq, row.row), self._metric(row, source.thread, offset)))

    def _metric(self, row: Row, thread: str, offset: int) -> MetricRecord:
        name, audience = self._names.find(row.name)
        is_count = row.word & IMPLICIT_STEP
        step = row.word - IMPLICIT_STEP if is_count else row.word - STEP_BIAS
        if row.owner is not None:
            thread = self._metrics.threads.get(row.owner, thread)
        epoch = self._epochs.at(row.time)
        return MetricRecord(name, audience, step, epoch, row.value, row.time + offset, thread)

    def _end(self, process_status: str) -> StatusRecord:
        self.over = True
        if self._items.ended is not None:
            status, time = self._items.ended
            return StatusRecord(status, time + (self._document.offset or 0))
        status = process_status if process_status in ENDINGS else "finished"
        heartbeat = self.about.get("heartbeat")
        return StatusRecord(status, heartbeat if isinstance(heartbeat, int) else 0)
