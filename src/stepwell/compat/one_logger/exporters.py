"""Exporters written for one-logger, and how they are fed from a run."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.compat.one_logger.spans import OneLoggerSpan, make_event, span_id
from stepwell.compat.one_logger.values import (
    ErrorEvent,
    ExportError,
    OneLoggerEvent,
    StandardEventName,
    StandardSpanName,
    TelemetryDataError,
    TracingTimestamp,
)
from stepwell.journal.errors import say, warn_once
from stepwell.journal.values import text_of
from stepwell.telemetry.exporter import EventRecord, Exporter, Record, Source, SpanRecord
from stepwell.telemetry.exporter_loading import Configured, find_class, load_exporters
from stepwell.vocabulary import RUNTIME

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FILES = tuple(f"one_logger_exporters_config.{suffix}" for suffix in ("yaml", "yml", "json"))
"""Where the original looks for exporters, in the working directory."""
FILE_VARIABLE = "ONE_LOGGER_EXPORTER_CONFIG_PATH"
GROUP = "nv_one_logger.exporter_configs"
"""Entry points of packages that bring exporters."""
THEIRS, OURS = "nv_one_logger.", "stepwell.compat.one_logger."
BEFORE = 10**12
"""Nanoseconds before the process began: what a span of it may have been backdated by."""
TRIES = 5
"""So often a record is given to an exporter that raises; then the next one is."""


class OneLoggerExporter(ABC):
    """An exporter with the interface of one-logger."""

    @abstractmethod
    def initialize(self) -> None:
        """Get ready."""

    @abstractmethod
    def export_start(self, span: OneLoggerSpan) -> None:
        """Take a span that has started."""

    @abstractmethod
    def export_stop(self, span: OneLoggerSpan) -> None:
        """Take a span that has ended."""

    @abstractmethod
    def export_event(self, event: OneLoggerEvent, span: OneLoggerSpan) -> None:
        """Take an event of a span."""

    @abstractmethod
    def export_error(self, event: ErrorEvent, span: OneLoggerSpan) -> None:
        """Take an error of a span."""

    @abstractmethod
    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Take a problem of the telemetry itself."""

    @abstractmethod
    def close(self) -> None:
        """Pass on what is left, and let go."""


# Those of stepwell are exporters too.
OneLoggerExporter.register(Exporter)


class BaseExporter(OneLoggerExporter):
    """An exporter that refuses to be used before ``initialize`` and after ``close``."""

    def __init__(self) -> None:
        self.ready = False
        self.closed = False

    def initialize(self) -> None:
        """Get ready."""
        self.ready, self.closed = True, False

    def export_start(self, span: OneLoggerSpan) -> None:
        """Take a span that has started."""
        self._check_state()

    def export_stop(self, span: OneLoggerSpan) -> None:
        """Take a span that has ended."""
        self._check_state()

    def export_event(self, event: OneLoggerEvent, span: OneLoggerSpan) -> None:
        """Take an event of a span."""
        self._check_state()

    def export_error(self, event: ErrorEvent, span: OneLoggerSpan) -> None:
        """Take an error of a span."""
        self._check_state()

    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Take a problem of the telemetry itself."""
        self._check_state()

    def close(self) -> None:
        """Let go."""
        self.ready, self.closed = False, True

    def _check_state(self) -> None:
        if not self.ready:
            when = "after close()" if self.closed else "before initialize()"
            raise ExportError(f"{type(self).__name__} is used {when}")


class BaseJsonExporter(BaseExporter):
    """Gives each record as a JSON object to ``_write``, with the fields of the original's files.

    A span that has nothing inside is one object, of the type ``complete``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begun: OneLoggerSpan | None = None
        self._count = 0

    @abstractmethod
    def _write(self, json_dict: dict[str, Any]) -> None:
        """Write one object."""

    def export_start(self, span: OneLoggerSpan) -> None:
        """Keep a span back, until it is clear whether something is inside it."""
        super().export_start(span)
        self._write_begun()
        self._begun = span

    def export_stop(self, span: OneLoggerSpan) -> None:
        """Write a span that has ended."""
        super().export_stop(span)
        if self._begun is span:
            self._begun = None
            self._write_span("complete", span, "start_event", "stop_event")
        else:
            self._write_begun()
            self._write_span("stop", span, "stop_event")

    def export_event(self, event: OneLoggerEvent, span: OneLoggerSpan) -> None:
        """Write an event."""
        super().export_event(event, span)
        self._write_event("event", event, span)

    def export_error(self, event: ErrorEvent, span: OneLoggerSpan) -> None:
        """Write an error."""
        super().export_error(event, span)
        self._write_event("application_error", event, span)

    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Write a problem of the telemetry itself."""
        super().export_telemetry_data_error(error)
        self._write_numbered({"type": "telemetry_data_error", "error": _content(error)})

    def close(self) -> None:
        """Write what was kept back."""
        self._write_begun()
        super().close()

    def _write_begun(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._write_span("start", begun, "start_event")

    def _write_span(self, kind: str, span: OneLoggerSpan, *events: str) -> None:
        line: dict[str, Any] = {"type": kind, "id": str(span.id), "name": span.name_str}
        if span.attributes:
            line["attributes"] = span.attributes.to_json()
        self._write_numbered({**line, **{name: _content(getattr(span, name)) for name in events}})

    def _write_event(self, kind: str, event: OneLoggerEvent, span: OneLoggerSpan) -> None:
        self._write_begun()
        self._write_numbered({"type": kind, "span_id": str(span.id), "event": _content(event)})

    def _write_numbered(self, line: dict[str, Any]) -> None:
        self._count += 1
        self._write({**line, "count": self._count, "pid": os.getpid()})


def _content(event: OneLoggerEvent) -> dict[str, Any]:
    return {"name": event.name_str, "attributes": event.attributes.to_json()}


class AdaptedExporter(Exporter):
    """Gives the records of a run to an exporter with the interface of one-logger.

    It works in a background thread, never in the one that trains. The exporter is closed when the
    application ends, and initialized again when another one starts.
    """

    def __init__(self, exporter: Any) -> None:
        self.exporter = exporter
        self.name = type(exporter).__name__
        self._spans: dict[int, OneLoggerSpan] = {}
        self._place = ("", "")
        self._begin = 0
        self._is_ready = False
        self._done = 0
        self._failures = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AdaptedExporter) and other.exporter is self.exporter

    def __hash__(self) -> int:
        return id(self.exporter)

    def open(self, source: Source) -> None:
        """Initialize the exporter."""
        self._place = (source.run, source.process)
        self._begin = source.started_ns - BEFORE
        self._spans = {}
        self._done = self._failures = 0
        self._initialize()

    def _initialize(self) -> None:
        self.exporter.initialize()
        self._is_ready = True

    def close(self) -> None:
        """Close the exporter, unless the end of the application has."""
        if self._is_ready:
            self._is_ready = False
            self.exporter.close()

    def export(self, records: Sequence[Record]) -> None:
        """Give these to the exporter, one by one; after a failure the rest of them comes again."""
        for number in range(self._done, len(records)):
            try:
                self._take(records[number])
            except Exception as error:
                self._failures += 1
                if self._failures < TRIES:
                    raise
                say(
                    "exporter %s did not take %s, and is given the next record: %s. The run folder "
                    "has every record.",
                    self.name,
                    records[number].name,
                    text_of(error),
                )
            self._failures = 0
            self._done = number + 1
        self._done = 0

    def _take(self, record: Record) -> None:
        if isinstance(record, SpanRecord) and record.category == RUNTIME:
            # A pause of the interpreter is no part of the application, and the original has none.
            return
        is_application = record.name == StandardSpanName.APPLICATION
        if not self._is_ready:
            if not (is_application and record.type == "start"):
                warn_once(
                    f"late {id(self)}",
                    "exporter %s was closed at the end of the application: what is recorded later "
                    "is only in the run folder",
                    self.name,
                )
                return
            self._initialize()
        if isinstance(record, EventRecord):
            self._take_event(record)
        elif record.type == "start":
            self._start(record)
        else:
            self._stop(record)
            if is_application:
                self.close()

    def _time(self, nanoseconds: int) -> TracingTimestamp:
        # Counted from about when the process began, which a float has room for to the nanosecond.
        return TracingTimestamp(nanoseconds / 1e9, (nanoseconds - self._begin) / 1e9)

    def _start(self, record: SpanRecord) -> OneLoggerSpan:
        parent = None if record.parent is None else self._spans.get(record.parent)
        start = OneLoggerEvent(StandardEventName.SPAN_START, self._time(record.start_ns))
        number = span_id(*self._place, record.id)
        span = OneLoggerSpan(number, record.name, start, parent, record.attributes)
        self.exporter.export_start(span)
        self._spans[record.id] = span
        return span

    def _stop(self, record: SpanRecord) -> None:
        span = self._spans.get(record.id) or self._start(record)
        before = span.attributes.to_json()
        span.add_attributes(
            {k: v for k, v in record.attributes.items() if k not in before or before[k] != v}
        )
        span.stop(stop_time=self._time(record.end_ns or record.start_ns))
        self.exporter.export_stop(span)
        del self._spans[record.id]

    def _take_event(self, record: EventRecord) -> None:
        values, time = record.attributes, self._time(record.time_ns)
        if record.name == StandardEventName.TELEMETRY_DATA_ERROR:
            kind = TelemetryDataError.ErrorType.INCOMPLETE_TELEMETRY_DATA
            message = str(values.get("error_message", ""))
            self.exporter.export_telemetry_data_error(
                TelemetryDataError(time, kind, message, values)
            )
            return
        span = self._span_of(record)
        if span is None:
            return
        if record.type == "attributes":
            span.add_attributes(values)
            return
        event = span.add_event(make_event(record.name, values, time))
        try:
            if isinstance(event, ErrorEvent):
                self.exporter.export_error(event, span)
            else:
                self.exporter.export_event(event, span)
        except Exception:
            # It comes again.
            span.events.remove(event)
            raise

    def _span_of(self, record: EventRecord) -> OneLoggerSpan | None:
        """The span of an event; where that has ended or there is none, the one that started last."""
        span = None if record.span is None else self._spans.get(record.span)
        if span is None and record.type != "attributes":
            return next(reversed(self._spans.values()), None)
        return span


def adapted(exporter: Any) -> Any:
    """Return an exporter that a run can be given: the same one if it can take records."""
    if callable(getattr(exporter, "export_start", None)) and not isinstance(exporter, type):
        return (
            exporter if callable(getattr(exporter, "export", None)) else AdaptedExporter(exporter)
        )
    return exporter


# From configuration files


@dataclass
class ExporterConfig:
    """An exporter by its class and options."""

    class_name: str
    config: dict[str, Any] = field(default_factory=dict)
    enabled: bool = True


def configured_exporters(
    exporters_config: Iterable[Any] | Mapping[str, Any] | None,
    config_file_path: str | os.PathLike[str] | None = None,
) -> list[Configured]:
    """Return the exporters of a list, of a file, and of installed packages.

    Without a file, the variable and the file names of the original are looked for. What is wrong in
    one that was not asked for by name is a warning.
    """
    from importlib.metadata import entry_points

    made: list[Configured] = []
    if exporters_config is not None:
        given = exporters_config
        listed = given.get("exporters") or () if isinstance(given, Mapping) else given
        made += load_exporters([_entry(entry) for entry in listed], find_adapted)
    if config_file_path is not None:
        made += load_exporters(config_file_path, find_adapted)
    else:
        made += _load_guarded(_config_file)
    for point in entry_points(group=GROUP):
        made += _load_guarded(partial(_default_entries, point))
    return made


def _default_entries(point: EntryPoint) -> list[Any]:
    return [_entry(point.load().get_default_config())]


def _load_guarded(find: Callable[[], Any]) -> list[Configured]:
    try:
        config = find()
        return [] if config is None else load_exporters(config, find_adapted)
    except Exception as error:  # another package may fail in any way
        say("%s. Training goes on without this exporter.", text_of(error))
        return []


def find_adapted(name: str, where: str) -> Callable[..., Any]:
    """Return what makes exporters of this class; one of the original is that of the same path here."""
    made_by = find_class(OURS + name[len(THEIRS) :] if name.startswith(THEIRS) else name, where)

    @wraps(made_by)
    def make(**options: Any) -> Any:
        return adapted(made_by(**options))

    return make


def _entry(entry: Any) -> Any:
    if is_dataclass(entry) and not isinstance(entry, type):
        return asdict(entry)
    return adapted(entry)


def _config_file() -> Path | None:
    given = os.environ.get(FILE_VARIABLE)
    if given:
        return Path(given)
    return next((path for path in map(Path, FILES) if path.is_file()), None)
