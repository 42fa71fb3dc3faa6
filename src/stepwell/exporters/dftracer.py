"""dftracer traces (``.pfw``): while a run records, or from a recorded run.

The format has two dialects. ``old`` (dftracer up to 2.0) has brackets around the lines, ``"ph":"X"``, and
in ``args`` the id of the parent (``p_idx``) and the depth (``level``). ``new`` (from 2.2 on) has no
brackets, numbers for ``ph``, and the layer as ``type``. In both, a line is one JSON object without a comma
after it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell._core.checks import one_of
from stepwell.exporters.trace.fields import (
    category_of,
    json_members,
    parse_attributes,
    quoted,
    with_status,
)
from stepwell.exporters.trace.file import LiveTrace, replaced_text_file
from stepwell.exporters.trace.run import (
    ProcessTrace,
    Written,
    check_not_empty,
    in_batches,
    open_recorded,
    process_labels,
    process_traces,
    select_ranks,
)
from stepwell.telemetry.events import METADATA
from stepwell.telemetry.exporter import EventRecord, Record, Source, SpanRecord

if TYPE_CHECKING:
    from stepwell.reading import RecordedRun

MAIN = "MainThread"

DIALECT = one_of("new", "old")
PHASES = {"X": 1, "C": 2, "M": 4}
OURS, PYTHON = 1, 6
"""Layers: the tracer, and Python code."""
TRACER = "dftracer"
OTHER = "other"
"""The category of spans without one, as in the `ai` tree."""
START_ID = 1
FIRST_ID = 2
EVENT_IDS = 1 << 52
"""First id of events and counter values. The ids of spans are smaller."""
TOP_LEVEL = 2
"""The level of root spans: one below the ``start`` event, which has level 1."""
RESERVED = ("hhash", "p_idx", "level")
SUFFIXES = (".pfw.gz", ".pfw")


class DFTracerExporter(LiveTrace):
    """Write spans to a dftracer trace as they end; ``trace.pfw`` becomes ``trace-<pid>-app.pfw``.

    Ranks other than 0 add their rank to the file name. See ``export_dftracer`` for the dialects.
    """

    suffixes = SUFFIXES

    def __init__(
        self, file_path: str | os.PathLike[str] = "trace.pfw.gz", dialect: str = "new"
    ) -> None:
        super().__init__(file_path)
        self.dialect = DIALECT.check("dialect", dialect)

    def file_of(self, source: Source, number: int) -> Path:
        return file_name(self.file_path, source.rank, source.pid, "app", number)

    def begin(self, source: Source) -> str:
        """Return the host, the rank and the event ``start``."""
        self._make = DFTracerLines(self.dialect, source.pid, source.host)
        self._levels: dict[int, int] = {}
        self._threads: dict[str, int] = {MAIN: source.pid}
        self._count = 0
        self._last = source.started_ns
        info = {"run": source.run, "attempt": source.attempt, "tool": "stepwell"}
        return _joined(self._make.head(source.rank, source.started_ns, info))

    def text_of(self, records: Sequence[Record]) -> str:
        """Return a line for each span that ended and each event."""
        return _joined(self._lines(records))

    def finish(self) -> str:
        """Return the event ``end``, and the closing bracket in the old dialect."""
        return _joined(self._make.tail(self._last, self._count))

    def _lines(self, records: Sequence[Record]) -> Iterator[str]:
        for record in records:
            tid = self._threads.get(record.thread)
            if tid is None:
                # Records do not contain the thread ids of the operating system.
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


class DFTracerLines:
    """Formats the lines of one process."""

    def __init__(self, dialect: str, pid: int, host: str) -> None:
        self.is_old = DIALECT.check("dialect", dialect) == "old"
        self.pid = pid
        self.host = host
        self.hash = hashlib.md5(host.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
        self.hash = self.hash[:16]
        self._extra = 0

    def head(self, rank: int, start_ns: int, info: dict[str, Any]) -> list[str]:
        """Return the first lines: the host, the rank and the event ``start``."""
        lines = ["["] if self.is_old else []
        lines.append(self.metadata("HH", self.pid, self.host, self.hash))
        lines.append(self.metadata("CM", self.pid, "time_metric", "US"))
        lines.append(self.metadata("PR", self.pid, "rank", str(rank)))
        lines.append(self.metadata("process_name", self.pid, f"Rank {rank}"))
        args = self._args(-1, 1, info)
        lines.append(self._event(START_ID, "start", TRACER, OURS, self.pid, start_ns, 0, args))
        return lines

    def tail(self, end_ns: int, count: int) -> list[str]:
        """Return the last lines of a complete trace."""
        args = self._args(START_ID, TOP_LEVEL, {"num_events": count})
        number = self._next_id()
        line = self._event(number, "end", TRACER, OURS, self.pid, end_ns, end_ns, args)
        return [line, "]"] if self.is_old else [line]

    def span(
        self,
        id: int,
        parent: int | None,
        level: int,
        name: str,
        category: str | None,
        tid: int,
        start_ns: int,
        end_ns: int,
        attributes: dict[str, Any],
    ) -> str:
        """Return the line of a span; ``level`` is 0 for root spans."""
        above = START_ID if parent is None else parent + FIRST_ID
        args = self._args(above, level + TOP_LEVEL, attributes)
        cat = category_of(name, category) or OTHER
        return self._event(id + FIRST_ID, name, cat, PYTHON, tid, start_ns, end_ns, args)

    def event(self, name: str, tid: int, time_ns: int, attributes: dict[str, Any]) -> str:
        """Return the line of an event: a metadata record if it is one, or an event without duration."""
        value = metadata_value(name, attributes, time_ns)
        if value is not None:
            return self.metadata("CM", tid, name, value)
        args = self._args(START_ID, TOP_LEVEL, attributes)
        number = self._next_id()
        return self._event(number, name, "event", PYTHON, tid, time_ns, time_ns, args)

    def value(self, name: str, time_ns: int, value: float) -> str:
        """Return the line of a counter value."""
        args = self._args(START_ID, TOP_LEVEL, {"value": value})
        text = f'{{"id":{self._next_id()},"name":{quoted(name)},"cat":"metric",'
        text += self._layer(PYTHON) + f'"pid":{self.pid},"tid":{self.pid},"ts":{time_ns // 1000},'
        return f'{text}{self._phase("C")},"args":{{{args}}}}}'

    def metadata(self, kind: str, tid: int, name: str, value: str | None = None) -> str:
        """Return the line of a metadata record."""
        args = {"hhash": self.hash, "name": name, **({} if value is None else {"value": value})}
        number = '"id":1,' if self.is_old else ""
        text = f'{{{number}"name":"{kind}","cat":"{TRACER}",{self._layer(OURS)}'
        return f'{text}"pid":{self.pid},"tid":{tid},{self._phase("M")},"args":{{{json_members(args)}}}}}'

    def _event(
        self, id: int, name: str, cat: str, layer: int, tid: int, start: int, end: int, args: str
    ) -> str:
        # Both ends are rounded down, so that nested events stay nested.
        begin, duration = start // 1000, max(end // 1000 - start // 1000, 0)
        text = f'{{"id":{id},"name":{quoted(name)},"cat":{quoted(cat)},{self._layer(layer)}'
        text += f'"pid":{self.pid},"tid":{tid},"ts":{begin},"dur":{duration},'
        return f'{text}{self._phase("X")},"args":{{{args}}}}}'

    def _args(self, parent: int, level: int, attributes: dict[str, Any]) -> str:
        args: dict[str, Any] = {"hhash": self.hash}
        if self.is_old:
            args |= {"p_idx": parent, "level": level}
        nonfinite = attributes.get("nonfinite")
        words = nonfinite if isinstance(nonfinite, dict) else {}
        for key, value in attributes.items():
            if key == "nonfinite" and words:
                continue
            name = f"args.{key}" if key in RESERVED else key
            args[name] = words.get(key, "None") if value is None else _plain(value)
        return json_members(args)

    def _layer(self, layer: int) -> str:
        return "" if self.is_old else f'"type":{layer},'

    def _phase(self, phase: str) -> str:
        return f'"ph":"{phase}"' if self.is_old else f'"ph":{PHASES[phase]}'

    def _next_id(self) -> int:
        self._extra += 1
        return EVENT_IDS + self._extra


def metadata_value(name: str, attributes: dict[str, Any], time_ns: int) -> str | None:
    """Return the value of an event that becomes a metadata record, None for other events.

    These are pairs of texts, and the events of ``start(metadata=True)`` and ``stop(metadata=True)`` of a
    node.
    """
    if attributes.get("category") == METADATA:
        return str(attributes.get("value"))
    if name.endswith((".start", ".end")) and "category" in attributes:
        return str(time_ns // 1000)
    return None


def _plain(value: Any) -> Any:
    """Return a value as a number or a text, the only types in these traces."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, int | float | str):
        return value
    return json.dumps(value)


def export_dftracer(
    run: RecordedRun | str | os.PathLike[str],
    path: str | os.PathLike[str],
    steps: tuple[int, int] | None = None,
    ranks: Iterable[int] | None = None,
    dialect: str = "new",
) -> Written:
    """Write a run as dftracer traces, one per process: ``trace.pfw.gz`` becomes ``trace-<pid>-app.pfw.gz``.

    Args:
        run: a run or its folder.
        path: the start of the file names. The files are compressed if it ends in ``.gz``.
        steps: the first step to write and the one after the last. Default: all.
        ranks: the ranks to write. Default: all.
        dialect: "new" as in dftracer 2.2, or "old" with brackets, ``p_idx`` and ``level``.
    """
    recorded = open_recorded(run)
    DIALECT.check("dialect", dialect)
    ranks = select_ranks(recorded, ranks)
    done = Written([], 0, 0, 0)
    labels = process_labels(recorded)
    names = _names(Path(path), [label.document for label in labels.values()])
    for trace in process_traces(recorded, labels, steps, ranks):
        target = names[trace.tables.process.name]
        writer = _DFTracerWriter(trace, dialect)
        try:
            with replaced_text_file(target) as file:
                for lines in writer.lines():
                    file.write("\n".join(lines) + "\n" if lines else "")
                if steps is not None and not writer.count:
                    # An existing file is kept.
                    raise _Nothing
        except _Nothing:
            continue
        done = Written(
            [*done.files, target],
            done.spans + writer.spans,
            done.events + writer.events,
            done.metrics + writer.metrics,
        )
    check_not_empty(done.spans, steps)
    return done


def file_name(path: Path, rank: int, pid: int, kind: str = "app", number: int = 1) -> Path:
    """Return the file of one process: ``trace-123-app.pfw.gz``, ``trace.rank-2-77-fork.pfw.gz``."""
    suffix = next((s for s in SUFFIXES if path.name.endswith(s)), "")
    prefix = path.name[: len(path.name) - len(suffix)]
    if rank:
        prefix += f".rank-{rank}"
    again = "" if number == 1 else f"-{number}"
    return path.with_name(f"{prefix}-{pid}{again}-{kind}{suffix or '.pfw'}")


def _names(path: Path, documents: list[dict[str, Any]]) -> dict[str, Path]:
    """Return a file for each process. Processes in different containers may have the same pid."""
    names: dict[str, Path] = {}
    for document in documents:
        kind = "fork" if document["role"] == "worker" else "app"
        number = 1
        while (
            name := file_name(path, document["rank"], document["pid"], kind, number)
        ) in names.values():
            number += 1
        names[document["process"]] = name
    return names


class _Nothing(Exception):
    """A process recorded nothing in the window."""


class _DFTracerWriter:
    """Formats the lines of one process, and counts spans, events and metrics."""

    def __init__(self, trace: ProcessTrace, dialect: str) -> None:
        self.spans = self.events = self.metrics = 0
        self._trace = trace
        document = trace.label.document
        self._make = DFTracerLines(dialect, document["pid"], document["host"])
        self._tids = trace.native_threads()

    @property
    def count(self) -> int:
        """Number of records formatted so far."""
        return self.spans + self.events + self.metrics

    def lines(self) -> Iterator[list[str]]:
        """Yield all lines, in batches."""
        document = self._trace.label.document
        info = {"run": self._trace.tables.run, "attempt": document["attempt"], "tool": "stepwell"}
        yield self._make.head(document["rank"], document["started"] or 0, info)
        for lane, name in self._trace.threads.items():
            yield [self._make.metadata("thread_name", self._tid(lane), name)]
        last = self._trace.last_seen_ns()
        for lane, rows in self._trace.spans(depths=self._make.is_old):
            self.spans += len(rows)
            yield [self._span(row, self._tid(lane), last) for row in rows]
        yield from in_batches(chain(self._metrics(), self._events()))
        yield self._make.tail(last, self.count)

    def _span(self, row: Any, tid: int, last: int) -> str:
        id, parent, start, duration, status, name, category, step, epoch, text = row[:10]
        attributes = with_status(_with_context(parse_attributes(text), step, epoch), status)
        base = self._trace.tables.base
        end = max(last, start) if duration is None else start + duration
        return self._make.span(
            id - base,
            None if parent is None else parent - base,
            row[10] if self._make.is_old else 0,
            name,
            category,
            tid,
            start,
            end,
            attributes,
        )

    def _metrics(self) -> Iterator[str]:
        for name, time, value in self._trace.metrics():
            self.metrics += 1
            yield self._make.value(name, time, value)

    def _events(self) -> Iterator[str]:
        for name, lane, time, step, epoch, attributes in self._trace.events():
            self.events += 1
            _with_context(attributes, step, epoch)
            yield self._make.event(name, self._tid(lane), time, attributes)

    def _tid(self, lane: int) -> int:
        return self._tids.get(lane, self._make.pid)


def _with_context(
    attributes: dict[str, Any], step: int | None, epoch: int | None
) -> dict[str, Any]:
    """Add the step and the epoch to attributes that do not contain them."""
    for key, value in (("epoch", epoch), ("step", step)):
        if value is not None:
            attributes.setdefault(key, value)
    return attributes
