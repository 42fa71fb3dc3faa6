"""The Chrome trace exporter: a trace that grows while the run goes on, for Perfetto.

It is the array form of the format, whose closing bracket may be missing: a trace whose process was killed
can be opened as it is. ``export_chrome`` writes the strictly valid object form of any recorded run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from stepwell.exporters.chrome_events import (
    ChromeEvents,
    line_name,
    process_metadata,
    span_args,
    thread_metadata,
    tid_of,
)
from stepwell.exporters.chrome_export import export_chrome as export_chrome
from stepwell.exporters.trace_json import base_of
from stepwell.exporters.trace_live import LiveTrace
from stepwell.exporters.trace_tracks import Tracks
from stepwell.telemetry.exporter import EventRecord, Record, Source, SpanRecord


class ChromeExporter(LiveTrace):
    """Writes spans and events as they end; what lasts longer is there with its begin from the start on.

    Ranks other than 0 put their rank into the name: ``trace.json`` is ``trace.rank-3.json`` for rank 3.
    """

    suffixes = (".json", ".json.gz")

    def __init__(self, file_path: str | os.PathLike[str] = "trace.json") -> None:
        super().__init__(file_path)

    def begin(self, source: Source) -> str:
        """The opening bracket, and the name of the process."""
        self._make = ChromeEvents(base_of(source.started_ns))
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
        """The events of these records, each with a comma before it."""
        return "".join(f",\n{text}" for text in self._events(records))

    def finish(self) -> str:
        """The closing bracket."""
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
        """A span as a whole where its end is known already, else its begin."""
        span = stop or start
        line = self._tracks_of(span).place(span.id, span.parent, span.start_ns, span.end_ns)
        yield from self._named_line(span.thread, line)
        tid = tid_of(self._threads[span.thread], line)
        if stop is None:
            self._open[span.id] = (span, line)
            args = span_args(span.attributes, None, None)
            yield self._make.begin(span.name, span.category, self._pid, tid, span.start_ns, args)
        else:
            yield self._make.whole(span, self._pid, tid)

    def _end(self, stop: SpanRecord) -> Iterator[str]:
        start, line = self._open.pop(stop.id)
        end = stop.start_ns if stop.end_ns is None else stop.end_ns
        tracks = self._tracks_of(start)
        tid = tid_of(self._threads[start.thread], line)
        outliving = [self._open[id] for id in tracks.close(line, stop.id, end) if id in self._open]
        for span, _ in reversed(outliving):
            # Nothing can last longer than what it is drawn in: it goes on on another line.
            yield self._make.end(span.name, span.category, self._pid, tid, end, '"goes_on":true')
        new = {k: v for k, v in stop.attributes.items() if start.attributes.get(k) != v}
        args = span_args(new, None, None, stop.status)
        yield self._make.end(stop.name, stop.category, self._pid, tid, end, args)
        for span, _ in outliving:
            other = tracks.place(span.id, span.parent, end, None)
            self._open[span.id] = (span, other)
            yield from self._named_line(span.thread, other)
            place = tid_of(self._threads[span.thread], other)
            yield self._make.begin(
                span.name, span.category, self._pid, place, end, '"went_on":true'
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
