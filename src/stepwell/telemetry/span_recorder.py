"""The span recorder: starting, stopping and describing spans by explicit calls."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, overload

from stepwell.journal import errors
from stepwell.journal.errors import StepwellError, quietly
from stepwell.journal.state import current_journal, state
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
        start = 0 if start_time is None else clock_at(start_time)
        return self._start(word, attributes, start, parent_span) or NO_SPAN

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
        span.stop(stop_event_attributes, stop_time)

    @overload
    def event(self, event: Event, /) -> Event: ...

    @overload
    def event(self, span: Span, event: Event, /) -> Event: ...

    def event(self, *args: Span | Event) -> Event:
        """Record an event, on this span or else on the innermost open one."""
        span, event = (None, *args) if len(args) == 1 else args
        if not isinstance(event, Event) or not (span is None or isinstance(span, Span)):
            raise StepwellError(
                f"event{args!r}: write event(Event.create(name)) or event(span, Event.create(name))"
            )
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
        return span.add_event(Event.of_error(error_message, exception))

    def telemetry_data_error(
        self, error_message: str, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Record that the telemetry itself is incomplete, and why."""
        about = {"error_message": error_message, **as_attributes(attributes)}
        self._write(Event.create(errors.TELEMETRY_ERROR, about))
