"""A recorded run as a Chrome trace, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from stepwell.exporters.chrome_events import (
    ChromeEvents,
    line_name,
    process_metadata,
    span_args,
    thread_metadata,
    tid_of,
)
from stepwell.exporters.trace_files import written
from stepwell.exporters.trace_json import base_of, members
from stepwell.exporters.trace_run import (
    Part,
    Written,
    check_found,
    check_ranks,
    parts_of,
    places_of,
    recorded,
)
from stepwell.exporters.trace_tracks import Tracks

if TYPE_CHECKING:
    from stepwell.reading import RecordedRun

MANY = 2000


def export_chrome(
    run: RecordedRun | str | os.PathLike[str],
    path: str | os.PathLike[str],
    steps: tuple[int, int] | None = None,
    ranks: Iterable[int] | None = None,
) -> Written:
    """Write a run, finished or not, as one strictly valid Chrome trace.

    Args:
        run: the run or its folder.
        path: the file, packed when its name ends in ``.gz``. What is there is replaced.
        steps: only what happened from the first of these steps up to the second, not included.
        ranks: only these.
    """
    found, target = recorded(run), Path(path)
    ranks = check_ranks(found, ranks)
    base = base_of(found.created_ns)
    with written(target) as file:
        about = {"run": found.id, "name": found.name, "base_ns": str(base), "tool": "stepwell"}
        file.write(f'{{"displayTimeUnit":"ns","otherData":{{{members(about)}}},"traceEvents":[\n')
        writer = _Writer(file, base)
        for part in parts_of(found, places_of(found), steps, ranks):
            writer.write_part(part)
        check_found(writer.spans, steps)
        file.write("\n]}\n")
    return Written([target], writer.spans, writer.events, writer.metrics)


class _Writer:
    """Writes the events of one process after the other, and counts them."""

    def __init__(self, file: TextIO, base: int) -> None:
        self.spans = self.events = self.metrics = 0
        self._file = file
        self._make = ChromeEvents(base)
        self._gap = ""

    def write_part(self, part: Part) -> None:
        about, pid = part.place.about, part.place.number
        label = f"{about['host']} pid {about['pid']}"
        self._write(process_metadata(pid, part.place.name, label, pid))
        for lane, name in part.threads.items():
            self._write(thread_metadata(pid, tid_of(lane), name))
        self._write_spans(part)
        self._write_all(self._metrics(part))
        self._write_all(self._events(part))

    def _write_spans(self, part: Part) -> None:
        pid, make, before = part.place.number, self._make.complete, -1
        for lane, rows in part.spans():
            if lane != before:
                before, tracks, named = lane, Tracks(), {0}
            lines = [
                tracks.place(row[0], row[1], row[2], None if row[3] is None else row[2] + row[3])
                for row in rows
            ]
            for line in sorted(set(lines) - named):
                named.add(line)
                name = line_name(part.threads.get(lane, ""), line)
                self._write(thread_metadata(pid, tid_of(lane, line), name))
            pairs = zip(rows, lines, strict=True)
            self._write([make(row, pid, tid_of(lane, line)) for row, line in pairs])
            self.spans += len(rows)

    def _metrics(self, part: Part) -> Iterator[str]:
        for name, time, value in part.metrics():
            self.metrics += 1
            yield self._make.value(name, part.place.number, tid_of(0), time, value)

    def _events(self, part: Part) -> Iterator[str]:
        lanes = {name: lane for lane, name in part.threads.items()}
        for name, thread, time, step, epoch, attributes in part.events():
            self.events += 1
            category = "error" if name == "error" else "event"
            tid, args = tid_of(lanes.get(thread, 0)), span_args(attributes, step, epoch)
            yield self._make.instant(name, category, part.place.number, tid, time, args)

    def _write_all(self, texts: Iterator[str]) -> None:
        some: list[str] = []
        for text in texts:
            some.append(text)
            if len(some) >= MANY:
                self._write(some)
                some = []
        self._write(some)

    def _write(self, texts: list[str]) -> None:
        if texts:
            self._file.write(self._gap + ",\n".join(texts))
            self._gap = ",\n"
