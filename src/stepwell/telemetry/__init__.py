"""Telemetry: runs, and how a process comes to record into one.

Here live the Run object, its identity, ranks and launches, child processes and artifacts; spans, events and
attributes as objects; and the interface of exporters. Imports the journal; never a reader, a backend or a
training framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.telemetry.attributes import Attributes
    from stepwell.telemetry.events import Event
    from stepwell.telemetry.live import Span, timed_span
    from stepwell.telemetry.span_recorder import SpanRecorder

__all__ = ["Attributes", "Event", "Span", "SpanRecorder", "timed_span"]

_HOMES = {
    "Attributes": "attributes",
    "Event": "events",
    "Span": "live",
    "SpanRecorder": "span_recorder",
    "timed_span": "live",
}


def __getattr__(name: str) -> Any:
    """Whoever only records needs none of them: each is imported when it is first asked for."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
