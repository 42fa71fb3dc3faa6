"""The span recorder: starting, stopping and describing spans by explicit calls."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, overload

from stepwell.journal import clock, errors
from stepwell.journal.errors import misuse, quietly
from stepwell.journal.state import current_journal, state
from stepwell.journal.values import shown
from stepwell.telemetry.events import Event, Timestamp, as_attributes, clock_at
from stepwell.telemetry.live import NO_SPAN, Span, open_span, word_of


class SpanRecorder:
    """Records into the active run; without one every call does nothing."""

    def start(
        self,
        span_name: str | Enum,
        span_attributes: Mapping[str, Any] | None = None,
        start_event_attributes: Mapping[str, Any] | None = None,
        start_time: Timestamp | None = None,
        parent_span: Span | None = None,
    ) -> Span:
        """Open a span, inside ``parent_span`` or else inside the innermost open one."""
        word = word_of(span_name)
        attributes = as_attributes(span_attributes)
        attributes.add_attributes(as_attributes(start_event_attributes))
        start = 0 if start_time is None else clock_at(start_time, clock.BEFORE_BOOT)
        parent = None if parent_span is None else _as_span(parent_span, "start(parent_span=…)")
        return self._start(word, attributes, start, parent) or NO_SPAN

    @quietly
    def _start(self, word: int, attributes: Any, start: int, parent: Span | None) -> Span:
        return open_span(word, attributes or None, start, parent)

    def stop(
        self,
        span: Span,
        stop_event_attributes: Mapping[str, Any] | None = None,
        stop_time: Timestamp | None = None,
    ) -> None:
        """Close a span; doing so twice is harmless."""
        (_as_span(span, "stop(span)") or NO_SPAN).stop(stop_event_attributes, stop_time)

    @overload
    def event(self, event: Event, /) -> Event: ...

    @overload
    def event(self, span: Span, event: Event, /) -> Event: ...

    def event(self, *args: Span | Event) -> Event:
        """Record an event, on this span or else on the innermost open one."""
        event, *before = reversed(args) if args else ("",)
        if not isinstance(event, Event):
            misuse(
                "recorder event",
                f"event({', '.join(map(shown, args))}): write event(Event.create(name)) or "
                "event(span, Event.create(name))",
            )
            event = Event.create(shown(event))
        span = _as_span(before[0], "event(span, …)") if before else None
        if span is not None:
            return span.add_event(event)
        self._write(event)
        return event

    @quietly
    def _write(self, event: Event) -> None:
        journal = current_journal() if state.enabled else None
        if journal is not None:
            journal.write_event("event", event.name, event.attributes.to_json(), time=event.clock)

    def error(
        self, span: Span, error_message: str, exception: BaseException | None = None
    ) -> Event:
        """Record an error on a span."""
        found = _as_span(span, "error(span, …)") or NO_SPAN
        return found.add_event(Event.of_error(error_message, exception))

    def telemetry_data_error(
        self, error_message: str, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Record that the telemetry itself is incomplete, and why."""
        about = {"error_message": error_message, **as_attributes(attributes)}
        self._write(Event.create(errors.TELEMETRY_ERROR, about))


def _as_span(given: Any, where: str) -> Span | None:
    """The span, None where something else was given."""
    if isinstance(given, Span):
        return given
    misuse("recorder span", f"{where} is given {shown(given)}: write the span that start() gave")
    return None
