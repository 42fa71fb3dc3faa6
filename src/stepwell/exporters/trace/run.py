"""A recorded run as the processes to export: their numbers and names in a trace, and their records."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell._core.errors import StepwellError
from stepwell.exporters.trace.fields import parse_attributes

if TYPE_CHECKING:
    from stepwell.reading import RecordedRun
    from stepwell.reading.segments import Window
    from stepwell.reading.tables import ProcessTables

EVENT_COLUMNS = ("name", "thread", "time_ns", "step", "epoch", "attributes")
BATCH = 2000
METRIC_COLUMNS = ("name", "time_ns", "value", "step")


@dataclass(frozen=True)
class ProcessLabel:
    """How a trace labels a process: a unique number, a display name, and its process.json."""

    number: int
    name: str
    document: dict[str, Any]


@dataclass(frozen=True)
class Written:
    """The files that an export wrote, and the numbers of records in them."""

    files: list[Path]
    spans: int
    events: int
    metrics: int


@dataclass(frozen=True)
class ProcessTrace:
    """The records of one process to export.

    ``window`` limits the time, ``steps`` the steps of single records; None means no limit.
    """

    label: ProcessLabel
    tables: ProcessTables
    window: Window | None
    steps: tuple[int, int] | None

    @property
    def threads(self) -> dict[int, str]:
        """Names of the threads, by lane number."""
        return self.tables.threads

    def native_threads(self) -> dict[int, int]:
        """Return the operating system's thread ids, by lane number, as far as they are recorded."""
        ids = {s.lane: s.header.get("native") for s in self.tables.process.segments}
        return {lane: n for lane, n in ids.items() if type(n) is int and 0 < n < 1 << 31}

    def last_seen_ns(self) -> int:
        """Return when the process last recorded (ns since the epoch).

        Open spans lasted at least until then.
        """
        from stepwell.reading.segments import ends_of

        segments = self.tables.process.of_kind("spans")
        last = max(map(ends_of, segments), default=0)
        heartbeat = int(self.label.document["heartbeat"] or 0)
        return max(heartbeat, last + self.tables.offset if last else 0)

    def spans(self, depths: bool = False) -> Iterator[tuple[int, list[Any]]]:
        """Yield (lane, rows) for each segment; a row has the columns of ``reading.pieces``."""
        from stepwell.reading.span_pieces import SpanPieces

        for lane, rows in SpanPieces(self.tables, self.window, depths):
            yield lane, rows if self.steps is None else [r for r in rows if self._has(r[7])]

    def events(self) -> Iterator[tuple[str, int, int, int | None, int | None, dict[str, Any]]]:
        """Yield name, lane, time, step, epoch and attributes of each event."""
        from stepwell.reading.segments import ALWAYS

        lanes = {name: lane for lane, name in self.threads.items()}
        for frame in self.tables.events(set(EVENT_COLUMNS), window=self.window or ALWAYS):
            for name, thread, time, step, epoch, text in frame.select(EVENT_COLUMNS).iter_rows():
                if self._has(step):
                    lane = lanes.get(thread, 0)
                    yield name, lane, time, step, epoch, parse_attributes(text)

    def metrics(self) -> Iterator[tuple[str, int, float]]:
        """Yield name, time and value of each metric value."""
        for frame in self.tables.metrics(set(METRIC_COLUMNS), self.window):
            for name, time, value, step in frame.select(METRIC_COLUMNS).iter_rows():
                if self._has(step):
                    yield name, time, value

    def _has(self, step: int | None) -> bool:
        if self.steps is None:
            return True
        return step is not None and self.steps[0] <= step < self.steps[1]


def in_batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield the texts in lists that are worth one write."""
    iterator = iter(texts)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def open_recorded(run: RecordedRun | str | os.PathLike[str]) -> RecordedRun:
    """Return the run, or open the one in this folder."""
    from stepwell.reading import RecordedRun, open_run

    return run if isinstance(run, RecordedRun) else open_run(run)


def process_labels(run: RecordedRun) -> dict[str, ProcessLabel]:
    """Return a label for each process of a run: numbered from 1 by rank, workers after their parent."""
    documents = sorted(run.documents(), key=_order)
    has_restarts = any(document["attempt"] for document in documents)
    return {
        document["process"]: ProcessLabel(number, _name(document, has_restarts), document)
        for number, document in enumerate(documents, 1)
    }


def process_traces(
    run: RecordedRun,
    labels: dict[str, ProcessLabel],
    steps: tuple[int, int] | None = None,
    ranks: Iterable[int] | None = None,
    between: tuple[int, int] | None = None,
) -> Iterator[ProcessTrace]:
    """Yield the records of each process to export; skip processes that recorded none of the steps.

    ``between`` limits the time instead, in nanoseconds since the epoch.
    """
    for rank in select_ranks(run, ranks):
        for tables in run.by_process(rank, partial=steps is not None or between is not None):
            label = labels.get(tables.process.name)
            if label is None:
                continue
            if between is not None:
                start, end = between[0] - tables.offset, between[1] - tables.offset
                yield ProcessTrace(label, tables, (start, end), None)
            elif steps is None:
                yield ProcessTrace(label, tables, None, None)
            elif not tables.context.has_steps:
                # The process recorded no step context: each span is checked for its own step.
                yield ProcessTrace(label, tables, None, steps)
            else:
                window = tables.context.window(*steps)
                if window is not None:
                    yield ProcessTrace(label, tables, window, None)


def select_ranks(run: RecordedRun, ranks: Iterable[int] | None) -> Collection[int]:
    """Return the requested ranks that the run has; raise StepwellError if it has none of them."""
    existing = run.ranks()
    if ranks is None:
        return existing
    selected = sorted(set(existing) & set(ranks))
    if not selected:
        raise StepwellError(f"run {run.id} has none of these ranks, only {_listed(existing)}")
    return selected


def check_not_empty(spans: int, steps: tuple[int, int] | None) -> None:
    """Raise StepwellError if there are no spans in these steps."""
    if steps is not None and not spans:
        raise StepwellError(f"no spans in steps {steps[0]}:{steps[1]}")


def _order(document: dict[str, Any]) -> tuple[Any, ...]:
    is_worker = document["role"] == "worker"
    return (
        document["rank"],
        document["attempt"],
        is_worker,
        document["worker"] if document["worker"] is not None else 0,
        document["started"] or 0,
        document["process"],
    )


def _name(document: dict[str, Any], has_restarts: bool) -> str:
    name = f"rank {document['rank']}"
    if document["role"] == "worker":
        number = document["worker"]
        name += " worker" if number is None else f" worker {number}"
    return f"{name} (attempt {document['attempt']})" if has_restarts else name


def _listed(ranks: list[int]) -> str:
    if len(ranks) > 8:
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks)) or "none"
