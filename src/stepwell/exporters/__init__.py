"""Exporters: write the spans and events of a run to a file, to logging, to the terminal or to a collector.

Each exporter reads the journal in a background thread or process. Imports telemetry, and reading inside
functions; no exporter imports another.
"""

from __future__ import annotations

from stepwell.exporters.chrome import ChromeExporter, export_chrome
from stepwell.exporters.console import ConsoleExporter
from stepwell.exporters.dftracer import DFTracerExporter, export_dftracer
from stepwell.exporters.file import FileExporter
from stepwell.exporters.otlp import OTLPExporter
from stepwell.exporters.python_logging import LoggingExporter
from stepwell.telemetry.exporter import (
    EventRecord,
    ExportCustomizationMode,
    Exporter,
    ExportFilter,
    ExportMode,
    Record,
    Source,
    SpanRecord,
)
from stepwell.vocabulary import SHORT_SPANS

__all__ = [
    "SHORT_SPANS",
    "ChromeExporter",
    "ConsoleExporter",
    "DFTracerExporter",
    "EventRecord",
    "ExportCustomizationMode",
    "ExportFilter",
    "ExportMode",
    "Exporter",
    "FileExporter",
    "LoggingExporter",
    "OTLPExporter",
    "Record",
    "Source",
    "SpanRecord",
    "export_chrome",
    "export_dftracer",
]
