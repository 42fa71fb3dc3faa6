"""From records to the spans that OTLP knows: ended ones, each with its events.

OTLP has no open spans and no events outside of a span. So a span goes out when it has ended, together
with its events; one that stays open is announced by a placeholder; and an event whose span has
already gone out becomes a span of no length below it. Plain values, nothing is sent from here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

from stepwell.journal.records import EventRecord, SpanRecord

Value: TypeAlias = str | bool | int | float

MOST_EVENTS = 128
"""So many events go out with a span, as OpenTelemetry limits them; further ones on their own."""
INT64 = 1 << 63
UNFINISHED = "its process ended before it did"


@dataclass(frozen=True)
class OutEvent:
    """An event of a span."""

    name: str
    time_ns: int
    attributes: dict[str, Value]


@dataclass(frozen=True)
class OutSpan:
    """A span that can be sent. ``error`` is None, or what its status says."""

    id: int
    parent: int | None
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    events: Sequence[OutEvent] = ()
    error: str | None = None


@dataclass
class _Open:
    """A span that has begun."""

    record: SpanRecord
    events: list[OutEvent] = field(default_factory=list)
    late: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    announced: bool = False

    def copy(self) -> _Open:
        return _Open(self.record, list(self.events), dict(self.late), self.error, self.announced)


class SpanBuilder:
    """Keeps what is open in one process, and says what is to be sent for each batch of records.

    What a batch changes takes effect with ``keep()`` only, so that a batch that was not delivered can
    be handed in again. Ids follow from the process and the journal's ids alone: sending something
    twice gives the same span twice.
    """

    def __init__(self, process: str) -> None:
        self._process = process
        self._open: dict[int, _Open] = {}
        self._changed: dict[int, _Open | None] = {}
        self._lone: Counter[tuple[int | None, str]] = Counter()
        self._added: Counter[tuple[int | None, str]] = Counter()

    def take(self, records: Iterable[SpanRecord | EventRecord]) -> list[OutSpan]:
        """What is to be sent for these records."""
        self._begin()
        found: list[OutSpan] = []
        for record in records:
            if isinstance(record, SpanRecord):
                found.extend(self._take_span(record))
            else:
                found.extend(self._take_event(record))
        return found

    def overdue(self, began_before_ns: int) -> list[OutSpan]:
        """Placeholders for what has been open since before this time and was not announced."""
        self._begin()
        found = []
        for key, entry in self._open.items():
            if not entry.announced and entry.record.start_ns <= began_before_ns:
                changed = self._touch(key)
                assert changed is not None
                changed.announced = True
                found.append(self._placeholder(entry))
        return found

    def keep(self) -> None:
        """What ``take`` or ``overdue`` gave was delivered."""
        for key, entry in self._changed.items():
            if entry is None:
                self._open.pop(key, None)
            else:
                self._open[key] = entry
        self._lone.update(self._added)
        self._begin()

    def _begin(self) -> None:
        self._changed = {}
        self._added = Counter()

    # Spans

    def _take_span(self, record: SpanRecord) -> Iterator[OutSpan]:
        if record.type == "start":
            self._changed[record.id] = self._touch(record.id) or _Open(record)
            return
        entry = self._touch(record.id) or _Open(record)
        self._changed[record.id] = None
        yield self._ended(record, entry)

    def _ended(self, record: SpanRecord, entry: _Open) -> OutSpan:
        error = entry.error
        if record.status == "unfinished":
            error = UNFINISHED
        elif record.status == "error" and error is None:
            error = ""
        elif record.status == "ok":
            # An exception that was caught inside of it is an event, and no failure of the span.
            error = None
        attributes = {**entry.record.attributes, **record.attributes, **entry.late}
        return OutSpan(
            id=self._id(record.id),
            parent=self._parent(record),
            name=text(record.name),
            start_ns=_time(record.start_ns),
            end_ns=max(_time(record.start_ns), _time(record.end_ns or 0)),
            attributes={**plain(attributes), **_about(record)},
            events=entry.events,
            error=error,
        )

    def _placeholder(self, entry: _Open) -> OutSpan:
        record = entry.record
        attributes = plain({**record.attributes, **entry.late})
        return OutSpan(
            id=self._id(record.id, "open"),
            parent=self._id(record.id),
            name=text(record.name),
            start_ns=_time(record.start_ns),
            end_ns=_time(record.start_ns),
            attributes={**attributes, **_about(record), "stepwell.open": True},
        )

    # Events

    def _take_event(self, record: EventRecord) -> Iterator[OutSpan]:
        entry = None if record.span is None else self._touch(record.span)
        if entry is not None and record.type == "attributes":
            entry.late.update(record.attributes)
            return
        event = _event(record)
        if record.type == "error" and entry is not None:
            entry.error = str(event.attributes.get("exception.message", ""))
        if entry is not None and len(entry.events) < MOST_EVENTS:
            entry.events.append(event)
        else:
            yield self._alone(record, event)

    def _alone(self, record: EventRecord, event: OutEvent) -> OutSpan:
        """An event without a span that it could go out with, as a span of no length."""
        is_error = record.type == "error"
        which = (record.span, event.name)
        # Counted, since the wall clock may be read a little differently the next time.
        number = self._lone[which] + self._added[which]
        self._added[which] += 1
        return OutSpan(
            id=self._id(record.span, "event", event.name, number),
            parent=None if record.span is None else self._id(record.span),
            name=event.name,
            start_ns=event.time_ns,
            end_ns=event.time_ns,
            attributes={**event.attributes, "stepwell.event": True},
            events=[event] if is_error else [],
            error=str(event.attributes.get("exception.message", "")) if is_error else None,
        )

    # What both need

    def _touch(self, key: int) -> _Open | None:
        """An open span, as this batch may change it."""
        if key in self._changed:
            return self._changed[key]
        known = self._open.get(key)
        if known is None:
            return None
        self._changed[key] = copy = known.copy()
        return copy

    def _parent(self, record: SpanRecord) -> int | None:
        return None if record.parent is None else self._id(record.parent)

    def _id(self, *parts: object) -> int:
        return number(8, self._process, *parts)


def number(size: int, *parts: object) -> int:
    """A number of so many bytes, never zero, that follows from the parts alone."""
    told = "\0".join(map(str, parts)).encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(told, digest_size=size).digest(), "big") or 1


def _about(record: SpanRecord) -> dict[str, Value]:
    told = {"stepwell.category": record.category, "thread.name": record.thread}
    return {key: text(value) for key, value in told.items() if value}


def _event(record: EventRecord) -> OutEvent:
    attributes = dict(record.attributes)
    if record.type != "error":
        # Attributes that came late have no name.
        name = text(record.name or record.type)
        return OutEvent(name, _time(record.time_ns), plain(attributes))
    told = {
        "exception.type": attributes.pop("exception_type", None),
        "exception.message": attributes.pop("exception_message", None),
        "exception.stacktrace": attributes.pop("exception_traceback", None),
    }
    return OutEvent("exception", _time(record.time_ns), plain({**attributes, **told}))


def _time(value: int) -> int:
    """A time that OTLP can hold; a run folder from a stranger may have others."""
    return min(max(0, value), INT64 - 1)


def plain(attributes: Mapping[str, Any]) -> dict[str, Value]:
    """Attributes as OTLP takes them: nested values as JSON text, None left out."""
    return {text(k): _value(v) for k, v in attributes.items() if v is not None}


def _value(value: Any) -> Value:
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -INT64 <= value < INT64 else str(value)
    if isinstance(value, str):
        return text(value)
    return json.dumps(value, default=str)


def text(value: object) -> str:
    """A text that can be sent: half a surrogate pair cannot."""
    return str(value).encode("utf-8", "replace").decode("utf-8")
