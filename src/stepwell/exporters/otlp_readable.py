"""Spans as the SDK of OpenTelemetry has them. Imports it: only where it is in use anyway."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from stepwell.exporters.otlp_spans import OutSpan, Value
from stepwell.telemetry.version import VERSION


class ReadableSpans:
    """Makes the spans of one trace."""

    def __init__(self, trace: int, resource: dict[str, Value]) -> None:
        self._trace = trace
        self._scope = InstrumentationScope("stepwell", VERSION)
        self.describe(resource)

    def describe(self, resource: dict[str, Value]) -> None:
        """Say from now on that it is this which sends."""
        self._resource = Resource.create(resource)

    def make(self, span: OutSpan) -> ReadableSpan:
        """Return the span as the SDK has it."""
        failed = span.error is not None
        return ReadableSpan(
            name=span.name,
            context=self._context(span.id),
            parent=None if span.parent is None else self._context(span.parent),
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(e.name, e.attributes, e.time_ns) for e in span.events],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.error) if failed else Status(StatusCode.OK),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    def _context(self, span: int) -> SpanContext:
        return SpanContext(self._trace, span, is_remote=False, trace_flags=TraceFlags(1))
