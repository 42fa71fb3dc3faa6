"""What an OTLP exporter may be told, checked where a person can still mend it."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from stepwell.journal.errors import StepwellError

TRACES = "/v1/traces"
EXAMPLE = "http://localhost:4318/v1/traces"
COMPRESSIONS = ("none", "gzip", "deflate")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def require_opentelemetry() -> None:
    """Say how to install it when it is missing. Imports nothing: training need not pay for it."""
    spec = importlib.util.find_spec("opentelemetry")
    places = (spec.submodule_search_locations if spec is not None else None) or []
    needed = ("exporter/otlp/proto/http", "sdk/trace")
    if not all(any(Path(place, part).is_dir() for place in places) for part in needed):
        raise StepwellError(
            "sending OTLP needs the OpenTelemetry exporter: pip install 'stepwell[otlp]'"
        )


def check_endpoint(endpoint: Any) -> str | None:
    """The address to post to; a bare host gets the standard path."""
    if endpoint is None:
        return None
    wrong = f"write the address to post traces to, such as {EXAMPLE!r}"
    if not isinstance(endpoint, str):
        raise StepwellError(f"endpoint is {endpoint!r}: {wrong}")
    try:
        parts = urlsplit(endpoint.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise StepwellError(f"endpoint is {endpoint!r} ({error}): {wrong}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise StepwellError(f"endpoint is {endpoint!r}: {wrong}")
    return parts._replace(path=TRACES).geturl() if parts.path in ("", "/") else parts.geturl()


def without_password(endpoint: str) -> str:
    """An address as it may be shown: without the name, password and query that may be in it."""
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def check_headers(headers: Any) -> dict[str, str] | None:
    """The headers to send; no message shows a value, which may be a secret."""
    if headers is None:
        return None
    pairs = _split(headers) if isinstance(headers, str) else headers
    if not isinstance(pairs, Mapping):
        raise StepwellError(
            f"headers is a {type(headers).__name__}: write a dict, such as "
            "{'x-mlflow-experiment-id': '0'}, or a text, such as 'name=value,name=value'"
        )
    return {_name(name): _value(name, value) for name, value in pairs.items()}


def _split(text: str) -> dict[str, str]:
    """As in OTEL_EXPORTER_OTLP_HEADERS: ``name=value,name=value``, values percent-encoded."""
    pairs = {}
    for number, item in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        name, equals, value = item.partition("=")
        if not equals:
            raise StepwellError(
                f"header {number} has no '=': write headers as 'name=value,name=value'"
            )
        pairs[name.strip()] = unquote(value.strip())
    return pairs


def _name(name: Any) -> str:
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise StepwellError(f"{name!r} is no name of an HTTP header: write letters, digits and '-'")
    return name


def _value(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise StepwellError(f"the header {name!r} is a {type(value).__name__}: write a string")
    try:
        value.encode("latin-1")
    except UnicodeError:
        raise StepwellError(f"the header {name!r} has letters that HTTP cannot carry") from None
    if re.search(r"[\r\n\0]|^\s|\s$", value):
        raise StepwellError(f"the header {name!r} has a line break, or blanks at its ends")
    return value


def check_seconds(name: str, value: Any, *, least: float = 0.0, inclusive: bool = True) -> float:
    """A number of seconds."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and math.isfinite(value) and (value > least or (inclusive and value == least)):
        return float(value)
    at_least = f"{least:g} or more" if inclusive else f"more than {least:g}"
    raise StepwellError(f"{name} is {value!r}: write a number of seconds, {at_least}")


def check_compression(value: Any) -> str | None:
    """A way to compress what is sent, None for what the environment says."""
    if value is None or value in COMPRESSIONS:
        return None if value is None else str(value)
    raise StepwellError(f"compression is {value!r}: write one of {', '.join(COMPRESSIONS)}")
