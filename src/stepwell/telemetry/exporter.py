"""The base class of exporters, which send the records of a run elsewhere, and the filter of spans.

class MyExporter(Exporter):
    def export(self, records):
        for record in records:
            send_somewhere(record.type, record.name, record.attributes)

run.add_exporter(MyExporter())
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from stepwell._core.errors import StepwellError
from stepwell._core.files import read_json
from stepwell.follower.records import EventRecord as EventRecord
from stepwell.follower.records import SpanRecord as SpanRecord
from stepwell.telemetry.run_document import RUN
from stepwell.vocabulary import SHORT_SPANS

Record: TypeAlias = SpanRecord | EventRecord
"""A record for exporters: a span that began or ended, or an event."""

INTERNAL_SPANS = ("gc", "diagnostics")
"""Pauses of Python's garbage collection, and the time of diagnostics: not part of the job."""


@dataclass(frozen=True, slots=True)
class Source:
    """The process that recorded the records: one process of one attempt of a run.

    ``application`` is the name of the run, ``labels`` are the labels of the run, and ``started_ns`` is when
    the process began to record, in nanoseconds since the epoch.
    """

    run: str
    attempt: int
    rank: int
    world_size: int
    process: str
    host: str
    pid: int
    application: str
    labels: dict[str, Any] = field(default_factory=dict)
    started_ns: int = 0


def read_source(folder: Path, document: Mapping[str, Any]) -> Source:
    """Return the source of the records in a process folder; ``document`` is its process.json.

    Name and labels of the run are in run.json, which another rank may not have written yet.
    """
    run = read_json(folder.parent / RUN) or {}
    labels = document.get("labels") or run.get("labels")
    return Source(
        run=str(document.get("run") or folder.parent.name),
        attempt=int(document.get("attempt") or 0),
        rank=int(document.get("rank") or 0),
        world_size=int(document.get("world_size") or 1),
        process=str(document.get("process") or folder.name),
        host=str(document.get("host") or ""),
        pid=int(document.get("pid") or 0),
        application=str(document.get("application") or run.get("name") or folder.parent.name),
        labels=dict(labels) if isinstance(labels, Mapping) else {},
        started_ns=int(document.get("started") or 0),
    )


class Exporter:
    """Base class of exporters; only ``export`` is required.

    All methods are called from one background thread or process, never from the training thread, so they
    may be slow. A call that raises is repeated later, and disturbs neither training nor other exporters.
    Import modules at the top of the file, not inside these methods: a process forked during an import could
    hang.
    """

    out_of_process: ClassVar[bool] = False
    """Whether it runs in a sidecar process, where it is created from its ``description``."""

    reads: ClassVar[str] = "spans"
    """The records it reads: "spans", or "log" for ``stepwell.loggers.delivery.backend.Backend``."""

    every_span: ClassVar[bool] = False
    """Whether it gets the short spans of every iteration too, unless a filter is given."""

    def open(self, source: Source) -> None:
        """Called before the first record of each run it is added to."""

    def export(self, records: Sequence[Record]) -> None:
        """Export records, at least one, in the order of their times.

        If this raises, the same batch is passed again later, until it succeeds.
        """
        raise NotImplementedError(f"{type(self).__name__} must define export(records)")

    def flush(self) -> None:
        """Send buffered records; called by ``run.flush()`` and before ``close``."""

    def close(self) -> None:
        """Called after the last record of a run."""

    def description(self) -> dict[str, Any]:
        """Return how to create the same exporter in another process, if it is ``out_of_process``.

        ``{"class": "package.module.Class", "options": {…}}`` with options as plain JSON.
        """
        raise NotImplementedError(f"{type(self).__name__} must define description()")


def check_exporter(exporter: Any) -> None:
    """Raise StepwellError unless this is an exporter."""
    if isinstance(exporter, type):
        raise StepwellError(
            f"an exporter must be an instance, got the class {exporter.__name__}: "
            f"write {exporter.__name__}(…)"
        )
    if not callable(getattr(exporter, "export", None)) and not reads_log(exporter):
        raise StepwellError(
            "an exporter must have a method export(records), as subclasses of "
            f"stepwell.telemetry.exporter.Exporter have, got {exporter!r}"
        )


def reads_log(exporter: Any) -> bool:
    """Return whether an exporter, or its class, is a backend, which reads the log instead of spans."""
    return getattr(exporter, "reads", None) == "log"


class ExportMode(enum.Enum):
    """Whether a list of span names selects the spans to export, or those to leave out.

    The names and values of nv-one-logger (``WHITELIST_SPANS``, ``"whitelist_spans"``, …) are accepted too.
    """

    ALL_SPANS = "all_spans"
    ALLOW_LIST = "allow_list"
    DENY_LIST = "deny_list"

    EXPORT_ALL_SPANS = ALL_SPANS
    WHITELIST_SPANS = ALLOW_LIST
    BLACKLIST_SPANS = DENY_LIST

    @classmethod
    def _missing_(cls, value: object) -> ExportMode | None:
        return cls.__members__.get(value.strip().upper()) if isinstance(value, str) else None


ExportCustomizationMode = ExportMode
"""The name in nv-one-logger."""


class ExportFilter:
    """Selects the spans to export: all, only those named, or all but those named.

    The journal always contains all spans. Without arguments: all but the short spans of every iteration
    (``SHORT_SPANS``), pauses of the garbage collection and diagnostics. Children of a span that is left out
    get the nearest exported ancestor as their parent.
    """

    __slots__ = ("mode", "names")

    def __init__(
        self,
        mode: ExportMode | str | None = None,
        span_name_filter: Iterable[str | enum.Enum] | None = None,
    ) -> None:
        if mode is None and span_name_filter is None:
            mode, span_name_filter = ExportMode.DENY_LIST, (*SHORT_SPANS, *INTERNAL_SPANS)
        self.mode = _mode(mode)
        self.names = _names(self.mode, span_name_filter)

    @classmethod
    def default_for(cls, exporter: Any) -> ExportFilter:
        """Return the filter of an exporter for which none is given."""
        if getattr(exporter, "every_span", False):
            return cls(ExportMode.ALL_SPANS)
        return cls()

    def keeps(self, name: str) -> bool:
        """Return whether spans of this name are exported."""
        if self.mode is ExportMode.ALL_SPANS:
            return True
        return (name in self.names) is (self.mode is ExportMode.ALLOW_LIST)

    def to_json(self) -> dict[str, Any]:
        """Return the filter as plain values, for ``from_json``."""
        return {"mode": self.mode.value, "span_name_filter": sorted(self.names) or None}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ExportFilter:
        """Return the filter from the values of ``to_json``."""
        return cls(values.get("mode"), values.get("span_name_filter"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExportFilter):
            return NotImplemented
        return (self.mode, self.names) == (other.mode, other.names)

    def __hash__(self) -> int:
        return hash((self.mode, self.names))

    def __repr__(self) -> str:
        return f"ExportFilter({self.mode.name}, {sorted(self.names)})"


def _mode(mode: Any) -> ExportMode:
    try:
        return ExportMode(mode)
    except ValueError:
        names = ", ".join(str(each) for each in ExportMode)
        raise StepwellError(f"mode must be one of {names}, got {mode!r}") from None


def _names(mode: ExportMode, given: Any) -> frozenset[str]:
    if mode is ExportMode.ALL_SPANS:
        if given is not None:
            raise StepwellError(
                f"span_name_filter must be left out with ALL_SPANS, got {given!r}. "
                "Leave it out, or choose ALLOW_LIST or DENY_LIST"
            )
        return frozenset()
    names = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not names:
        raise StepwellError(
            f"span_name_filter must be a list of span names with {mode.name}, such as "
            f"['validation_loop'], got {given!r}"
        )
    return frozenset(_name(name) for name in names)


def _name(name: Any) -> str:
    text = name.value if isinstance(name, enum.Enum) else name
    if not isinstance(text, str):
        raise StepwellError(
            f"span_name_filter must contain strings or members of an enum, got {name!r}"
        )
    return text
