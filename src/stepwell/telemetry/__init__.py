"""Telemetry: runs, and how a process comes to record into one.

Here live the Run object, its identity, ranks and launches, child processes and artifacts; spans, events and
attributes as objects; and the interface of exporters. Imports the journal; never a reader, a backend or a
training framework.
"""

from __future__ import annotations

from stepwell.telemetry.attributes import Attributes
from stepwell.telemetry.events import Event
from stepwell.telemetry.live import Span, timed_span
from stepwell.telemetry.span_recorder import SpanRecorder

__all__ = ["Attributes", "Event", "Span", "SpanRecorder", "timed_span"]
