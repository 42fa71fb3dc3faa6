"""Span objects: one per entry, to which attributes and events can be added.

``stepwell.span("name")`` is cheaper and usually enough. Span objects are for callbacks, where a span begins
and ends in different functions, and for code that needs a reference to the open span.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from types import TracebackType
from typing import Any, TypeVar

from stepwell._core import clock
from stepwell._core.errors import StepwellError, never_raises, report, report_misuse
from stepwell._core.values import encode
from stepwell.journal import task_spans
from stepwell.journal.format import ERROR, NAME_MASK, NAME_SHIFT, SLOT_MASK, SPAN
from stepwell.journal.lane import DROPPED, Lane
from stepwell.journal.names import names
from stepwell.journal.span import NO_ERRORS
from stepwell.journal.span_handle import SpanHandle
from stepwell.journal.state import local, state
from stepwell.telemetry.events import Attributes, Event, Timestamp, as_attributes, clock_at, name_of

F = TypeVar("F", bound=Callable[..., Any])

SPAN_START = "span_start"
SPAN_STOP = "span_stop"
REMEMBERED_EVENTS = 128
"""Latest events kept in a span object; the run has all of them."""


end_listeners: dict[int, Callable[[Any], None]] = {}
"""Functions to call when a span of a name ends, however it was opened."""


class Span(SpanHandle):
    """A named interval that is open or has ended."""

    __slots__ = ("_attributes", "_events", "_parent")

    _attributes: Attributes | None
    _events: deque[Event] | None
    _parent: Span | None

    # Properties

    @property
    def active(self) -> bool:
        """Whether the span is open."""
        return not self.end

    @property
    def parent(self) -> Span | None:
        """The parent, if it is a span object too; otherwise None."""
        return self._parent

    @property
    def attributes(self) -> Attributes:
        """The attributes of the span."""
        return Attributes() if self._attributes is None else self._attributes

    @property
    def events(self) -> list[Event]:
        """The events of the span, at most the latest 128."""
        return [] if self._events is None else list(self._events)

    @property
    def start_event(self) -> Event:
        """The event of its start."""
        return Event(SPAN_START, Attributes(), self.start)

    @property
    def stop_event(self) -> Event | None:
        """The event of its end; None while it is open."""
        return Event(SPAN_STOP, Attributes(), self.end) if self.end else None

    @property
    def start_ns(self) -> int:
        """Start time, in nanoseconds since the epoch."""
        return clock.to_wall(self.start)

    @property
    def end_ns(self) -> int | None:
        """End time, in nanoseconds since the epoch; None while it is open."""
        return clock.to_wall(self.end) if self.end else None

    @property
    def duration_ns(self) -> int:
        """Duration in nanoseconds, so far if it is open."""
        return (self.end or clock.now()) - self.start

    @property
    def duration(self) -> float:
        """Duration in seconds, so far if it is open."""
        return self.duration_ns / 1e9

    @property
    def duration_msec(self) -> float:
        """Duration in milliseconds, so far if it is open."""
        return self.duration_ns / 1e6

    # Recording

    def add_attribute(self, name: str, value: Any) -> None:
        """Set an attribute; also possible after the end, and from another thread."""
        self.add_attributes(Attributes().add(name, value))

    def add_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set several attributes at once."""
        kept = as_attributes(attributes)
        if self._attributes is None:
            self._attributes = Attributes()
        try:
            self._attributes.add_attributes(kept)
        except StepwellError as error:
            # A declared attribute of a standard span: a wrong value is not stored.
            report_misuse("attribute value", str(error))
            return
        self._annotate(kept.to_json())

    def add_event(
        self, event: Event | str | Enum, attributes: Mapping[str, Any] | None = None
    ) -> Event:
        """Record an event on this span; also possible after its end."""
        if not isinstance(event, Event):
            event = Event.create(event, attributes)
        if self._events is None:
            self._events = deque(maxlen=REMEMBERED_EVENTS)
        self._events.append(event)
        self._write(event)
        return event

    @never_raises
    def _write(self, event: Event) -> None:
        journal = self._journal
        if journal is not None and self.id:
            journal.write_event(
                "event", event.name, event.attributes._values, span=self.id, time=event.clock
            )

    def record_error(self, error: BaseException) -> None:
        """Record an exception on this span, unless an inner span already has."""
        journal = self._journal
        if journal is not None and journal.is_new(error):
            self.add_event(Event.of_error(exception=error))

    def stop(
        self,
        attributes: Mapping[str, Any] | None = None,
        timestamp: Timestamp | None = None,
        error: BaseException | None = None,
    ) -> None:
        """End the span, now or at a given time. Ending it again does nothing."""
        end = clock_at(timestamp)
        if attributes is not None:
            self.add_attributes(attributes)
        self._stop(end, error)

    def _stop(self, end: int, error: BaseException | None = None) -> None:
        """End the span at a time of the journal's clock."""
        if self.end:
            return
        failed = error is not None and is_failure(error)
        journal = self._journal
        if failed and error is not None:
            self.record_error(error)
        elif isinstance(error, SystemExit) and journal is not None:
            # An exit without an error code is not an error, but explains the end.
            journal.is_new(error)
        if journal is not None:
            journal.objects.pop(self.id, None)
        self._finish(max(end, self.start), ERROR if failed else 0)
        listener = end_listeners.get(self.name_word)
        if listener is not None:
            listener(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # A span belongs to its process: a copy in another process does nothing.
        return _no_span, ()

    def __repr__(self) -> str:
        took = f"{self.duration_msec:.3f} ms" + (" so far" if self.active else "")
        return f"<span {self.name} {took}>"


def is_failure(error: BaseException) -> bool:
    """Return whether an exception is a failure, and not the normal end of a loop or program."""
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return not isinstance(error, NO_ERRORS)


class _NoSpan(Span):
    """A span that records nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        self._lane = self._frame = self._attributes = self._events = self._parent = None
        self.name_word = names.intern(SPAN, "(not recorded)") << NAME_SHIFT
        self.id = self.parent_id = 0
        self.start = self.end = 1

    def add_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Do nothing."""

    def add_event(
        self, event: Event | str | Enum, attributes: Mapping[str, Any] | None = None
    ) -> Event:
        """Do nothing."""
        return event if isinstance(event, Event) else Event.create(event, attributes)

    def record_error(self, error: BaseException) -> None:
        """Do nothing."""


NO_SPAN: Span = _NoSpan()


def _no_span() -> Span:
    return NO_SPAN


def intern_name(name: str | Enum, category: str = "") -> int:
    """Return the bits that identify a span name in the journal."""
    return names.intern(SPAN, name_of(name), category) << NAME_SHIFT


def open_span(
    word: int,
    attributes: Attributes | None = None,
    start: int = 0,
    parent: Span | None = None,
    under: Span | None = None,
) -> Span:
    """Open a span; ``under`` is its parent only if no other span is open.

    ``start`` is a time of the journal's clock, 0 for now; negative times are before the machine started.
    """
    if not state.enabled:
        return NO_SPAN
    span: Span = Span()
    span._attributes = attributes
    span._events = None
    otherwise = 0 if under is None else under.id
    if start or attributes or parent is not None:
        if start < 0:
            # The journal's clock begins when the machine starts: an earlier start is stored as an attribute.
            attributes = Attributes(attributes).add("start_time_sec", clock.to_wall(start) / 1e9)
            span._attributes, start = attributes, 1
        data = encode(attributes.to_json()) if attributes else b""
        span._begin_slowly(word, data, start, 0 if parent is None else parent.id, otherwise)
    else:
        span._begin(word, otherwise)
    journal = span._journal
    if journal is None:
        return NO_SPAN
    objects = journal.objects
    span._parent = objects.get(span.parent_id)
    if span.id:
        objects[span.id] = span
    return span


def find_open(word: int) -> Span | None:
    """Return the innermost open span of this name in this thread or task, if it is a span object."""
    lane: Lane | None = getattr(local, "lane", None)
    if lane is None:
        return None
    objects = lane.journal.objects
    if lane.frames:
        frame = task_spans.innermost(word)
        if frame is not None:
            span: Span | None = objects.get(frame.origin) if frame.origin else None
            return span
    for entry in reversed(lane.stack):
        if entry & NAME_MASK == word:
            return None if entry & DROPPED else objects.get(lane.origin(entry & SLOT_MASK))
    return None


def is_unrecorded(word: int) -> bool:
    """Return whether the innermost open span of this name in this thread or task was dropped."""
    lane: Lane | None = getattr(local, "lane", None)
    if lane is None:
        return False
    frame = task_spans.innermost(word) if lane.frames else None
    return lane.is_dropped(word) if frame is None else not frame.origin


def leave_unrecorded(word: int) -> bool:
    """End the innermost open span of this name if it was dropped; return whether it was."""
    if not is_unrecorded(word):
        return False
    lane: Lane = local.lane
    if not lane.frames or task_spans.leave(word, 0) is None:
        lane.leave_dropped(word)
    return True


class timed_span:
    """A context manager that returns a span object, and a decorator.

    An exception is recorded on the span and raised.
    """

    __slots__ = ("_attributes", "name_word")

    def __init__(
        self,
        name: str | Enum,
        span_attributes: Mapping[str, Any] | None = None,
        start_event_attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.name_word = intern_name(name)
        self._attributes = as_attributes(span_attributes)
        self._attributes.add_attributes(as_attributes(start_event_attributes))

    def __enter__(self) -> Span:
        try:
            return open_span(self.name_word, self._attributes.copy() if self._attributes else None)
        except Exception as error:
            report("timed_span", error)
            return NO_SPAN

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self.name_word, error)

    def __call__(self, function: F) -> F:
        from stepwell.journal.decorator import decorate

        return decorate(self, function)

    @property
    def name(self) -> str:
        """Name of its spans."""
        return names.key(self.name_word >> NAME_SHIFT)[2]


@never_raises
def leave(word: int, error: BaseException | None = None) -> None:
    """End the innermost open span of this name in this thread or task."""
    end = clock.now()
    span = find_open(word)
    if span is not None:
        span._stop(end, error)
    else:
        leave_unrecorded(word)
