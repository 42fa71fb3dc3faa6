"""Live spans: one object per entry, to add attributes and events to.

``stepwell.span("name")`` is cheaper and enough for most; these are for callbacks, which have a start and an
end in different places, and for whoever wants to hold on to the span that is open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from types import TracebackType
from typing import Any, TypeVar

from stepwell.journal import clock, frames
from stepwell.journal.errors import StepwellError, misuse, quietly, report
from stepwell.journal.format import ERROR, NAME_MASK, NAME_SHIFT, SLOT_MASK
from stepwell.journal.lane import DROPPED, Lane
from stepwell.journal.names import SPAN, names
from stepwell.journal.open_span import OpenSpan
from stepwell.journal.span import NO_ERRORS
from stepwell.journal.state import local, state
from stepwell.journal.values import encode
from stepwell.telemetry.attributes import Attributes
from stepwell.telemetry.events import Event, Timestamp, as_attributes, clock_at, name_of

F = TypeVar("F", bound=Callable[..., Any])

SPAN_START = "span_start"
SPAN_STOP = "span_stop"
REMEMBERED_EVENTS = 128
"""So many of a span's latest events are at hand; the run has them all."""


watchers: dict[int, Callable[[Any], None]] = {}
"""Who wants to know that a span of a certain name has ended, however it was opened."""


class Span(OpenSpan):
    """A stretch of time that is being recorded, or was."""

    __slots__ = ("_attributes", "_events", "_parent")

    _attributes: Attributes | None
    _events: deque[Event] | None
    _parent: Span | None

    # What it is

    @property
    def active(self) -> bool:
        """Whether it is open."""
        return not self.end

    @property
    def parent(self) -> Span | None:
        """The span that it was opened in, when that is such an object too."""
        return self._parent

    @property
    def attributes(self) -> Attributes:
        """All its attributes."""
        return Attributes() if self._attributes is None else self._attributes

    @property
    def events(self) -> list[Event]:
        """Its events, the latest ones where there are very many."""
        return [] if self._events is None else list(self._events)

    @property
    def start_event(self) -> Event:
        """The instant it was opened."""
        return Event(SPAN_START, Attributes(), self.start)

    @property
    def stop_event(self) -> Event | None:
        """The instant it was closed; None while it is open."""
        return Event(SPAN_STOP, Attributes(), self.end) if self.end else None

    @property
    def start_ns(self) -> int:
        """When it was opened, in nanoseconds since the epoch."""
        return clock.to_wall(self.start)

    @property
    def end_ns(self) -> int | None:
        """When it was closed, in nanoseconds since the epoch; None while it is open."""
        return clock.to_wall(self.end) if self.end else None

    @property
    def duration_ns(self) -> int:
        """How long it took, or has taken so far."""
        return (self.end or clock.now()) - self.start

    @property
    def duration(self) -> float:
        """How long it took, or has taken so far, in seconds."""
        return self.duration_ns / 1e9

    @property
    def duration_msec(self) -> float:
        """How long it took, or has taken so far, in milliseconds."""
        return self.duration_ns / 1e6

    # What can be done with it

    def add_attribute(self, name: str, value: Any) -> None:
        """Set an attribute; also after the end, and from another thread."""
        self.add_attributes(Attributes().add(name, value))

    def add_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set several attributes at once."""
        kept = as_attributes(attributes)
        if self._attributes is None:
            self._attributes = Attributes()
        try:
            self._attributes.add_attributes(kept)
        except StepwellError as error:
            # A declared attribute of a standard span: what is wrong for it is not kept.
            misuse("attribute value", str(error))
            return
        self._annotate(kept.to_json())

    def add_event(
        self, event: Event | str | Enum, attributes: Mapping[str, Any] | None = None
    ) -> Event:
        """Record an event on this span; also after its end."""
        if not isinstance(event, Event):
            event = Event.create(event, attributes)
        if self._events is None:
            self._events = deque(maxlen=REMEMBERED_EVENTS)
        self._events.append(event)
        self._write(event)
        return event

    @quietly
    def _write(self, event: Event) -> None:
        journal = self._journal
        if journal is not None and self.id:
            journal.write_event(
                "event", event.name, event.attributes._values, span=self.id, time=event.clock
            )

    def record_error(self, error: BaseException) -> None:
        """Record an exception on this span, unless one inside has it already."""
        journal = self._journal
        if journal is not None and journal.is_new(error):
            self.add_event(Event.of_error(exception=error))

    def stop(
        self,
        attributes: Mapping[str, Any] | None = None,
        timestamp: Timestamp | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Close it, now or at a given time. Closing it again does nothing."""
        end = clock_at(timestamp)
        if attributes is not None:
            self.add_attributes(attributes)
        self._stop(end, error)

    def _stop(self, end: int, error: BaseException | None = None) -> None:
        """Close it at an instant of the journal's clock."""
        if self.end:
            return
        failed = error is not None and is_failure(error)
        journal = self._journal
        if failed and error is not None:
            self.record_error(error)
        elif isinstance(error, SystemExit) and journal is not None:
            # An exit without an error code is nothing to record, but explains the end.
            journal.is_new(error)
        if journal is not None:
            journal.objects.pop(self.id, None)
        self._finish(max(end, self.start), ERROR if failed else 0)
        watcher = watchers.get(self._word)
        if watcher is not None:
            watcher(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # A span belongs to this process: what travels to another one does nothing there.
        return _no_span, ()

    def __repr__(self) -> str:
        took = f"{self.duration_msec:.3f} ms" + (" so far" if self.active else "")
        return f"<span {self.name} {took}>"


def is_failure(error: BaseException) -> bool:
    """Whether an exception says that something went wrong, and not just how a loop or program ends."""
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    return not isinstance(error, NO_ERRORS)


class _NoSpan(Span):
    """Stands in where nothing is recorded."""

    __slots__ = ()

    def __init__(self) -> None:
        self._lane = self._frame = self._attributes = self._events = self._parent = None
        self._word = names.intern(SPAN, "(not recorded)") << NAME_SHIFT
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


def word_of(name: str | Enum, category: str = "") -> int:
    """What stands for a name in the journal."""
    return names.intern(SPAN, name_of(name), category) << NAME_SHIFT


def open_span(
    word: int,
    attributes: Attributes | None = None,
    start: int = 0,
    parent: Span | None = None,
    under: Span | None = None,
) -> Span:
    """Open a span; ``under`` is its parent only where nothing else is open.

    ``start`` is an instant of the journal's clock, 0 for now; below 0 it lies before the machine started.
    """
    if not state.enabled:
        return NO_SPAN
    span: Span = Span()
    span._attributes = attributes
    span._events = None
    otherwise = 0 if under is None else under.id
    if start or attributes or parent is not None:
        if start < 0:
            # Before the machine started, when the journal's clock began: the true start is an attribute.
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
    """The innermost open span of this name in this thread or task, when it is such an object."""
    lane: Lane | None = getattr(local, "lane", None)
    if lane is None:
        return None
    objects = lane.journal.objects
    if lane.frames:
        frame = frames.innermost(word)
        if frame is not None:
            found: Span | None = objects.get(frame.origin) if frame.origin else None
            return found
    for entry in reversed(lane.stack):
        if entry & NAME_MASK == word:
            found = None if entry & DROPPED else objects.get(lane.origin(entry & SLOT_MASK))
            return found
    return None


def is_unrecorded(word: int) -> bool:
    """Whether the innermost open span of this name in this thread or task found no space."""
    lane: Lane | None = getattr(local, "lane", None)
    if lane is None:
        return False
    frame = frames.innermost(word) if lane.frames else None
    return lane.is_dropped(word) if frame is None else not frame.origin


def leave_unrecorded(word: int) -> bool:
    """Close the innermost open span of this name if it found no space; whether it was so."""
    if not is_unrecorded(word):
        return False
    lane: Lane = local.lane
    if not lane.frames or frames.leave(word, 0) is None:
        lane.leave_dropped(word)
    return True


class timed_span:
    """Give any stretch of time a name: a context manager that gives the live span, and a decorator.

    An exception that goes through is recorded on the span, and passes on.
    """

    __slots__ = ("_attributes", "_word")

    def __init__(
        self,
        name: str | Enum,
        span_attributes: Mapping[str, Any] | None = None,
        start_event_attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self._word = word_of(name)
        self._attributes = as_attributes(span_attributes)
        self._attributes.add_attributes(as_attributes(start_event_attributes))

    def __enter__(self) -> Span:
        try:
            return open_span(self._word, self._attributes.copy() if self._attributes else None)
        except Exception as error:
            report("timed_span", error)
            return NO_SPAN

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self._word, error)

    def __call__(self, function: F) -> F:
        from stepwell.journal.decorate import decorate

        return decorate(self, function)

    @property
    def name(self) -> str:
        """What its spans are called."""
        return names.key(self._word >> NAME_SHIFT)[2]


@quietly
def leave(word: int, error: BaseException | None = None) -> None:
    """Close the innermost open span of this name in this thread or task."""
    end = clock.now()
    span = find_open(word)
    if span is not None:
        span._stop(end, error)
    else:
        leave_unrecorded(word)
