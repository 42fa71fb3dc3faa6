"""Spans and events to any OpenTelemetry receiver, as OTLP over HTTP.

Runs in a process of its own: the training process never imports OpenTelemetry.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stepwell.exporters.otlp_options import (
    check_compression,
    check_endpoint,
    check_headers,
    check_seconds,
    require_opentelemetry,
    without_password,
)
from stepwell.exporters.otlp_spans import OutSpan, SpanBuilder, Value, number, plain
from stepwell.journal.errors import warn_once
from stepwell.telemetry.exporter import Exporter, Record, Source

if TYPE_CHECKING:
    from stepwell.exporters.otlp_sending import Sender


class OTLPExporter(Exporter):
    """Sends spans, with their events, to an OpenTelemetry receiver.

    Args:
        endpoint: where to post, such as ``http://localhost:4318/v1/traces``; a bare host gets the
            path ``/v1/traces``. Else ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` or
            ``OTEL_EXPORTER_OTLP_ENDPOINT``, else port 4318 of this machine.
        headers: HTTP headers, as a dict or as ``"name=value,name=value"``; else
            ``OTEL_EXPORTER_OTLP_TRACES_HEADERS`` or ``OTEL_EXPORTER_OTLP_HEADERS``.
        timeout: seconds that one request may take.
        announce_after: a span that is open for longer than this many seconds is announced by a
            placeholder below it, since OTLP has no open spans.
        compression: ``"none"``, ``"gzip"`` or ``"deflate"``; else ``OTEL_EXPORTER_OTLP_COMPRESSION``.
        linger: seconds that it goes on trying after training has ended.
    """

    name = "otlp"
    address_option: ClassVar[str | None] = "endpoint"
    out_of_process: ClassVar[bool] = True

    def __init__(
        self,
        endpoint: str | None = None,
        headers: Mapping[str, str] | str | None = None,
        timeout: float = 10.0,
        announce_after: float = 5.0,
        compression: str | None = None,
        linger: float = 60.0,
    ) -> None:
        self.endpoint = check_endpoint(endpoint)
        self.headers = check_headers(headers)
        self.timeout = check_seconds("timeout", timeout, inclusive=False)
        self.announce_after = check_seconds("announce_after", announce_after)
        self.compression = check_compression(compression)
        self.linger = check_seconds("linger", linger)
        require_opentelemetry()
        self._sender: Sender | None = None
        self._builder = SpanBuilder("")

    def description(self) -> dict[str, Any]:
        """How to make the same exporter in another process."""
        options = {
            "endpoint": self.endpoint,
            "headers": self.headers,
            "timeout": self.timeout,
            "announce_after": self.announce_after,
            "compression": self.compression,
            "linger": self.linger,
        }
        kind = type(self)
        return {"class": f"{kind.__module__}.{kind.__qualname__}", "options": options}

    @property
    def shown_options(self) -> dict[str, str]:
        """The options that may be written down: none that could be a secret."""
        return {} if self.endpoint is None else {"endpoint": without_password(self.endpoint)}

    # At work

    def open(self, source: Source) -> None:
        """Get ready for the spans of one process."""
        from stepwell.exporters.otlp_sending import Sender

        self.close()
        self._builder = SpanBuilder(f"{source.process}\0{source.started_ns}")
        self._sender = Sender(
            trace_id(source),
            resource_of(source),
            endpoint=self.endpoint,
            headers=self.headers,
            timeout=self.timeout,
            compression=self.compression,
        )

    def export(self, records: Sequence[Record]) -> None:
        """Send what has ended, with its events; raises when the receiver does not take it."""
        self._send(self._builder.take(records))

    def tick(self) -> None:
        """Announce what has been open for long; called now and then, also when nothing is new."""
        if self._sender is not None:
            self._send(self._builder.overdue(time.time_ns() - int(self.announce_after * 1e9)))

    def relabel(self, source: Source) -> None:
        """The run has been given another name or labels: say so from now on."""
        if self._sender is not None:
            self._sender.describe(resource_of(source))

    def close(self) -> None:
        """Let go of the connection."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def _send(self, spans: Sequence[OutSpan]) -> None:
        sender = self._sender
        if sender is None:
            raise RuntimeError("this exporter is closed: open(source) comes first")
        sender.send(spans)
        self._builder.keep()
        if sender.rejected:
            warn_once(
                f"otlp rejected {sender.rejection}",
                "the OTLP receiver rejected %d spans for good: %s",
                sender.rejected,
                sender.rejection or "it does not say why",
            )

    # As a value: the same one is not added to a run twice

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OTLPExporter):
            return NotImplemented
        return self.description() == other.description()

    def __hash__(self) -> int:
        return hash((type(self), self.endpoint))

    def __repr__(self) -> str:
        # Headers are left out: they hold secrets.
        where = "" if self.endpoint is None else repr(without_password(self.endpoint))
        return f"{type(self).__name__}({where})"


def trace_id(source: Source) -> int:
    """The trace of one rank in one attempt of a run: the same one however often it is sent."""
    return number(16, source.run, source.attempt, source.rank, source.started_ns)


def resource_of(source: Source) -> dict[str, Value]:
    """Who sends, in the words of OpenTelemetry where it has any."""
    labels = {f"stepwell.{name}": value for name, value in source.labels.items()}
    return plain(
        {
            **labels,
            "service.name": source.application,
            "service.instance.id": f"{source.run}/{source.process}",
            "host.name": source.host,
            "process.pid": source.pid,
            "stepwell.run.id": source.run,
            "stepwell.process": source.process,
            "stepwell.attempt": source.attempt,
            "stepwell.rank": source.rank,
            "stepwell.world_size": source.world_size,
        }
    )
