"""Spans with one-logger's interface: spans being recorded, and spans passed to exporters."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from enum import Enum
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from stepwell._core.errors import StepwellError
from stepwell.compat.one_logger.values import (
    Attribute,
    ErrorEvent,
    OneLoggerAttributes,
    OneLoggerEvent,
    StandardEventName,
    TracingTimestamp,
    attributes_of,
    plain_values,
    seconds_of,
)
from stepwell.telemetry.events import Event, name_of
from stepwell.telemetry.run import active_run
from stepwell.telemetry.span_handle import Span

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
DURATION = "duration_msec"


class OneLoggerSpan:
    """A span as a plain value, as passed to exporters and returned by ``Span.create``. Not recorded."""

    __slots__ = ("__weakref__", "_events", "_id", "_initial", "_name", "_parent", "_updated")

    def __init__(
        self,
        id: uuid.UUID,
        name: str | Enum,
        start_event: OneLoggerEvent,
        parent_span: OneLoggerSpan | None = None,
        span_attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self._id = id
        self._name = name_of(name)
        self._parent = parent_span
        self._events = [start_event]
        self._initial = plain_values(span_attributes)
        self._updated: dict[str, Any] = {}

    @classmethod
    def create(
        cls,
        name: str | Enum,
        parent_span: OneLoggerSpan | None = None,
        span_attributes: Mapping[str, Any] | None = None,
        start_event_attributes: Mapping[str, Any] | None = None,
        start_time: TracingTimestamp | None = None,
    ) -> OneLoggerSpan:
        """Return a span that starts now, without recording it: ``recorder.start`` records one."""
        start = OneLoggerEvent.create(
            StandardEventName.SPAN_START, start_event_attributes, start_time
        )
        return OneLoggerSpan(uuid.uuid4(), name, start, parent_span, span_attributes)

    @property
    def id(self) -> uuid.UUID:
        """An id that is unique among all processes of all runs."""
        return self._id

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @property
    def name_str(self) -> str:
        """The name as a plain string."""
        return self.name

    @property
    def parent_span(self) -> OneLoggerSpan | None:
        """The span in which this span was started, or None."""
        return self._parent

    @property
    def attributes(self) -> OneLoggerAttributes:
        """All attributes, including those set at the end."""
        return attributes_of(self.name, {**self._initial, **self._since_start()})

    @property
    def updated_attributes(self) -> OneLoggerAttributes:
        """Attributes added or changed after the start."""
        return attributes_of(self.name, self._since_start())

    def _since_start(self) -> dict[str, Any]:
        stop, start = self.stop_event, self.start_event
        if stop is None:
            return self._updated
        took = stop.timestamp.perf_counter_seconds - start.timestamp.perf_counter_seconds
        return {**self._updated, DURATION: round(took * 1e9) // 1_000_000}

    @property
    def events(self) -> list[OneLoggerEvent]:
        """Its events, from ``span_start`` to ``span_stop``."""
        return self._events

    @property
    def start_event(self) -> OneLoggerEvent:
        """The event ``span_start``."""
        return self.events[0]

    @property
    def stop_event(self) -> OneLoggerEvent | None:
        """The event ``span_stop``; None while the span is open."""
        last = self.events[-1]
        return last if last.name == StandardEventName.SPAN_STOP else None

    @property
    def active(self) -> bool:
        """Whether the span is open."""
        return self.stop_event is None

    def duration_msec(self) -> int:
        """Return the duration in whole milliseconds. Raises while the span is open."""
        duration: int | None = self._since_start().get(DURATION)
        if duration is None:
            raise StepwellError(
                f"{self.name} is still open: call duration_msec() after it has ended"
            )
        return duration

    def to_json(self) -> dict[str, Any]:
        """Return the span as a plain dict."""
        return {
            "name": self.name,
            "id": str(self.id),
            "events": [event.to_json() for event in self.events],
            "attributes": self.attributes.to_json(),
        }

    def add_attribute(self, name: str, value: Any) -> Attribute:
        """Set an attribute, and return it."""
        self.add_attributes({name: value})
        return Attribute(name_of(name), value)

    def add_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set several attributes."""
        self._updated.update(plain_values(attributes))

    def add_event(self, event: OneLoggerEvent) -> OneLoggerEvent:
        """Add an event, and return it."""
        self._events.append(event)
        return event

    def stop(
        self,
        stop_event_attributes: Mapping[str, Any] | None = None,
        stop_time: TracingTimestamp | None = None,
    ) -> None:
        """End the span, now or at the given time. Ending it again does nothing."""
        if self.active:
            name = StandardEventName.SPAN_STOP
            self._events.append(OneLoggerEvent.create(name, stop_event_attributes, stop_time))

    def __repr__(self) -> str:
        return f"<span {self.name} {self.attributes.to_json()}>"


class LiveSpan(OneLoggerSpan):
    """A span that is being recorded. ``recorded`` is stepwell's own span."""

    __slots__ = ("recorded",)

    def __init__(self, recorded: Span) -> None:
        self.recorded = recorded
        given = recorded._attributes
        self._initial = {} if given is None else given.to_json()

    @property
    def id(self) -> uuid.UUID:
        run, journal = active_run(), self.recorded._journal
        process = "" if journal is None else journal.folder.name
        return span_id("" if run is None else run.id, process, self.recorded.id)

    @property
    def name(self) -> str:
        return self.recorded.name

    @property
    def parent_span(self) -> OneLoggerSpan | None:
        parent = self.recorded.parent
        return None if parent is None else view_of(parent)

    def _since_start(self) -> dict[str, Any]:
        first, span = self._initial, self.recorded
        values = span.attributes.to_json()
        changed = {k: v for k, v in values.items() if k not in first or first[k] != v}
        return changed if span.active else {**changed, DURATION: int(span.duration_msec)}

    @property
    def events(self) -> list[OneLoggerEvent]:
        """Its events, from ``span_start`` to ``span_stop``; of very many, only the latest."""
        span = self.recorded
        events = [span.start_event, *span.events, *filter(None, [span.stop_event])]
        return [event_of(event) for event in events]

    @property
    def active(self) -> bool:
        return self.recorded.active

    def add_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.recorded.add_attributes(plain_values(attributes))

    def add_event(self, event: OneLoggerEvent) -> OneLoggerEvent:
        """Record an event on this span, and return it."""
        self.recorded.add_event(as_recorded(event))
        return event

    def stop(
        self,
        stop_event_attributes: Mapping[str, Any] | None = None,
        stop_time: TracingTimestamp | None = None,
    ) -> None:
        more = plain_values(stop_event_attributes) or None
        self.recorded.stop(more, seconds_of(stop_time))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LiveSpan) and other.recorded is self.recorded

    def __hash__(self) -> int:
        return hash(self.recorded)


_views: WeakValueDictionary[int, LiveSpan] = WeakValueDictionary()


def view_of(span: Span) -> LiveSpan:
    """Return the ``LiveSpan`` of a recorded span, always the same object while it is referenced."""
    view = _views.get(span.id)
    if view is None or view.recorded is not span:
        view = _views[span.id] = LiveSpan(span)
    return view


def as_recorded(given: Any) -> Any:
    """Return stepwell's own span or event; other values unchanged."""
    if isinstance(given, LiveSpan):
        return given.recorded
    return given.as_recorded() if isinstance(given, OneLoggerEvent) else given


def event_of(event: Event) -> OneLoggerEvent:
    """Return a recorded event as a ``OneLoggerEvent``."""
    return make_event(event.name, event.attributes.to_json(), TracingTimestamp.at(event.clock))


def make_event(name: str, values: Mapping[str, Any], time: TracingTimestamp) -> OneLoggerEvent:
    """Return an event, of the class that belongs to its name."""
    if name == StandardEventName.ERROR:
        return ErrorEvent(time, values)
    return OneLoggerEvent(name, time, attributes_of(name, values))


def span_id(run: str, process: str, number: int) -> uuid.UUID:
    """Return a span id derived from run, process and number."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{run}/{process}/{number}")


def returning_views(
    function: Callable[P, Span], view: Callable[[Span], LiveSpan] = view_of
) -> Callable[P, LiveSpan]:
    """Wrap a function that returns a span so that it returns a ``LiveSpan``.

    For very frequent spans ``view`` is ``LiveSpan`` itself, which is faster than ``view_of``.
    """

    @wraps(function)
    def start(*args: P.args, **kwargs: P.kwargs) -> LiveSpan:
        return view(function(*args, **kwargs))

    return start


class Viewed:
    """A context manager (and decorator) whose ``with`` statement returns a ``LiveSpan``."""

    __slots__ = ("_inner", "_view")

    def __init__(self, inner: Any, view: Callable[[Span], LiveSpan]) -> None:
        self._inner = inner
        self._view = view

    def __enter__(self) -> LiveSpan:
        return self._view(self._inner.__enter__())

    def __exit__(self, *exception: Any) -> None:
        self._inner.__exit__(*exception)

    def __call__(self, function: F) -> F:
        decorated: F = self._inner(function)
        return decorated


def entering_views(
    function: Callable[P, Any], view: Callable[[Span], LiveSpan] = view_of
) -> Callable[P, Viewed]:
    """Wrap a function that returns a context manager so that it yields a ``LiveSpan``."""

    @wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> Viewed:
        return Viewed(function(*args, **kwargs), view)

    return make
