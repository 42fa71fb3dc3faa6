"""Chrome traces, for Perfetto and chrome://tracing: while a run records, or from a recorded run.

``ChromeExporter`` writes the array form of the format, in which the closing bracket is optional: the trace
of a killed process can be opened as it is. ``export_chrome`` writes the object form, which is strictly
valid JSON. The format is described in "Trace Event Format" (Google, 2016).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from stepwell.exporters.trace.fields import (
    category_of,
    format_micros,
    json_members,
    parse_attributes,
    quoted,
    time_base,
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
from stepwell.exporters.trace.tracks import Tracks
from stepwell.telemetry.exporter import EventRecord, Record, Source, SpanRecord

if TYPE_CHECKING:
    from stepwell.reading import RecordedRun

CACHED = 4096
LINE_BITS = 10
"""Thread ids leave room for 2**LINE_BITS lines per thread, because viewers sort threads by id."""
MANY_LINES = 1 << 28


class ChromeExporter(LiveTrace):
    """Write spans and events to a Chrome trace while the run records.

    A span that lasts longer than a batch of records is written as a begin and an end event. Ranks other
    than 0 add their rank to the file name: ``trace.json`` becomes ``trace.rank-3.json``.
    """

    suffixes = (".json", ".json.gz")

    def __init__(self, file_path: str | os.PathLike[str] = "trace.json") -> None:
        super().__init__(file_path)

    def begin(self, source: Source) -> str:
        """Return the opening bracket and the name of the process."""
        self._make = ChromeEvents(time_base(source.started_ns))
        self._pid = source.pid or 1
        self._threads: dict[str, int] = {}
        self._tracks: dict[str, Tracks] = {}
        self._named: set[int] = set()
        self._open: dict[int, tuple[SpanRecord, int]] = {}
        name, label = f"rank {source.rank}", f"{source.host} pid {source.pid}"
        if source.attempt:
            name += f" (attempt {source.attempt})"
        return "[\n" + ",\n".join(process_metadata(self._pid, name, label, source.rank))

    def text_of(self, records: Sequence[Record]) -> str:
        """Return the events of these records, each after a comma."""
        return "".join(f",\n{text}" for text in self._events(records))

    def finish(self) -> str:
        """Return the closing bracket."""
        return "\n]\n"

    def _events(self, records: Sequence[Record]) -> Iterator[str]:
        stops = {r.id: r for r in records if isinstance(r, SpanRecord) and r.type != "start"}
        for id, (start, line) in self._open.items():
            if id in stops:
                self._tracks[start.thread].expect(line, id, stops[id].end_ns or start.start_ns)
        written: set[int] = set()
        for record in records:
            if isinstance(record, EventRecord):
                yield from self._instant(record)
            elif record.id in self._open and record.type != "start":
                yield from self._end(record)
            elif record.id not in written:
                written.add(record.id)
                yield from self._begin(record, stops.get(record.id))

    def _begin(self, start: SpanRecord, stop: SpanRecord | None) -> Iterator[str]:
        """Yield a complete event if the end of the span is known, otherwise a begin event."""
        span = stop or start
        line = self._tracks_of(span).place(span.id, span.parent, span.start_ns, span.end_ns)
        yield from self._named_line(span.thread, line)
        tid = tid_of(self._threads[span.thread], line)
        if stop is None:
            self._open[span.id] = (span, line)
            args = span_args(span.attributes, None, None)
            yield self._make.mark(
                "B", span.name, span.category, self._pid, tid, span.start_ns, args
            )
        else:
            yield self._make.whole(span, self._pid, tid)

    def _end(self, stop: SpanRecord) -> Iterator[str]:
        start, line = self._open.pop(stop.id)
        end = stop.start_ns if stop.end_ns is None else stop.end_ns
        tracks = self._tracks_of(start)
        tid = tid_of(self._threads[start.thread], line)
        outliving = [self._open[id] for id in tracks.close(line, stop.id, end) if id in self._open]
        for span, _ in reversed(outliving):
            # Viewers cannot draw a span that outlives the one around it: it continues on another line.
            yield self._make.mark(
                "E", span.name, span.category, self._pid, tid, end, '"goes_on":true'
            )
        new = {k: v for k, v in stop.attributes.items() if start.attributes.get(k) != v}
        args = span_args(new, None, None, stop.status)
        yield self._make.mark("E", stop.name, stop.category, self._pid, tid, end, args)
        for span, _ in outliving:
            other = tracks.place(span.id, span.parent, end, None)
            self._open[span.id] = (span, other)
            yield from self._named_line(span.thread, other)
            tid = tid_of(self._threads[span.thread], other)
            yield self._make.mark(
                "B", span.name, span.category, self._pid, tid, end, '"went_on":true'
            )

    def _instant(self, event: EventRecord) -> Iterator[str]:
        if event.thread not in self._threads:
            self._threads[event.thread] = len(self._threads)
        yield from self._named_line(event.thread, 0)
        tid = tid_of(self._threads[event.thread])
        args = span_args(event.attributes, None, None)
        yield self._make.instant(event.name, event.type, self._pid, tid, event.time_ns, args)

    def _tracks_of(self, span: SpanRecord) -> Tracks:
        if span.thread not in self._threads:
            self._threads[span.thread] = len(self._threads)
        return self._tracks.setdefault(span.thread, Tracks())

    def _named_line(self, thread: str, line: int) -> list[str]:
        lane = self._threads[thread]
        tid = tid_of(lane, line)
        if tid in self._named:
            return []
        self._named.add(tid)
        return thread_metadata(self._pid, tid, line_name(thread, line))


class ChromeEvents:
    """Formats events as JSON, with times relative to ``base`` (ns). Caches repeated text."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._heads: dict[tuple[str, str], str] = {}
        self._args: dict[Any, str] = {}

    def complete(self, row: Any, pid: int, tid: int) -> str:
        """Return the event of a row of ``reading.pieces``: complete, or a begin while the span is open."""
        _, _, start, duration, status, name, category, step, epoch, attributes = row[:10]
        head = self.head(name, category)
        if isinstance(attributes, dict):
            args: str | None = span_args(attributes, step, epoch, status)
        else:
            key = (attributes, step, epoch, status)
            args = self._args.get(key)
            if args is None:
                args = self._cached(
                    key, span_args(parse_attributes(attributes), step, epoch, status)
                )
        color = ',"cname":"terrible"' if status == "error" else ""
        where = f'"pid":{pid},"tid":{tid},"ts":{format_micros(start - self.base)}'
        if duration is None:
            return f'{{"ph":"B",{head},{where}{color},"args":{{{args}}}}}'
        return (
            f'{{"ph":"X",{head},{where},"dur":{format_micros(duration)}{color},"args":{{{args}}}}}'
        )

    def whole(self, span: SpanRecord, pid: int, tid: int) -> str:
        """Return the event of a span record."""
        duration = None if span.end_ns is None else span.end_ns - span.start_ns
        where = (0, None, span.start_ns, duration, span.status, span.name, span.category)
        return self.complete((*where, None, None, span.attributes), pid, tid)

    def mark(
        self, phase: str, name: str, category: str | None, pid: int, tid: int, ns: int, args: str
    ) -> str:
        """Return the event that begins a span ("B"), or ends the innermost open one of a line ("E")."""
        where = f'"pid":{pid},"tid":{tid},"ts":{format_micros(ns - self.base)}'
        return f'{{"ph":"{phase}",{self.head(name, category)},{where},"args":{{{args}}}}}'

    def instant(self, name: str, category: str, pid: int, tid: int, ns: int, args: str) -> str:
        """Return an instant event on a thread."""
        where = f'"s":"t","pid":{pid},"tid":{tid},"ts":{format_micros(ns - self.base)}'
        color = ',"cname":"terrible"' if category == "error" else ""
        return f'{{"ph":"i",{self.head(name, category)},{where}{color},"args":{{{args}}}}}'

    def value(self, name: str, pid: int, tid: int, ns: int, value: float) -> str:
        """Return a counter event, or an instant if the value is not finite and cannot be drawn."""
        if not math.isfinite(value):
            return self.instant(name, "metric", pid, tid, ns, json_members({"value": str(value)}))
        where = f'"pid":{pid},"ts":{format_micros(ns - self.base)}'
        return f'{{"ph":"C",{self.head(name, "metric")},{where},"args":{{"value":{value!r}}}}}'

    def head(self, name: str, category: str | None) -> str:
        """Return the fields for name and category."""
        key = (name, category or "")
        head = self._heads.get(key)
        if head is None:
            cat = category_of(name, category)
            head = f'"name":{quoted(name)}' + (f',"cat":{quoted(cat)}' if cat else "")
            if len(self._heads) > CACHED:
                self._heads.clear()
            self._heads[key] = head
        return head

    def _cached(self, key: Any, text: str) -> str:
        if len(self._args) > CACHED:
            self._args.clear()
        self._args[key] = text
        return text


def span_args(
    attributes: dict[str, Any], step: int | None, epoch: int | None, status: str | None = None
) -> str:
    """Return attributes, step, epoch and the status, unless it is "ok", as members of a JSON object."""
    args = dict(attributes)
    for key, value in (("step", step), ("epoch", epoch)):
        if value is not None:
            args.setdefault(key, value)
    if status is not None:
        args = with_status(args, status)
    return json_members(args) if args else ""


def tid_of(lane: int, line: int = 0) -> int:
    """Return the thread id for a lane, or for one of its further lines."""
    if line >> LINE_BITS:
        return MANY_LINES + (lane << 2 * LINE_BITS) + line
    return (lane << LINE_BITS) + line + 1


def line_name(thread: str, line: int) -> str:
    """Return the display name of a line: that of the thread, or "(overlapping n)" after it."""
    return thread if line == 0 else f"{thread} (overlapping {line})"


def process_metadata(pid: int, name: str, label: str, order: int) -> list[str]:
    """Return the events that give a process its name, label and position."""
    return [
        _metadata("process_name", pid, 0, {"name": name}),
        _metadata("process_labels", pid, 0, {"labels": label}),
        _metadata("process_sort_index", pid, 0, {"sort_index": order}),
    ]


def thread_metadata(pid: int, tid: int, name: str) -> list[str]:
    """Return the events that give a thread its name and position."""
    return [
        _metadata("thread_name", pid, tid, {"name": name}),
        _metadata("thread_sort_index", pid, tid, {"sort_index": tid}),
    ]


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    return f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"args":{{{json_members(args)}}}}}'


def export_chrome(
    run: RecordedRun | str | os.PathLike[str],
    path: str | os.PathLike[str],
    steps: tuple[int, int] | None = None,
    ranks: Iterable[int] | None = None,
    between: tuple[int, int] | None = None,
) -> Written:
    """Write a run, finished or still recording, as a strictly valid Chrome trace.

    Args:
        run: a run or its folder.
        path: the file to write, compressed if its name ends in ``.gz``. An existing file is replaced.
        steps: the first step to write and the one after the last. Default: all.
        ranks: the ranks to write. Default: all.
        between: the time to write instead of steps, in nanoseconds since the epoch.
    """
    recorded, target = open_recorded(run), Path(path)
    ranks = select_ranks(recorded, ranks)
    base = time_base(recorded.created_ns)
    with replaced_text_file(target) as file:
        info = {"run": recorded.id, "name": recorded.name, "base_ns": str(base), "tool": "stepwell"}
        file.write(
            f'{{"displayTimeUnit":"ns","otherData":{{{json_members(info)}}},"traceEvents":[\n'
        )
        writer = _ChromeWriter(file, base)
        for trace in process_traces(recorded, process_labels(recorded), steps, ranks, between):
            writer.write_process(trace)
        check_not_empty(writer.spans, steps)
        file.write("\n]}\n")
    return Written([target], writer.spans, writer.events, writer.metrics)


class _ChromeWriter:
    """Writes the events of one process after the other, and counts them."""

    def __init__(self, file: TextIO, base: int) -> None:
        self.spans = self.events = self.metrics = 0
        self._file = file
        self._make = ChromeEvents(base)
        self._gap = ""

    def write_process(self, trace: ProcessTrace) -> None:
        document, pid = trace.label.document, trace.label.number
        label = f"{document['host']} pid {document['pid']}"
        self._write(process_metadata(pid, trace.label.name, label, pid))
        for lane, name in trace.threads.items():
            self._write(thread_metadata(pid, tid_of(lane), name))
        self._write_spans(trace)
        for batch in in_batches(chain(self._metrics(trace), self._events(trace))):
            self._write(batch)

    def _write_spans(self, trace: ProcessTrace) -> None:
        pid, make, before = trace.label.number, self._make.complete, -1
        for lane, rows in trace.spans():
            if lane != before:
                before, tracks, named = lane, Tracks(), {0}
            lines = [
                tracks.place(row[0], row[1], row[2], None if row[3] is None else row[2] + row[3])
                for row in rows
            ]
            for line in sorted(set(lines) - named):
                named.add(line)
                name = line_name(trace.threads.get(lane, ""), line)
                self._write(thread_metadata(pid, tid_of(lane, line), name))
            pairs = zip(rows, lines, strict=True)
            self._write([make(row, pid, tid_of(lane, line)) for row, line in pairs])
            self.spans += len(rows)

    def _metrics(self, trace: ProcessTrace) -> Iterator[str]:
        for name, time, value in trace.metrics():
            self.metrics += 1
            yield self._make.value(name, trace.label.number, tid_of(0), time, value)

    def _events(self, trace: ProcessTrace) -> Iterator[str]:
        for name, lane, time, step, epoch, attributes in trace.events():
            self.events += 1
            category = "error" if name == "error" else "event"
            args = span_args(attributes, step, epoch)
            yield self._make.instant(name, category, trace.label.number, tid_of(lane), time, args)

    def _write(self, texts: list[str]) -> None:
        if texts:
            self._file.write(self._gap + ",\n".join(texts))
            self._gap = ",\n"
