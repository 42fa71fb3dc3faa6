"""Exporters: they carry the records of a run to a file, to logging, to the terminal, to a collector.

Each one is a reader of the journal with a background thread or process of its own. Imports telemetry;
knows nothing of training, and no exporter knows another.
"""

from __future__ import annotations

from stepwell.exporters.chrome import ChromeExporter, export_chrome
from stepwell.exporters.console import ConsoleExporter
from stepwell.exporters.dftracer import DFTracerExporter, export_dftracer
from stepwell.exporters.file import FileExporter
from stepwell.exporters.otlp import OTLPExporter
from stepwell.exporters.python_logging import LoggingExporter
from stepwell.telemetry.export_filter import ExportCustomizationMode, ExportFilter
from stepwell.telemetry.exporter import EventRecord, Exporter, Record, Source, SpanRecord

__all__ = [
    "ChromeExporter",
    "ConsoleExporter",
    "DFTracerExporter",
    "EventRecord",
    "ExportCustomizationMode",
    "ExportFilter",
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
