"""The names of one-logger for what ``stepwell.training`` and ``stepwell.exporters`` have."""

from __future__ import annotations

from stepwell.exporters.file import FileExporter
from stepwell.telemetry import Attributes, Event, Span, timed_span
from stepwell.training import *  # noqa: F403
from stepwell.training import ApplicationConfig as OneLoggerConfig
from stepwell.training import InitializationAttributes as OneLoggerInitializationAttributes
from stepwell.training import __all__ as _training

__all__ = [
    *_training,
    "Attributes",
    "Event",
    "FileExporter",
    "OneLoggerConfig",
    "OneLoggerInitializationAttributes",
    "Span",
    "timed_span",
]
