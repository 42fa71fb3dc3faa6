"""Sending spans through the OpenTelemetry exporter. Imports it, so never in a training process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from stepwell._core.masking import without_password
from stepwell.exporters.otlp.spans import OutSpan, Value
from stepwell.telemetry import VERSION

MOST_IN_A_REQUEST = 512
"""Spans and events in one request; receivers limit its size."""


class Refused(ConnectionError):
    """The receiver did not accept a request."""


class Sender:
    """Sends the spans of one trace.

    Attributes:
        rejected: number of spans that the receiver permanently rejected.
        rejection: its reason.
    """

    def __init__(
        self,
        trace: int,
        resource: dict[str, Value],
        *,
        endpoint: str | None,
        headers: dict[str, str] | None,
        timeout: float,
        compression: str | None,
    ) -> None:
        self.rejected = 0
        self.rejection = ""
        self._spans = ReadableSpans(trace, resource)
        self._session = _Session(self)
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint,
            headers=headers,
            timeout=timeout,  # type: ignore[arg-type, unused-ignore] # older ones say int
            compression=None if compression is None else Compression(compression),
            session=self._session,
        )

    def describe(self, resource: dict[str, Value]) -> None:
        """Set the resource attributes to send from now on."""
        self._spans.describe(resource)

    def send(self, spans: Sequence[OutSpan]) -> None:
        """Deliver spans, or raise ``Refused``."""
        for batch in _in_requests(spans):
            self._session.problem = ""
            try:
                done = self._exporter.export([self._spans.make(span) for span in batch])
            except requests.RequestException:  # older releases let these through
                done = SpanExportResult.FAILURE
            if done is not SpanExportResult.SUCCESS:
                where = without_password(self._session.url)
                why = self._session.problem or "it could not be encoded"
                raise Refused(f"{where} did not accept {len(batch)} spans: {why}")

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call, unused-ignore]


class _Session(requests.Session):
    """Checks the responses, and raises unless the request succeeded.

    The OpenTelemetry exporter takes a redirect, or the login page of a network, for a success. And it
    retries on its own, in some releases for minutes: ``Feed`` retries instead, and reports the reason.
    """

    def __init__(self, sender: Sender) -> None:
        super().__init__()
        self.problem = ""
        self.url = "the receiver"
        self._sender = sender

    def request(self, method: Any, url: Any, *args: Any, **more: Any) -> requests.Response:
        self.url = str(url)
        # Following a redirect would turn the POST into a GET.
        more["allow_redirects"] = False
        try:
            response = self._request(method, url, *args, **more)
            self._check(response)
        except requests.RequestException as error:
            self.problem = _in_words(error)
            raise _NoSuccess(self.problem) from None
        return response

    def _request(self, *args: Any, **more: Any) -> requests.Response:
        try:
            return super().request(*args, **more)
        except requests.ConnectTimeout:
            raise
        except requests.ConnectionError:
            # Servers close idle connections; try once more on a new one.
            return super().request(*args, **more)

    def _check(self, response: requests.Response) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        status = f"HTTP {response.status_code} {response.reason}"
        if response.status_code >= 400:
            raise _NoSuccess(f"{status} {response.text[:300]}".strip())
        if response.status_code >= 300 or kind == "text/html":
            raise _NoSuccess(f"{status}, {kind or 'no content'}: not an OTLP receiver")
        if kind not in ("application/json", "text/plain"):
            self._read(response.content)

    def _read(self, content: bytes) -> None:
        response = ExportTraceServiceResponse()
        try:
            response.ParseFromString(content)
        except Exception:
            raise _NoSuccess(f"its response is not OTLP: {content[:40]!r}") from None
        if response.partial_success.rejected_spans:
            self._sender.rejected += response.partial_success.rejected_spans
            self._sender.rejection = response.partial_success.error_message


class _NoSuccess(requests.RequestException):
    """A failed request. The OpenTelemetry exporter does not retry after this type."""


def _in_words(error: Exception) -> str:
    """Return the innermost cause, which the libraries wrap several times."""
    if isinstance(error, _NoSuccess):
        return str(error)
    cause = error
    for _ in range(8):
        inner = getattr(cause, "reason", None) or next(iter(cause.args), None)
        if not isinstance(inner, Exception):
            break
        cause = inner
    return f"{type(cause).__name__}: {str(cause)[:300]}"


def _in_requests(spans: Sequence[OutSpan]) -> list[list[OutSpan]]:
    batches: list[list[OutSpan]] = []
    weight = MOST_IN_A_REQUEST
    for span in spans:
        own = 1 + len(span.events)
        if weight + own > MOST_IN_A_REQUEST:
            batches.append([])
            weight = 0
        batches[-1].append(span)
        weight += own
    return batches


class ReadableSpans:
    """Converts the spans of one trace to those of the SDK."""

    def __init__(self, trace: int, resource: dict[str, Value]) -> None:
        self._trace = trace
        self._scope = InstrumentationScope("stepwell", VERSION)
        self.describe(resource)

    def describe(self, resource: dict[str, Value]) -> None:
        """Set the resource attributes to send from now on."""
        self._resource = Resource.create(resource)

    def make(self, span: OutSpan) -> ReadableSpan:
        """Return a span of the SDK."""
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
