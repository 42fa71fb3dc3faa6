"""Telemetry: runs, and the processes that record into them.

Contains the Run object, identity, ranks and launches, child processes and artifacts; spans, events and
attributes as objects; and the interface of exporters. Imports the journal; never reading, a backend or a
training framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.telemetry.events import Attributes, Event
    from stepwell.telemetry.span_handle import Span, timed_span
    from stepwell.telemetry.span_recorder import SpanRecorder

VERSION = "0.1.0"

__all__ = ["Attributes", "Event", "Span", "SpanRecorder", "timed_span"]

_HOMES = {
    "Attributes": "events",
    "Event": "events",
    "Span": "span_handle",
    "SpanRecorder": "span_recorder",
    "timed_span": "span_handle",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a process that only records needs none of them."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
