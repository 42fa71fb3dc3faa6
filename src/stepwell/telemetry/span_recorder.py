"""The span recorder: starts and ends spans, and records events, by explicit calls."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, overload

from stepwell._core import clock, errors
from stepwell._core.errors import never_raises, report_misuse
from stepwell._core.values import shown
from stepwell.journal.state import current_journal, state
from stepwell.telemetry.events import Event, Timestamp, as_attributes, clock_at
from stepwell.telemetry.span_handle import NO_SPAN, Span, intern_name, open_span


class SpanRecorder:
    """Records into the active run; without one, calls do nothing."""

    def start(
        self,
        span_name: str | Enum,
        span_attributes: Mapping[str, Any] | None = None,
        start_event_attributes: Mapping[str, Any] | None = None,
        start_time: Timestamp | None = None,
        parent_span: Span | None = None,
    ) -> Span:
        """Open a span, with ``parent_span`` or the innermost open span as its parent."""
        word = intern_name(span_name)
        attributes = as_attributes(span_attributes)
        attributes.add_attributes(as_attributes(start_event_attributes))
        start = 0 if start_time is None else clock_at(start_time, clock.BEFORE_BOOT)
        parent = None if parent_span is None else _as_span(parent_span, "start(parent_span=…)")
        return self._start(word, attributes, start, parent) or NO_SPAN

    @never_raises
    def _start(self, word: int, attributes: Any, start: int, parent: Span | None) -> Span:
        return open_span(word, attributes or None, start, parent)

    def stop(
        self,
        span: Span,
        stop_event_attributes: Mapping[str, Any] | None = None,
        stop_time: Timestamp | None = None,
    ) -> None:
        """End a span; ending it twice is harmless."""
        (_as_span(span, "stop(span)") or NO_SPAN).stop(stop_event_attributes, stop_time)

    @overload
    def event(self, event: Event, /) -> Event: ...

    @overload
    def event(self, span: Span, event: Event, /) -> Event: ...

    def event(self, *args: Span | Event) -> Event:
        """Record an event on a span, by default on the innermost open one."""
        event, *before = reversed(args) if args else ("",)
        if not isinstance(event, Event):
            report_misuse(
                "recorder event",
                "event must be called as event(Event.create(name)) or event(span, Event.create(name)), got "
                f"event({', '.join(map(shown, args))})",
            )
            event = Event.create(shown(event))
        span = _as_span(before[0], "event(span, …)") if before else None
        if span is not None:
            return span.add_event(event)
        self._write(event)
        return event

    @never_raises
    def _write(self, event: Event) -> None:
        journal = current_journal() if state.enabled else None
        if journal is not None:
            journal.write_event("event", event.name, event.attributes.to_json(), time=event.clock)

    def error(
        self, span: Span, error_message: str, exception: BaseException | None = None
    ) -> Event:
        """Record an error on a span."""
        target = _as_span(span, "error(span, …)") or NO_SPAN
        return target.add_event(Event.of_error(error_message, exception))

    def telemetry_data_error(
        self, error_message: str, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Record that the telemetry is incomplete, and why."""
        values = {"error_message": error_message, **as_attributes(attributes)}
        self._write(Event.create(errors.TELEMETRY_ERROR, values))


def _as_span(given: Any, where: str) -> Span | None:
    """Return the span, None if it is not a span."""
    if isinstance(given, Span):
        return given
    report_misuse(
        "recorder span", f"{where} must be a span returned by start(), got {shown(given)}"
    )
    return None
