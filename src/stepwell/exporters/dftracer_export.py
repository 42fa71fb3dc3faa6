"""A recorded run as dftracer traces, one file a process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.exporters.dftracer_lines import DFTracerLines, check_dialect
from stepwell.exporters.trace_files import written
from stepwell.exporters.trace_json import parsed, with_status
from stepwell.exporters.trace_run import (
    Part,
    Written,
    check_found,
    check_ranks,
    parts_of,
    places_of,
    recorded,
)

if TYPE_CHECKING:
    from stepwell.reading import RecordedRun

SUFFIXES = (".pfw.gz", ".pfw")
MANY = 2000


def export_dftracer(
    run: RecordedRun | str | os.PathLike[str],
    path: str | os.PathLike[str],
    steps: tuple[int, int] | None = None,
    ranks: Iterable[int] | None = None,
    dialect: str = "new",
) -> Written:
    """Write a run as dftracer traces: ``trace.pfw.gz`` stands for ``trace-<pid>-app.pfw.gz`` and others.

    Args:
        run: the run or its folder.
        path: what the files' names begin with; they are packed when it ends in ``.gz``.
        steps: only what happened from the first of these steps up to the second, not included.
        ranks: only these.
        dialect: ``new`` as dftracer 2.2 writes, or ``old`` with brackets, ``p_idx`` and ``level``.
    """
    found = recorded(run)
    check_dialect(dialect)
    ranks = check_ranks(found, ranks)
    done = Written([], 0, 0, 0)
    places = places_of(found)
    names = _names(Path(path), [place.about for place in places.values()])
    for part in parts_of(found, places, steps, ranks):
        target = names[part.tables.process.name]
        writer = _Writer(part, dialect)
        try:
            with written(target) as file:
                for lines in writer.lines():
                    file.write("\n".join(lines) + "\n" if lines else "")
                if steps is not None and not writer.count:
                    # What stood there before stays.
                    raise _Nothing
        except _Nothing:
            continue
        done = Written(
            [*done.files, target],
            done.spans + writer.spans,
            done.events + writer.events,
            done.metrics + writer.metrics,
        )
    check_found(done.spans, steps)
    return done


def file_name(path: Path, rank: int, pid: int, kind: str = "app", number: int = 1) -> Path:
    """The file of one process: ``trace-123-app.pfw.gz``, ``trace.rank-2-77-fork.pfw.gz``."""
    suffix = next((s for s in SUFFIXES if path.name.endswith(s)), "")
    prefix = path.name[: len(path.name) - len(suffix)]
    if rank:
        prefix += f".rank-{rank}"
    again = "" if number == 1 else f"-{number}"
    return path.with_name(f"{prefix}-{pid}{again}-{kind}{suffix or '.pfw'}")


def _names(path: Path, documents: list[dict[str, Any]]) -> dict[str, Path]:
    """A file for each process; containers give one pid to many."""
    names: dict[str, Path] = {}
    for about in documents:
        kind = "fork" if about["role"] == "worker" else "app"
        number = 1
        while (
            name := file_name(path, about["rank"], about["pid"], kind, number)
        ) in names.values():
            number += 1
        names[about["process"]] = name
    return names


class _Nothing(Exception):
    """A process that has nothing of the window."""


class _Writer:
    """Makes the lines of one process, and counts what it makes them of."""

    def __init__(self, part: Part, dialect: str) -> None:
        self.spans = self.events = self.metrics = 0
        self._part = part
        about = part.place.about
        self._make = DFTracerLines(dialect, about["pid"], about["host"])
        self._tids = part.native_threads()

    @property
    def count(self) -> int:
        """Of how much lines were made so far."""
        return self.spans + self.events + self.metrics

    def lines(self) -> Iterator[list[str]]:
        """All lines, in lists of some."""
        about = self._part.place.about
        known = {"run": self._part.tables.run, "attempt": about["attempt"], "tool": "stepwell"}
        yield self._make.head(about["rank"], about["started"] or 0, known)
        for lane, name in self._part.threads.items():
            yield [self._make.metadata("thread_name", self._tid(lane), name)]
        last = self._part.last_sign_ns()
        for lane, rows in self._part.spans(depths=self._make.is_old):
            self.spans += len(rows)
            yield [self._span(row, self._tid(lane), last) for row in rows]
        for more in (self._metrics(), self._events()):
            some: list[str] = []
            for line in more:
                some.append(line)
                if len(some) >= MANY:
                    yield some
                    some = []
            yield some
        yield self._make.tail(last, self.count)

    def _span(self, row: Any, tid: int, last: int) -> str:
        id, parent, start, duration, status, name, category, step, epoch, text = row[:10]
        attributes = parsed(text)
        for key, value in (("epoch", epoch), ("step", step)):
            if value is not None:
                attributes.setdefault(key, value)
        attributes = with_status(attributes, status)
        base = self._part.tables.base
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
        for name, time, value in self._part.metrics():
            self.metrics += 1
            yield self._make.value(name, time, value)

    def _events(self) -> Iterator[str]:
        lanes = {name: lane for lane, name in self._part.threads.items()}
        for name, thread, time, step, epoch, attributes in self._part.events():
            self.events += 1
            for key, value in (("epoch", epoch), ("step", step)):
                if value is not None:
                    attributes.setdefault(key, value)
            yield self._make.event(name, self._tid(lanes.get(thread, 0)), time, attributes)

    def _tid(self, lane: int) -> int:
        return self._tids.get(lane, self._make.pid)
