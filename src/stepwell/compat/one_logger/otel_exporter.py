"""Spans to any exporter of the OpenTelemetry SDK. Imports the SDK, which such an exporter needs anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace.export import SpanExportResult

from stepwell.compat.one_logger.values import ExportError
from stepwell.exporters.otlp import resource_of, trace_id
from stepwell.exporters.otlp_readable import ReadableSpans
from stepwell.exporters.otlp_spans import SpanBuilder
from stepwell.telemetry.exporter import Exporter, Record, Source


class OTelExporter(Exporter):
    """Gives spans with their events to a ``SpanExporter`` of the SDK, when they have ended.

    It runs in a thread of the training process. ``stepwell.exporters.OTLPExporter`` does the same in a
    process of its own.
    """

    name = "otel"

    def __init__(self, otel_span_exporter: Any) -> None:
        self.exporter = otel_span_exporter

    def open(self, source: Source) -> None:
        """Get ready for the spans of one process."""
        self._builder = SpanBuilder(f"{source.process}\0{source.started_ns}")
        self._spans = ReadableSpans(trace_id(source), resource_of(source))

    def export(self, records: Sequence[Record]) -> None:
        """Pass on what has ended."""
        spans = [self._spans.make(span) for span in self._builder.take(records)]
        if spans and self.exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ExportError(f"{type(self.exporter).__name__} did not take {len(spans)} spans")
        self._builder.keep()

    def flush(self) -> None:
        """Pass on what the exporter still holds."""
        self.exporter.force_flush()

    def close(self) -> None:
        """Shut the exporter down."""
        self.exporter.shutdown()
