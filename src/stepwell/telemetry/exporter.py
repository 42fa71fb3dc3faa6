"""Exporters: what carries the records of a run out of it. This is the class to subclass.

class MyExporter(Exporter):
    def export(self, records):
        for record in records:
            send_somewhere(record.type, record.name, record.attributes)

run.add_exporter(MyExporter())
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from stepwell.journal.document import read_json
from stepwell.journal.errors import StepwellError
from stepwell.journal.records import EventRecord as EventRecord
from stepwell.journal.records import SpanRecord as SpanRecord
from stepwell.telemetry.run_document import RUN

Record: TypeAlias = SpanRecord | EventRecord
"""What exporters are given: a span that began or ended, or an event."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from: one process of one attempt of a run.

    ``application`` is the name of the run, ``labels`` are what the run was labelled with, and
    ``started_ns`` is when the process began to record (nanoseconds since the epoch).
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

    def to_json(self) -> dict[str, Any]:
        """The same as plain values; ``Source(**values)`` gives it back."""
        return asdict(self)


def source_of(folder: Path, about: Mapping[str, Any]) -> Source:
    """Whose records are in a process folder. ``about`` is its process.json.

    The name and the labels of the run are in run.json, which another rank may not have written yet.
    """
    run = read_json(folder.parent / RUN) or {}
    labels = about.get("labels") or run.get("labels")
    return Source(
        run=str(about.get("run") or folder.parent.name),
        attempt=int(about.get("attempt") or 0),
        rank=int(about.get("rank") or 0),
        world_size=int(about.get("world_size") or 1),
        process=str(about.get("process") or folder.name),
        host=str(about.get("host") or ""),
        pid=int(about.get("pid") or 0),
        application=str(about.get("application") or run.get("name") or folder.parent.name),
        labels=dict(labels) if isinstance(labels, Mapping) else {},
        started_ns=int(about.get("started") or 0),
    )


class Exporter:
    """Base class of all exporters; only ``export`` has to be written.

    Every method is called from one background thread (or process), never from the training thread,
    so it may be slow. What raises is tried again later; it disturbs neither training nor other
    exporters. Import what is needed at the top of the module, not inside these methods: a process
    that is forked in the midst of an import could hang.
    """

    out_of_process: ClassVar[bool] = False
    """Whether it runs in a process of its own, made anew there from what ``description`` says."""

    reads: ClassVar[str] = "spans"
    """What it is fed with. Those that read the ``log`` are ``stepwell.loggers.delivery.backend.Backend``."""

    every_span: ClassVar[bool] = False
    """Whether it gets the short spans of every iteration too, where no filter says otherwise."""

    def open(self, source: Source) -> None:
        """Called before the first record, and again for the next run that it is added to."""

    def export(self, records: Sequence[Record]) -> None:
        """Take these records, in the order of their times; there is at least one.

        To raise is to say that they were not taken: the same batch comes again, until it was.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method export(records)")

    def flush(self) -> None:
        """Pass on what is still held back; called by ``run.flush()`` and before ``close``."""

    def close(self) -> None:
        """Called after the last record of a run."""

    def description(self) -> dict[str, Any]:
        """How to make the same exporter in another process, for those with ``out_of_process``.

        ``{"class": "package.module.Class", "options": {…}}``, the options being plain JSON.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method description()")


def check_exporter(exporter: Any) -> None:
    """Refuse what is no exporter."""
    if isinstance(exporter, type):
        raise StepwellError(
            f"{exporter.__name__} is a class: write {exporter.__name__}(…) to make an exporter of it"
        )
    if not callable(getattr(exporter, "export", None)) and not reads_log(exporter):
        raise StepwellError(
            f"{exporter!r} is no exporter: it needs a method export(records), such as a subclass of "
            "stepwell.telemetry.exporter.Exporter has"
        )


def reads_log(exporter: Any) -> bool:
    """Whether this, an exporter or its class, is a backend: fed with the log in place of spans."""
    return getattr(exporter, "reads", None) == "log"
