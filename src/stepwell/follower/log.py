"""Follow the log of a process: metrics, parameters, files, of one of its loggers or of all.

Like ``Follower``, it reads files only, in any process, at any time. In addition it resumes from a cursor,
which is plain JSON: an exporter that stores the cursor can be killed without losing records. The records
between two cursors are always the same.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from stepwell.follower.document import ALWAYS, ProcessDocumentWatcher, is_time
from stepwell.follower.metrics import FollowedMetrics, PendingRows, place_since
from stepwell.follower.names import MetricNameFilter
from stepwell.follower.records import ItemRecord, LogRecord, MetricRecord, StatusRecord
from stepwell.follower.rows import MetricRow
from stepwell.journal.document import ENDINGS
from stepwell.journal.format import (
    CONTEXT_NAME,
    EPOCH_MASK,
    EVENTS,
    IMPLICIT_STEP,
    ITEM,
    LOGGER,
    NAMES,
    STEP_BIAS,
    STEP_SHIFT,
    VALUE,
)
from stepwell.journal.tail import Tail, parse_object

MAX_RECORDS = 2000
MAX_LOOKS = 10
"""Attempts to read a file that cannot be read at the moment; then it is left for the next poll."""
ITEMS = -1
"""Stands for the segment number in the key of an item."""

Key = tuple[int, int, int]
"""(time, number of the segment, position in it): the order of records."""


class LogFollower:
    """Returns new log records of the process in ``folder``.

    ``number`` selects a logger of the process; None selects everything that was logged. Records are ordered
    by time, except those that other threads were still writing, and scalars fetched from a device.

    Attributes:
        limit: the maximum number of records of one poll.
        lost: the number of segments or archives removed (size cap) or damaged before they were read.
        over: whether the ``StatusRecord``, which is the last record, was returned.
        on_context: called with (time since the epoch, step, epoch) when they change, None for unknown ones,
            before later records are returned.
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
        self._document = ProcessDocumentWatcher(folder)
        self._names = MetricNameFilter(number)
        self.seek(cursor)

    @property
    def document(self) -> dict[str, Any]:
        """The latest content of process.json; empty until it is written."""
        return self._document.content

    # Position

    def seek(self, cursor: dict[str, Any] | None) -> None:
        """Continue from this cursor; None: from the beginning."""
        cursor = cursor or {}
        self.over = bool(cursor.get("over"))
        if isinstance(cursor.get("offset"), int):
            # Times must not change: some receivers recognise records that they have by their time.
            self._document.offset = cursor["offset"]
        self._metrics = FollowedMetrics(self.folder, self._names, cursor)
        self._items = FollowedItems(self.number, cursor)
        self._epochs = EpochHistory(cursor.get("epochs"))

    def skip_older(self, seconds: float, most_segments: int) -> None:
        """Skip metrics older than this many seconds, and all items recorded so far.

        At most ``most_segments`` sealed segments are read.
        """
        place = place_since(self.folder, self._document.ago(seconds), most_segments)
        self.seek({"archive": place, "events": self._document.size_of(EVENTS)})

    @property
    def cursor(self) -> dict[str, Any]:
        """The position after the last poll, as JSON types."""
        return {
            "offset": self._document.offset,
            "events": self._items.offset,
            **self._metrics.to_json(),
            "epochs": self._epochs.to_json(),
            "ended": self._items.ended,
            "over": self.over,
        }

    # Reading

    def poll(self) -> list[LogRecord] | list[StatusRecord]:
        """Return at most ``limit`` new records; an empty list means that there are no more for now.

        After the last record, the ``StatusRecord`` is returned on its own.
        """
        document = self._document
        document.read()
        status = document.status
        ended = status != "running"
        if self.over or (document.offset is None and not ended):
            return []
        logger_ended = self._items.ended is not None
        for _ in range(MAX_LOOKS):
            horizon = document.now(ended)
            self._look()
            records = self._take(horizon, self.limit)
            if records:
                return records
            if not self._metrics.missed:
                # If it had ended before this look, no more records can follow.
                return [self._end(status)] if logger_ended or ended else []
        return []

    def between(self, begin: dict[str, Any], end: dict[str, Any]) -> list[LogRecord]:
        """Return the records between these two cursors again, and continue from the second one."""
        self.seek({**begin, "offset": end.get("offset")})
        until = FollowedMetrics(self.folder, self._names, end)
        self._document.read()
        self._look(int(end.get("events") or 0))
        records: list[LogRecord] = []
        while batch := self._take(ALWAYS, MAX_RECORDS, until):
            records += batch
            self._items.read(self._paths(EVENTS), int(end.get("events") or 0))
        self.seek(end)
        return records

    def _look(self, until: int | None = None) -> None:
        """Find new rows, names and items. Names after rows: then each row that was seen has its name."""
        self._metrics.look(self._document.folders()[0])
        self._names.read(self._paths(NAMES))
        self._items.read(self._paths(EVENTS), until)

    def _paths(self, name: str) -> list[Path]:
        return [folder / name for folder in self._document.folders()]

    def _take(
        self, horizon: int, limit: int, until: FollowedMetrics | None = None
    ) -> list[LogRecord]:
        """Return rows and items merged by time, up to the limit."""
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
                # A temporary problem, such as too many open files: try again at the next poll.
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
                context = step if step >= 0 else None, epoch if epoch >= 0 else None
                self.on_context(row.time + offset, *context)
        else:
            taken.append(((row.time, row.seq, row.row), self._metric(row, source.thread, offset)))

    def _metric(self, row: MetricRow, thread: str, offset: int) -> MetricRecord:
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
        heartbeat = self.document.get("heartbeat")
        return StatusRecord(status, heartbeat if isinstance(heartbeat, int) else 0)


OWN_KEYS = ("item", "audience", "step", "epoch", "value", "content", "file", "media", "size")

Line = dict[str, Any]


class FollowedItems:
    """Reads the items of one logger, or of all, from events.jsonl, starting at an offset.

    Attributes:
        ended: how and when the logger ended, once that line was read.
    """

    def __init__(self, number: int | None, cursor: dict[str, Any]) -> None:
        self._number = number
        self._tail = Tail()
        self._tail.offset = int(cursor.get("events") or 0)
        self._lines: deque[tuple[int, Line]] = deque()
        ended = cursor.get("ended")
        self.ended: tuple[str, int] | None = None if ended is None else (ended[0], ended[1])

    @property
    def offset(self) -> int:
        """The offset of the first line that was not returned."""
        return self._lines[0][0] if self._lines else self._tail.offset

    def read(self, paths: list[Path], until: int | None = None) -> None:
        """Read more lines if all earlier ones were returned; none at or after the offset ``until``."""
        if self._lines:
            return
        while True:
            for place, text in self._tail.read_places(paths):
                if until is None or place < until:
                    self._add(place, parse_object(text))
            if self._lines or not self._tail.more:
                return

    def _add(self, place: int, line: Line | None) -> None:
        if line is None or not is_time(line.get("time")):
            return
        attributes = line.get("attributes")
        if not isinstance(attributes, dict):
            return
        if line.get("kind") == VALUE:
            # Logged without a logger, as a metric that is not a number: for followers of everything.
            if self._number is None and attributes.get("value") is not None:
                self._lines.append((place, line))
        elif line.get("kind") == ITEM:
            if self._number is None or self._number in _audience(attributes):
                self._lines.append((place, line))
        elif self.ended is None and self._is_end(line, attributes):
            self.ended = attributes["status"], line["time"]

    def _is_end(self, line: Line, attributes: dict[str, Any]) -> bool:
        is_own = self._number is not None and attributes.get("number") == self._number
        return is_own and line.get("kind") == LOGGER and attributes.get("status") in ENDINGS

    @property
    def due(self) -> int | None:
        """The time of the next line; None if there is none."""
        return int(self._lines[0][1]["time"]) if self._lines else None

    def take(self) -> tuple[int, Line]:
        """Remove and return the next line, as (offset, line)."""
        return self._lines.popleft()


def item_of(line: Line, offset: int) -> ItemRecord:
    """Return the record of a line. ``offset`` converts clock values to times since the epoch."""
    attributes = line["attributes"]
    return ItemRecord(
        kind=VALUE if line.get("kind") == VALUE else str(attributes.get("item")),
        name=str(line.get("name")),
        audience=_audience(attributes),
        step=_whole(attributes.get("step")),
        epoch=_whole(attributes.get("epoch")),
        value=attributes.get("value"),
        content=_text(attributes.get("content")),
        file=_text(attributes.get("file")),
        media=_text(attributes.get("media")),
        size=_whole(attributes.get("size")),
        time_ns=line["time"] + offset,
        thread=str(line.get("thread")),
        attributes={key: value for key, value in attributes.items() if key not in OWN_KEYS},
    )


def _audience(attributes: dict[str, Any]) -> tuple[int, ...]:
    numbers = attributes.get("audience")
    return tuple(n for n in numbers if type(n) is int) if isinstance(numbers, list) else ()


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


MAX_CHANGES = 64
"""Epoch changes that are kept. Rows are almost in the order of time, so older changes are not needed."""


class EpochHistory:
    """The latest changes of the epoch, from context rows."""

    def __init__(self, changes: Any = ()) -> None:
        self._changes: list[tuple[int, int]] = [
            (int(time), int(word)) for time, word in changes or ()
        ]

    def to_json(self) -> list[list[int]]:
        return [list(change) for change in self._changes]

    def add(self, time: int, context_word: int) -> None:
        """Note the context from this time on."""
        word = context_word & EPOCH_MASK
        at = bisect_right(self._changes, (time, EPOCH_MASK))
        if (self._changes[at - 1][1] if at else 0) == word:
            return
        insort(self._changes, (time, word))
        del self._changes[:-MAX_CHANGES]

    def at(self, time: int) -> int | None:
        """Return the epoch at a time; None if none was set."""
        count = bisect_right(self._changes, (time, EPOCH_MASK))
        word = self._changes[count - 1][1] if count else 0
        return word - 1 if word else None


@dataclass(frozen=True)
class RegisteredLogger:
    """A logger of a recorded process: its number, its name, and the class and options of its backend."""

    folder: Path
    number: int | None
    to: str
    backend_class: str
    options: dict[str, Any]


def registered_loggers(folder: Path) -> Iterator[RegisteredLogger]:
    """Yield the loggers of a process that have a backend with options, in the order of their numbers."""
    seen: set[int] = set()
    for number, attributes in _registrations(folder):
        match attributes:
            case {"class": str(backend_class), "options": dict(options)} if number not in seen:
                seen.add(number)
                to = str(attributes.get("to"))
                yield RegisteredLogger(folder, number, to, backend_class, options)


def registered_receivers(folder: Path) -> dict[int, str]:
    """Return the name of each logger of a process that has a backend, by number.

    Includes loggers without valid options, which cannot be continued.
    """
    receivers: dict[int, str] = {}
    for number, attributes in _registrations(folder):
        receivers.setdefault(number, str(attributes.get("to")))
    return receivers


def _registrations(folder: Path) -> Iterator[tuple[int, Line]]:
    """Yield number and attributes of each line that registers a logger with a backend."""
    tail, paths = Tail(), [place / EVENTS for place in ProcessDocumentWatcher(folder).folders()]
    while True:
        for line in tail.read(paths):
            event = (parse_object(line) or {}) if b'"logger"' in line else {}
            attributes = event.get("attributes") if event.get("kind") == LOGGER else None
            if isinstance(attributes, dict) and "class" in attributes:
                number = attributes.get("number")
                if type(number) is int:
                    yield number, attributes
        if not tail.more:
            return
