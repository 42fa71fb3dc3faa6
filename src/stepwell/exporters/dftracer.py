"""The dftracer exporter: a ``.pfw`` trace that grows while the run goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepwell.exporters.dftracer_export import SUFFIXES, file_name
from stepwell.exporters.dftracer_export import export_dftracer as export_dftracer
from stepwell.exporters.dftracer_lines import DFTracerLines, check_dialect
from stepwell.exporters.trace_json import with_status
from stepwell.exporters.trace_live import LiveTrace
from stepwell.telemetry.exporter import EventRecord, Record, Source, SpanRecord

MAIN = "MainThread"


class DFTracerExporter(LiveTrace):
    """Writes spans as they end, a line each; ``trace.pfw`` stands for ``trace-<pid>-app.pfw``.

    Ranks other than 0 put their rank into the name. See ``export_dftracer`` for the dialects.
    """

    suffixes = SUFFIXES

    def __init__(
        self, file_path: str | os.PathLike[str] = "trace.pfw.gz", dialect: str = "new"
    ) -> None:
        super().__init__(file_path)
        self.dialect = check_dialect(dialect)

    def place(self, source: Source, number: int) -> Path:
        """The file of a process."""
        return file_name(self.file_path, source.rank, source.pid, "app", number)

    def begin(self, source: Source) -> str:
        """The host, the rank, and the event ``start``."""
        self._make = DFTracerLines(self.dialect, source.pid, source.host)
        self._levels: dict[int, int] = {}
        self._threads: dict[str, int] = {MAIN: source.pid}
        self._count = 0
        self._last = source.started_ns
        about = {"run": source.run, "attempt": source.attempt, "tool": "stepwell"}
        return _joined(self._make.head(source.rank, source.started_ns, about))

    def text_of(self, records: Sequence[Record]) -> str:
        """The lines of what ended."""
        return _joined(self._lines(records))

    def finish(self) -> str:
        """The event ``end``, and in the old dialect the closing bracket."""
        return _joined(self._make.tail(self._last, self._count))

    def _lines(self, records: Sequence[Record]) -> Iterator[str]:
        for record in records:
            tid = self._threads.get(record.thread)
            if tid is None:
                # Records do not tell the number that the system has for a thread.
                tid = self._threads[record.thread] = self._make.pid + len(self._threads)
                yield self._make.metadata("thread_name", tid, record.thread)
            if isinstance(record, EventRecord):
                self._count += 1
                self._last = max(self._last, record.time_ns)
                yield self._make.event(record.name, tid, record.time_ns, record.attributes)
                continue
            level = self._level(record)
            if record.type != "start":
                self._count += 1
                yield self._span(record, level, tid)

    def _level(self, span: SpanRecord) -> int:
        if span.type == "stop" and span.id in self._levels:
            return self._levels.pop(span.id)
        outer = -1 if span.parent is None else self._levels.get(span.parent, -1)
        if span.type == "start":
            self._levels[span.id] = outer + 1
        return outer + 1

    def _span(self, span: SpanRecord, level: int, tid: int) -> str:
        end = span.start_ns if span.end_ns is None else span.end_ns
        self._last = max(self._last, end)
        attributes = with_status(span.attributes, span.status)
        return self._make.span(
            span.id,
            span.parent,
            level,
            span.name,
            span.category,
            tid,
            span.start_ns,
            end,
            attributes,
        )


def _joined(lines: Sequence[str] | Iterator[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
