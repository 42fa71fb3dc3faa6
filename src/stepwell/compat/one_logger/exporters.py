"""one-logger's exporter interfaces, and the adapter that feeds such exporters from a run."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from stepwell._core.errors import log_warning, warn_once
from stepwell._core.values import text_of
from stepwell.compat.one_logger.spans import OneLoggerSpan, make_event, span_id
from stepwell.compat.one_logger.values import (
    ErrorEvent,
    ExportError,
    OneLoggerEvent,
    StandardEventName,
    StandardSpanName,
    TelemetryDataError,
    TracingTimestamp,
)
from stepwell.telemetry.exporter import EventRecord, Exporter, Record, Source, SpanRecord
from stepwell.vocabulary import RUNTIME

BEFORE = 10**12
"""Nanoseconds by which a span may be backdated before the start of its process."""
TRIES = 5
"""Attempts to export a record with an exporter that raises, before the record is skipped."""


class OneLoggerExporter(ABC):
    """An exporter with the interface of one-logger."""

    @abstractmethod
    def initialize(self) -> None:
        """Prepare for records."""

    @abstractmethod
    def export_start(self, span: OneLoggerSpan) -> None:
        """Export a span that has started."""

    @abstractmethod
    def export_stop(self, span: OneLoggerSpan) -> None:
        """Export a span that has ended."""

    @abstractmethod
    def export_event(self, event: OneLoggerEvent, span: OneLoggerSpan) -> None:
        """Export an event of a span."""

    @abstractmethod
    def export_error(self, event: ErrorEvent, span: OneLoggerSpan) -> None:
        """Export an error of a span."""

    @abstractmethod
    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Export a problem of the telemetry itself."""

    @abstractmethod
    def close(self) -> None:
        """Export remaining records and release resources."""


# stepwell's own exporters count as exporters too.
OneLoggerExporter.register(Exporter)


class BaseExporter(OneLoggerExporter):
    """An exporter that refuses to be used before ``initialize`` and after ``close``."""

    def __init__(self) -> None:
        self.ready = False
        self.closed = False

    def initialize(self) -> None:
        """Prepare for records."""
        self.ready, self.closed = True, False

    def close(self) -> None:
        """Release resources."""
        self.ready, self.closed = False, True

    def _check_state(self, *record: Any, **named: Any) -> None:
        if not self.ready:
            when = "after close()" if self.closed else "before initialize()"
            raise ExportError(f"{type(self).__name__} is used {when}")

    export_start = export_stop = export_event = export_error = _check_state
    export_telemetry_data_error = _check_state


class BaseJsonExporter(BaseExporter):
    """Passes each record to ``_write`` as a JSON object with the fields of the original's files.

    A span without children and events is a single object of the type ``complete``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begun: OneLoggerSpan | None = None
        self._count = 0

    @abstractmethod
    def _write(self, json_dict: dict[str, Any]) -> None:
        """Write one object."""

    def export_start(self, span: OneLoggerSpan) -> None:
        """Hold a span back until it has a child or an event, or ends."""
        super().export_start(span)
        self._write_begun()
        self._begun = span

    def export_stop(self, span: OneLoggerSpan) -> None:
        """Write a span that has ended."""
        super().export_stop(span)
        if self._begun is span:
            self._begun = None
            self._write_span("complete", span, "start_event", "stop_event")
        else:
            self._write_begun()
            self._write_span("stop", span, "stop_event")

    def export_event(self, event: OneLoggerEvent, span: OneLoggerSpan) -> None:
        """Write an event."""
        super().export_event(event, span)
        self._write_event("event", event, span)

    def export_error(self, event: ErrorEvent, span: OneLoggerSpan) -> None:
        """Write an error."""
        super().export_error(event, span)
        self._write_event("application_error", event, span)

    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Write a problem of the telemetry itself."""
        super().export_telemetry_data_error(error)
        self._write_numbered({"type": "telemetry_data_error", "error": _content(error)})

    def close(self) -> None:
        """Write the span that was held back."""
        self._write_begun()
        super().close()

    def _write_begun(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._write_span("start", begun, "start_event")

    def _write_span(self, kind: str, span: OneLoggerSpan, *events: str) -> None:
        line: dict[str, Any] = {"type": kind, "id": str(span.id), "name": span.name_str}
        if span.attributes:
            line["attributes"] = span.attributes.to_json()
        self._write_numbered({**line, **{name: _content(getattr(span, name)) for name in events}})

    def _write_event(self, kind: str, event: OneLoggerEvent, span: OneLoggerSpan) -> None:
        self._write_begun()
        self._write_numbered({"type": kind, "span_id": str(span.id), "event": _content(event)})

    def _write_numbered(self, line: dict[str, Any]) -> None:
        self._count += 1
        self._write({**line, "count": self._count, "pid": os.getpid()})


def _content(event: OneLoggerEvent) -> dict[str, Any]:
    return {"name": event.name_str, "attributes": event.attributes.to_json()}


class AdaptedExporter(Exporter):
    """Passes the records of a run to an exporter with one-logger's interface.

    It runs in a background thread, never in the training thread. The exporter is closed when the application
    ends, and initialized again when another application starts.
    """

    def __init__(self, exporter: Any) -> None:
        self.exporter = exporter
        self.name = type(exporter).__name__
        self._spans: dict[int, OneLoggerSpan] = {}
        self._place = ("", "")
        self._begin = 0
        self._is_ready = False
        self._done = 0
        self._failures = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AdaptedExporter) and other.exporter is self.exporter

    def __hash__(self) -> int:
        return id(self.exporter)

    def open(self, source: Source) -> None:
        """Initialize the exporter."""
        self._place = (source.run, source.process)
        self._begin = source.started_ns - BEFORE
        self._spans = {}
        self._done = self._failures = 0
        self._initialize()

    def _initialize(self) -> None:
        self.exporter.initialize()
        self._is_ready = True

    def close(self) -> None:
        """Close the exporter, unless the end of the application closed it."""
        if self._is_ready:
            self._is_ready = False
            self.exporter.close()

    def export(self, records: Sequence[Record]) -> None:
        """Export records one by one. After a failure, the call is repeated and resumes at that record."""
        for number in range(self._done, len(records)):
            try:
                self._take(records[number])
            except Exception as error:
                self._failures += 1
                if self._failures < TRIES:
                    raise
                log_warning(
                    "exporter %s failed on %s, which is skipped: %s. The run folder contains every "
                    "record.",
                    self.name,
                    records[number].name,
                    text_of(error),
                )
            self._failures = 0
            self._done = number + 1
        self._done = 0

    def _take(self, record: Record) -> None:
        if isinstance(record, SpanRecord) and record.category == RUNTIME:
            # Interpreter pauses: the original does not record them.
            return
        is_application = record.name == StandardSpanName.APPLICATION
        if not self._is_ready:
            if not (is_application and record.type == "start"):
                warn_once(
                    f"late {id(self)}",
                    "exporter %s was closed at the end of the application: later records are only in "
                    "the run folder",
                    self.name,
                )
                return
            self._initialize()
        if isinstance(record, EventRecord):
            self._take_event(record)
        elif record.type == "start":
            self._start(record)
        else:
            self._stop(record)
            if is_application:
                self.close()

    def _time(self, nanoseconds: int) -> TracingTimestamp:
        # Relative to the start of the process, so that a float keeps nanoseconds.
        return TracingTimestamp(nanoseconds / 1e9, (nanoseconds - self._begin) / 1e9)

    def _start(self, record: SpanRecord) -> OneLoggerSpan:
        parent = None if record.parent is None else self._spans.get(record.parent)
        start = OneLoggerEvent(StandardEventName.SPAN_START, self._time(record.start_ns))
        number = span_id(*self._place, record.id)
        span = OneLoggerSpan(number, record.name, start, parent, record.attributes)
        self.exporter.export_start(span)
        self._spans[record.id] = span
        return span

    def _stop(self, record: SpanRecord) -> None:
        span = self._spans.get(record.id) or self._start(record)
        before = span.attributes.to_json()
        span.add_attributes(
            {k: v for k, v in record.attributes.items() if k not in before or before[k] != v}
        )
        span.stop(stop_time=self._time(record.end_ns or record.start_ns))
        self.exporter.export_stop(span)
        del self._spans[record.id]

    def _take_event(self, record: EventRecord) -> None:
        values, time = record.attributes, self._time(record.time_ns)
        if record.name == StandardEventName.TELEMETRY_DATA_ERROR:
            kind = TelemetryDataError.ErrorType.INCOMPLETE_TELEMETRY_DATA
            message = str(values.get("error_message", ""))
            self.exporter.export_telemetry_data_error(
                TelemetryDataError(time, kind, message, values)
            )
            return
        span = self._span_of(record)
        if span is None:
            return
        if record.type == "attributes":
            span.add_attributes(values)
            return
        event = span.add_event(make_event(record.name, values, time))
        try:
            if isinstance(event, ErrorEvent):
                self.exporter.export_error(event, span)
            else:
                self.exporter.export_event(event, span)
        except Exception:
            # The record will be exported again.
            span.events.remove(event)
            raise

    def _span_of(self, record: EventRecord) -> OneLoggerSpan | None:
        """Return the span of an event; if that has ended or is unknown, the one that started last."""
        span = None if record.span is None else self._spans.get(record.span)
        if span is None and record.type != "attributes":
            return next(reversed(self._spans.values()), None)
        return span


def adapted(exporter: Any) -> Any:
    """Return an exporter for a run: the given one, or an adapter if it has one-logger's interface."""
    if callable(getattr(exporter, "export_start", None)) and not isinstance(exporter, type):
        return (
            exporter if callable(getattr(exporter, "export", None)) else AdaptedExporter(exporter)
        )
    return exporter


class OTelExporter(Exporter):
    """Passes finished spans with their events to a ``SpanExporter`` of the OpenTelemetry SDK.

    It runs in a thread of the training process. ``stepwell.exporters.OTLPExporter`` does the same in a
    separate process.
    """

    name = "otel"

    def __init__(self, otel_span_exporter: Any) -> None:
        self.exporter = otel_span_exporter

    def open(self, source: Source) -> None:
        """Prepare for the spans of one process."""
        # Imported here: the SDK is optional.
        from stepwell.exporters.otlp import resource_of, trace_id
        from stepwell.exporters.otlp.sender import ReadableSpans
        from stepwell.exporters.otlp.spans import SpanBuilder

        self._builder = SpanBuilder(f"{source.process}\0{source.started_ns}")
        self._spans = ReadableSpans(trace_id(source), resource_of(source))

    def export(self, records: Sequence[Record]) -> None:
        """Export the spans that have ended."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        spans = [self._spans.make(span) for span in self._builder.take(records)]
        if spans and self.exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ExportError(f"{type(self.exporter).__name__} did not accept {len(spans)} spans")
        self._builder.keep()

    def flush(self) -> None:
        """Flush the exporter."""
        self.exporter.force_flush()

    def close(self) -> None:
        """Shut the exporter down."""
        self.exporter.shutdown()
