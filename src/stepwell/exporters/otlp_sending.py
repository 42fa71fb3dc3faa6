"""Sending spans through the official OpenTelemetry exporter. Imports it: never in a training process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace.export import SpanExportResult

from stepwell.exporters.otlp_options import without_password
from stepwell.exporters.otlp_readable import ReadableSpans
from stepwell.exporters.otlp_spans import OutSpan, Value

MOST_IN_A_REQUEST = 512
"""So many spans and events go into one request: receivers limit its size."""


class Refused(ConnectionError):
    """The receiver did not take what was sent to it."""


class Sender:
    """Sends the spans of one trace.

    Attributes:
        rejected: how many spans the receiver said it would never take.
        rejection: why, in its words.
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
        """Say from now on that it is this which sends."""
        self._spans.describe(resource)

    def send(self, spans: Sequence[OutSpan]) -> None:
        """Deliver these, or raise ``Refused``."""
        for batch in _in_requests(spans):
            self._session.problem = ""
            try:
                done = self._exporter.export([self._spans.make(span) for span in batch])
            except requests.RequestException:  # older releases let these through
                done = SpanExportResult.FAILURE
            if done is not SpanExportResult.SUCCESS:
                where = without_password(self._session.url)
                why = self._session.problem or "it could not be encoded"
                raise Refused(f"{where} did not take {len(batch)} spans: {why}")

    def close(self) -> None:
        """Let go of the connection."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call, unused-ignore]


class _Session(requests.Session):
    """Looks at the answers, and raises unless it is a yes.

    The exporter takes a redirect, or the page of a hotel network, for a success. And it retries by
    itself, some releases of it for minutes: whoever feeds it does so better, and can say why.
    """

    def __init__(self, sender: Sender) -> None:
        super().__init__()
        self.problem = ""
        self.url = "the receiver"
        self._sender = sender

    def request(self, method: Any, url: Any, *args: Any, **more: Any) -> requests.Response:
        self.url = str(url)
        # Followed, a redirect would turn what is posted into a mere question.
        more["allow_redirects"] = False
        try:
            answer = self._request(method, url, *args, **more)
            self._check(answer)
        except requests.RequestException as error:
            self.problem = _in_words(error)
            raise _NoSuccess(self.problem) from None
        return answer

    def _request(self, *args: Any, **more: Any) -> requests.Response:
        try:
            return super().request(*args, **more)
        except requests.ConnectTimeout:
            raise
        except requests.ConnectionError:
            # A server closes connections that were idle for a while; on a new one it works.
            return super().request(*args, **more)

    def _check(self, answer: requests.Response) -> None:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        told = f"HTTP {answer.status_code} {answer.reason}"
        if answer.status_code >= 400:
            raise _NoSuccess(f"{told} {answer.text[:300]}".strip())
        if answer.status_code >= 300 or kind == "text/html":
            raise _NoSuccess(f"{told}, {kind or 'no content'}: no OTLP receiver")
        if kind not in ("application/json", "text/plain"):
            self._read(answer.content)

    def _read(self, content: bytes) -> None:
        told = ExportTraceServiceResponse()
        try:
            told.ParseFromString(content)
        except Exception:
            raise _NoSuccess(f"its answer is no OTLP: {content[:40]!r}") from None
        if told.partial_success.rejected_spans:
            self._sender.rejected += told.partial_success.rejected_spans
            self._sender.rejection = told.partial_success.error_message


class _NoSuccess(requests.RequestException):
    """It was not taken. Of no kind that the exporter would try again."""


def _in_words(error: Exception) -> str:
    """The innermost cause, which the libraries wrap several times."""
    if isinstance(error, _NoSuccess):
        return str(error)
    seen = error
    for _ in range(8):
        inner = getattr(seen, "reason", None) or next(iter(seen.args), None)
        if not isinstance(inner, Exception):
            break
        seen = inner
    return f"{type(seen).__name__}: {str(seen)[:300]}"


def _in_requests(spans: Sequence[OutSpan]) -> list[list[OutSpan]]:
    found: list[list[OutSpan]] = []
    weight = MOST_IN_A_REQUEST
    for span in spans:
        own = 1 + len(span.events)
        if weight + own > MOST_IN_A_REQUEST:
            found.append([])
            weight = 0
        found[-1].append(span)
        weight += own
    return found
