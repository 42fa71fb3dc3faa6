"""The OTLP exporter: spans and events to any OpenTelemetry receiver, over HTTP.

It runs in a sidecar: the training process never imports OpenTelemetry.
"""

from __future__ import annotations

import importlib.util
import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote, urlsplit

from stepwell._core.checks import one_of
from stepwell._core.errors import StepwellError, warn_once
from stepwell._core.masking import without_password
from stepwell.exporters.otlp.spans import OutSpan, SpanBuilder, Value, number, plain
from stepwell.telemetry.exporter import Exporter, Record, Source

if TYPE_CHECKING:
    from stepwell.exporters.otlp.sender import Sender

TRACES = "/v1/traces"
EXAMPLE = "http://localhost:4318/v1/traces"
COMPRESSION = one_of("none", "gzip", "deflate")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class OTLPExporter(Exporter):
    """Send spans with their events to an OpenTelemetry receiver.

    Args:
        endpoint: the URL to post to, such as ``http://localhost:4318/v1/traces``; without a path,
            ``/v1/traces`` is added. Default: ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``,
            ``OTEL_EXPORTER_OTLP_ENDPOINT``, or port 4318 of this machine.
        headers: HTTP headers, as a dict or as ``"name=value,name=value"``. Default:
            ``OTEL_EXPORTER_OTLP_TRACES_HEADERS`` or ``OTEL_EXPORTER_OTLP_HEADERS``.
        timeout: seconds for one request.
        announce_after: seconds after which a placeholder is sent for an open span, because OTLP has no
            open spans.
        compression: ``"none"``, ``"gzip"`` or ``"deflate"``. Default: ``OTEL_EXPORTER_OTLP_COMPRESSION``.
        linger: seconds without progress after which it gives up when training has ended.
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
        self.compression = COMPRESSION.or_none("compression", compression)
        self.linger = check_seconds("linger", linger)
        require_opentelemetry()
        self._sender: Sender | None = None
        self._builder = SpanBuilder("")

    def description(self) -> dict[str, Any]:
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
        """The options without secrets, for messages and commands."""
        return {} if self.endpoint is None else {"endpoint": without_password(self.endpoint)}

    # At work

    def open(self, source: Source) -> None:
        """Prepare to send the spans of one process."""
        from stepwell.exporters.otlp.sender import Sender

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
        """Send spans that have ended with their events. Raise if the receiver does not accept them."""
        self._send(self._builder.take(records))

    def tick(self) -> None:
        """Send placeholders for spans that have been open for long.

        Called regularly, also without new records.
        """
        if self._sender is not None:
            self._send(self._builder.overdue(time.time_ns() - int(self.announce_after * 1e9)))

    def relabel(self, source: Source) -> None:
        """Use the new name and labels of the run from now on."""
        if self._sender is not None:
            self._sender.describe(resource_of(source))

    def close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def _send(self, spans: Sequence[OutSpan]) -> None:
        sender = self._sender
        if sender is None:
            raise RuntimeError("the exporter is closed: call open(source) first")
        sender.send(spans)
        self._builder.keep()
        if sender.rejected:
            warn_once(
                f"otlp rejected {sender.rejection}",
                "The OTLP receiver permanently rejected %d spans: %s",
                sender.rejected,
                sender.rejection or "no reason given",
            )

    # Compared by value, so that the same exporter is not added to a run twice

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OTLPExporter):
            return NotImplemented
        return self.description() == other.description()

    def __hash__(self) -> int:
        return hash((type(self), self.endpoint))

    def __repr__(self) -> str:
        # Without headers, which may contain secrets.
        where = "" if self.endpoint is None else repr(without_password(self.endpoint))
        return f"{type(self).__name__}({where})"


def trace_id(source: Source) -> int:
    """Return the trace id of one rank in one attempt of a run; sending the run again gives the same id."""
    return number(16, source.run, source.attempt, source.rank, source.started_ns)


def resource_of(source: Source) -> dict[str, Value]:
    """Return the resource attributes of a process, with the names of OpenTelemetry where it has any."""
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


def require_opentelemetry() -> None:
    """Raise StepwellError with the command to install OpenTelemetry if it is missing. Imports nothing."""
    spec = importlib.util.find_spec("opentelemetry")
    places = (spec.submodule_search_locations if spec is not None else None) or []
    needed = ("exporter/otlp/proto/http", "sdk/trace")
    if not all(any(Path(place, part).is_dir() for place in places) for part in needed):
        raise StepwellError("the OTLP exporter needs OpenTelemetry: pip install 'stepwell[otlp]'")


def check_endpoint(endpoint: Any) -> str | None:
    """Return the URL to post to; the standard path is added if it has none."""
    if endpoint is None:
        return None
    wanted = f"endpoint must be a URL such as {EXAMPLE!r}"
    if not isinstance(endpoint, str):
        raise StepwellError(f"{wanted}, got {endpoint!r}")
    try:
        parts = urlsplit(endpoint.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise StepwellError(f"{wanted}, got {endpoint!r} ({error})") from None
    if parts.scheme not in ("http", "https") or not host:
        raise StepwellError(f"{wanted}, got {endpoint!r}")
    return parts._replace(path=TRACES).geturl() if parts.path in ("", "/") else parts.geturl()


def check_headers(headers: Any) -> dict[str, str] | None:
    """Return the headers to send. No message shows a value, which may be a secret."""
    if headers is None:
        return None
    pairs = _split(headers) if isinstance(headers, str) else headers
    if not isinstance(pairs, Mapping):
        raise StepwellError(
            "headers must be a dict such as {'x-mlflow-experiment-id': '0'} or a text such as "
            f"'name=value,name=value', got a {type(headers).__name__}"
        )
    return {_name(name): _value(name, value) for name, value in pairs.items()}


def _split(text: str) -> dict[str, str]:
    """Parse ``name=value,name=value`` with percent-encoded values, as in OTEL_EXPORTER_OTLP_HEADERS."""
    pairs = {}
    for position, item in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        name, equals, value = item.partition("=")
        if not equals:
            raise StepwellError(
                f"headers must have the form 'name=value,name=value', but header {position} has no '='"
            )
        pairs[name.strip()] = unquote(value.strip())
    return pairs


def _name(name: Any) -> str:
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise StepwellError(
            f"names of HTTP headers must consist of letters, digits and '-', got {name!r}"
        )
    return name


def _value(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise StepwellError(f"header {name!r} must be a string, got a {type(value).__name__}")
    try:
        value.encode("latin-1")
    except UnicodeError:
        raise StepwellError(
            f"header {name!r} contains characters that HTTP does not allow"
        ) from None
    if re.search(r"[\r\n\0]|^\s|\s$", value):
        raise StepwellError(f"header {name!r} contains a line break, or spaces at its ends")
    return value


def check_seconds(name: str, value: Any, *, inclusive: bool = True) -> float:
    """Return a number of seconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and (value > 0 or (inclusive and value == 0)):
        return float(value)
    at_least = "0 or more" if inclusive else "more than 0"
    raise StepwellError(f"{name} must be a number of seconds, {at_least}, got {value!r}")
