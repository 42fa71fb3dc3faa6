"""Records as OTLP spans, which have ended and contain their events.

OTLP has no open spans and no events without a span. So a span is sent with its events when it has ended; a
span that stays open gets a placeholder; and an event whose span was already sent becomes a child span
without duration. Plain values: nothing is sent from here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

from stepwell.follower.records import EventRecord, SpanRecord

Value: TypeAlias = str | bool | int | float

MOST_EVENTS = 128
"""Events sent with a span, the limit of OpenTelemetry. Further events are sent on their own."""
INT64 = 1 << 63
UNFINISHED = "the process ended before the span"


@dataclass(frozen=True)
class OutEvent:
    """An event of a span."""

    name: str
    time_ns: int
    attributes: dict[str, Value]


@dataclass(frozen=True)
class OutSpan:
    """A span to send. ``error`` is the message of its error status, None without one."""

    id: int
    parent: int | None
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    events: Sequence[OutEvent] = ()
    error: str | None = None


@dataclass
class _OpenSpan:
    """A span that has begun."""

    record: SpanRecord
    events: list[OutEvent] = field(default_factory=list)
    late: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    announced: bool = False

    def copy(self) -> _OpenSpan:
        return _OpenSpan(
            self.record, list(self.events), dict(self.late), self.error, self.announced
        )


class SpanBuilder:
    """Keeps the open spans of one process, and returns the spans to send for each batch of records.

    The changes of a batch take effect with ``keep()`` only, so that a batch that was not delivered can be
    passed in again. Ids depend only on the process and the ids in the journal: sending a record twice gives
    the same span.
    """

    def __init__(self, process: str) -> None:
        self._process = process
        self._open: dict[int, _OpenSpan] = {}
        self._changed: dict[int, _OpenSpan | None] = {}
        self._lone: Counter[tuple[int | None, str]] = Counter()
        self._added: Counter[tuple[int | None, str]] = Counter()

    def take(self, records: Iterable[SpanRecord | EventRecord]) -> list[OutSpan]:
        """Return the spans to send for these records."""
        self._begin()
        spans: list[OutSpan] = []
        for record in records:
            if isinstance(record, SpanRecord):
                spans.extend(self._take_span(record))
            else:
                spans.extend(self._take_event(record))
        return spans

    def overdue(self, began_before_ns: int) -> list[OutSpan]:
        """Return placeholders for spans that began before this time, are open and have none yet."""
        self._begin()
        placeholders = []
        for key, entry in self._open.items():
            if not entry.announced and entry.record.start_ns <= began_before_ns:
                changed = self._touch(key)
                assert changed is not None
                changed.announced = True
                placeholders.append(self._placeholder(entry))
        return placeholders

    def keep(self) -> None:
        """Confirm that the spans from ``take`` or ``overdue`` were delivered."""
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
            self._changed[record.id] = self._touch(record.id) or _OpenSpan(record)
            return
        entry = self._touch(record.id) or _OpenSpan(record)
        self._changed[record.id] = None
        yield self._ended(record, entry)

    def _ended(self, record: SpanRecord, entry: _OpenSpan) -> OutSpan:
        error = entry.error
        if record.status == "unfinished":
            error = UNFINISHED
        elif record.status == "error" and error is None:
            error = ""
        elif record.status == "ok":
            # An exception caught inside the span is an event, not a failure of the span.
            error = None
        attributes = {**entry.record.attributes, **record.attributes, **entry.late}
        return OutSpan(
            id=self._id(record.id),
            parent=None if record.parent is None else self._id(record.parent),
            name=text(record.name),
            start_ns=_time(record.start_ns),
            end_ns=max(_time(record.start_ns), _time(record.end_ns or 0)),
            attributes={**plain(attributes), **_context(record)},
            events=entry.events,
            error=error,
        )

    def _placeholder(self, entry: _OpenSpan) -> OutSpan:
        record = entry.record
        attributes = plain({**record.attributes, **entry.late})
        return OutSpan(
            id=self._id(record.id, "open"),
            parent=self._id(record.id),
            name=text(record.name),
            start_ns=_time(record.start_ns),
            end_ns=_time(record.start_ns),
            attributes={**attributes, **_context(record), "stepwell.open": True},
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
        """Return an event whose span was already sent as a span without duration."""
        is_error = record.type == "error"
        which = (record.span, event.name)
        # Numbered instead of identified by time: the next reading may convert the clock slightly differently.
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

    # Spans and events

    def _touch(self, key: int) -> _OpenSpan | None:
        """Return a copy of an open span that this batch may change."""
        if key in self._changed:
            return self._changed[key]
        entry = self._open.get(key)
        if entry is None:
            return None
        self._changed[key] = copy = entry.copy()
        return copy

    def _id(self, *parts: object) -> int:
        return number(8, self._process, *parts)


def number(size: int, *parts: object) -> int:
    """Return a number of ``size`` bytes, never zero, that depends only on the parts."""
    key = "\0".join(map(str, parts)).encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(key, digest_size=size).digest(), "big") or 1


def _context(record: SpanRecord) -> dict[str, Value]:
    context = {"stepwell.category": record.category, "thread.name": record.thread}
    return {key: text(value) for key, value in context.items() if value}


def _event(record: EventRecord) -> OutEvent:
    attributes = dict(record.attributes)
    if record.type != "error":
        # Attributes set after the end of a span have no name.
        name = text(record.name or record.type)
        return OutEvent(name, _time(record.time_ns), plain(attributes))
    exception = {
        "exception.type": attributes.pop("exception_type", None),
        "exception.message": attributes.pop("exception_message", None),
        "exception.stacktrace": attributes.pop("exception_traceback", None),
    }
    return OutEvent("exception", _time(record.time_ns), plain({**attributes, **exception}))


def _time(value: int) -> int:
    """Return a time within the range of OTLP; a damaged run folder may contain others."""
    return min(max(0, value), INT64 - 1)


def plain(attributes: Mapping[str, Any]) -> dict[str, Value]:
    """Return attributes as OTLP values: nested values as JSON text, without those that are None."""
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
    """Return a text without lone surrogates, which cannot be sent."""
    return str(value).encode("utf-8", "replace").decode("utf-8")
