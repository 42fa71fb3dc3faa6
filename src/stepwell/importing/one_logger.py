"""Files of nv-one-logger's FileExporter: one JSON object per line, without parents and threads.

The parent of a span is the innermost span of the process that contains it in time. Times are in
milliseconds, so where they are equal the order of the lines decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepwell.importing.rows import CLOSED_IN_ORDER, FAILED, NO_END, TraceLane, TraceRows, as_count
from stepwell.importing.sources import TraceObjects, TraceSource, exact_number, nanoseconds, text

KIND = "nv-one-logger"
TYPES = ("start", "stop", "complete", "event", "application_error", "telemetry_data_error")
MILLISECOND = 1_000_000
TIME = "timestamp_msec"
MAX_OPEN = 100_000
VERSION = "one_logger_training_telemetry_version"

Record = dict[str, Any]


@dataclass(slots=True)
class Begun:
    """A span that has begun."""

    name: str
    start: int
    key: int
    attributes: Record
    status: int = 0


class OneLoggerReader:
    """Reads one file into rows."""

    def __init__(self, rows: TraceRows, source: TraceSource, number: int) -> None:
        self.rows = rows
        self.source = source
        self.number = number
        self._begun: dict[tuple[int, str], Begun] = {}
        self._lanes: dict[int, TraceLane] = {}
        self._ends: dict[int, int] = {}
        self._takers: dict[Any, Callable[[TraceLane, Record], None]] = {
            "start": self._start,
            "stop": self._stop,
            "complete": self._complete,
            "event": self._event,
            "application_error": self._error,
            "telemetry_data_error": self._data_error,
        }

    def read(self, progress: Callable[[], None]) -> None:
        """Read the whole file; ``progress`` is called now and then."""
        for count, record in enumerate(TraceObjects(self.source, self.rows.left_out)):
            kind = record.get("type")
            taker = self._takers.get(kind) if isinstance(kind, str) else None
            lane = self._lane(record)
            if taker is None:
                self.rows.left_out[f"unknown type {text(kind, 'missing')[:30]!r}"] += 1
            elif lane is not None:
                taker(lane, record)
            if not count & 0x3FFF:
                progress()
        for (number, _), begun in self._begun.items():
            self._add(self.rows.lanes[number], begun, NO_END, -NO_END + begun.key)

    def _lane(self, record: Record) -> TraceLane | None:
        pid = as_count(record.get("pid")) or 0
        lane = self._lanes.get(pid)
        if lane is None:
            process = self.rows.process((self.number, pid), pid)
            lane = None if process is None else self.rows.lane(process, 0, "main")
            if lane is not None:
                self._lanes[pid] = lane
        return lane

    def _time(self, lane: TraceLane, event: Any, attributes: Record) -> int | None:
        """Return the time of an event in ns, and add its other attributes to ``attributes``."""
        given = event.get("attributes") if isinstance(event, dict) else None
        given = dict(given) if isinstance(given, dict) else {}
        time = exact_number(given.pop(TIME, None))
        if time is None:
            self.rows.left_out["no timestamp"] += 1
            return None
        attributes.update(given)
        time_ns = nanoseconds(time, MILLISECOND)
        self._ends[lane.number] = max(time_ns, self._ends.get(lane.number, time_ns))
        return time_ns

    def _open(self, lane: TraceLane, record: Record) -> Begun | None:
        attributes = _attributes(record)
        start = self._time(lane, record.get("start_event"), attributes)
        if start is None:
            return None
        return Begun(text(record.get("name")), start, self.rows.next(), attributes)

    def _start(self, lane: TraceLane, record: Record) -> None:
        begun = self._open(lane, record)
        if begun is None:
            return
        if len(self._begun) >= MAX_OPEN:
            self.rows.left_out[f"more than {MAX_OPEN} open spans"] += 1
            return
        self._begun[lane.number, _id(record)] = begun

    def _stop(self, lane: TraceLane, record: Record) -> None:
        begun = self._begun.pop((lane.number, _id(record)), None)
        if begun is None:
            self.rows.left_out["end without a begin"] += 1
            return
        self._end(lane, begun, record)

    def _complete(self, lane: TraceLane, record: Record) -> None:
        begun = self._open(lane, record)
        if begun is not None:
            self._end(lane, begun, record)

    def _end(self, lane: TraceLane, begun: Begun, record: Record) -> None:
        begun.attributes.update(_attributes(record))
        end = self._time(lane, record.get("stop_event"), begun.attributes)
        if end is not None:
            # Outer spans are written later.
            self._add(lane, begun, end, -self.rows.next())

    def _add(self, lane: TraceLane, begun: Begun, end: int, order: int) -> None:
        flags = begun.status | CLOSED_IN_ORDER
        times = begun.start, end
        keys = {"order": order, "key": begun.key, "flags": flags}
        self.rows.span(lane, "", begun.name, *times, begun.attributes, **keys)

    def _event(self, lane: TraceLane, record: Record, name: str | None = None) -> None:
        attributes: Record = {}
        event = record.get("event")
        time = self._time(lane, event, attributes)
        if time is None or not isinstance(event, dict):
            return
        begun = self._begun.get((lane.number, _id(record, "span_id")))
        self._identify(lane, attributes)
        name = name or text(event.get("name"))
        self.rows.event(lane, name, time, attributes, key=begun.key if begun else 0)

    def _error(self, lane: TraceLane, record: Record) -> None:
        begun = self._begun.get((lane.number, _id(record, "span_id")))
        if begun is not None:
            begun.status = FAILED
        self._event(lane, record, "error")

    def _data_error(self, lane: TraceLane, record: Record) -> None:
        """Add a problem of the logger, which has no span."""
        error = record.get("error")
        attributes: Record = {} if isinstance(error, dict) else {"error_message": text(error)}
        time = self._ends.get(lane.number) if attributes else self._time(lane, error, attributes)
        if time is not None:
            self.rows.event(lane, "telemetry_data_error", time, attributes)
        elif not isinstance(error, dict):
            self.rows.left_out["no timestamp"] += 1

    def _identify(self, lane: TraceLane, attributes: Record) -> None:
        """Set rank, world size, host and version, which the first event contains."""
        if VERSION not in attributes:
            return
        process = lane.process
        for field in ("rank", "world_size"):
            value = as_count(attributes.get(field))
            if value is not None:
                setattr(process, field, value)
        process.host = text(attributes.get("node_name"))
        process.info["version"] = text(attributes[VERSION])


def _attributes(record: Record) -> Record:
    attributes = record.get("attributes")
    return dict(attributes) if isinstance(attributes, dict) else {}


def _id(record: Record, field: str = "id") -> str:
    return text(record.get(field))[:200]
