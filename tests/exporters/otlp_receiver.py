"""A small OTLP/HTTP receiver that can be down, slow, overloaded or talk nonsense."""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress, "": bytes}


@dataclass
class Span:
    """A span that arrived."""

    trace: str
    id: str
    parent: str
    name: str
    start: int
    end: int
    status: str
    message: str
    attributes: dict[str, Any]
    events: list[tuple[str, int, dict[str, Any]]]
    resource: dict[str, Any]
    scope: tuple[str, str]


@dataclass
class Receiver:
    """Listens on a free port of this machine.

    ``mode`` says how it behaves: ``ok``; ``overloaded`` (503); ``refusing`` (400); ``page`` (a web
    page with status 200); ``noise`` (bytes that are not OTLP); ``moved`` (302); ``no http``;
    ``partly`` (accepts with a count of rejected spans). It does not answer while ``ready`` is not set.
    """

    mode: str = "ok"
    ready: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    spans: list[Span] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    requests: int = 0
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __post_init__(self) -> None:
        self.ready.set()

    def up(self) -> Receiver:
        """Begin to listen, on the same port as before."""
        self._server = _Server(("127.0.0.1", self.port), _handler(self))
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def down(self) -> None:
        """Stop listening: connections are refused."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> Receiver:
        return self if self._server is not None else self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    # What arrived

    def named(self, name: str) -> list[Span]:
        return [span for span in list(self.spans) if span.name == name]

    def by_id(self) -> dict[str, Span]:
        """The spans, each once: what a receiver that knows spans by their ids has."""
        return {span.id: span for span in list(self.spans)}

    def tree(self) -> set[tuple[str, str | None]]:
        """(name, name of the parent) of every span, without placeholders and late events."""
        known = self.by_id()
        return {
            (span.name, known[span.parent].name if span.parent else None)
            for span in known.values()
            if not {"stepwell.open", "stepwell.event"} & span.attributes.keys()
        }

    def wait(self, condition: Callable[[Receiver], Any], seconds: float = 120.0) -> None:
        """Until this is so; it fails only when it never is."""
        deadline = time.monotonic() + seconds
        while not condition(self):
            names = sorted({span.name for span in list(self.spans)})
            assert time.monotonic() < deadline, f"{self.requests} requests brought only {names}"
            time.sleep(0.05)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that closed the connection."""


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            receiver.requests += 1
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.ready.wait(60)
            if self.path != "/v1/traces":
                self.answer(404, b"not here", "text/plain")
            elif receiver.mode == "no http":
                self.wfile.write(b"\x00\x01 what? \r\n\r\n")
                self.close_connection = True
            elif receiver.mode in ANSWERS:
                self.answer(*ANSWERS[receiver.mode])
            else:
                self.take(UNPACK[self.headers.get("content-encoding", "")](body))

        def take(self, body: bytes) -> None:
            receiver.headers.append({k.lower(): v for k, v in self.headers.items()})
            receiver.spans.extend(decode(body))
            response = ExportTraceServiceResponse()
            if receiver.mode == "partly":
                response.partial_success.rejected_spans = 1
                response.partial_success.error_message = "too old"
            self.answer(200, response.SerializeToString(), "application/x-protobuf")

        def answer(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            if code == 302:
                self.send_header("location", "/login")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler


ANSWERS = {
    "overloaded": (503, b"busy", "text/plain"),
    "refusing": (400, b"no such experiment", "text/plain"),
    "page": (200, b"<html>Welcome to the hotel network</html>", "text/html"),
    "noise": (200, b"\xff\xfe\xfd garbage \x00", "application/x-protobuf"),
    "moved": (302, b"", "text/html"),
}


def decode(body: bytes) -> list[Span]:
    """The spans of a request."""
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Span(
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            name=span.name,
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            status={0: "unset", 1: "ok", 2: "error"}[span.status.code],
            message=span.status.message,
            attributes=_plain(span.attributes),
            events=[(e.name, e.time_unix_nano, _plain(e.attributes)) for e in span.events],
            resource=_plain(group.resource.attributes),
            scope=(scope.scope.name, scope.scope.version),
        )
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _plain(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
