"""The spans of a run so far, in a few numbers, and how long a span may take before it counts as hanging.

Only needed for runs that have not finished. Each process is summed up by itself, where it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepwell.analysis.ranks.stacks import Stack, StackFrame
from stepwell.analysis.timeline.phases import phase_of_span
from stepwell.reading import RecordedRun
from stepwell.reading.segments import RecordedSegment
from stepwell.reading.spans import FAILED, UNFINISHED, SpanReader, SpanRows
from stepwell.reading.tables import LOST, ProcessTables
from stepwell.vocabulary import StandardTrainingJobSpanName

AROUND_NS = 1_000_000_000
"""An exception ends all spans around it within this time."""
FAILURE = {"name", "start_ns", "duration_ns"}
TIMES = 10.0
"""A span takes too long if it takes this many times its longest duration so far …"""
MOST_MORE_S = 600.0
"""… or this many seconds more."""
OFTEN = 3
"""Fewest spans of a name whose longest duration is trusted."""
FIRST_S = 300.0
"""Limit for waiting for other ranks or for data, as long as no duration is known …"""
FIRST_WORK_S = 3600.0
"""… and for phases that usually take long."""
LONG = ("validation", "testing", "checkpoint", "restore")
"""Phases that usually take long, with all spans in them."""
WAITS = ("communication", "data")
"""Phases in which a rank waits."""
DIST_INIT = StandardTrainingJobSpanName.DIST_INIT.value


@dataclass
class SpanHistory:
    """The spans of one process so far.

    Attributes:
        done: by name and category: spans begun, spans ended, and the longest duration in nanoseconds.
        failures: name, start and end of the spans that the last exception ended.
    """

    process: str
    rank: int
    attempt: int
    role: str
    done: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    failures: list[tuple[str, int, int]] = field(default_factory=list)


def read_history(tables: ProcessTables) -> SpanHistory:
    """Read the spans of a process, segment by segment."""
    document = tables.process.document
    place = int(document["rank"]), int(document["attempt"]), str(document["role"])
    history = SpanHistory(tables.process.name, *place)
    adder = _HistoryAdder(tables, history)
    reader = SpanReader(tables.process)
    for segment in reader.segments:
        adder.add(segment, reader.rows(segment, depths=False))
    adder.finish()
    return history


class _HistoryAdder:
    """Adds up the segments of a process."""

    def __init__(self, tables: ProcessTables, history: SpanHistory) -> None:
        self._tables = tables
        self._history = history
        names = tables.process.names
        # One more entry for names that were lost.
        size = max(names, default=0) + 2
        self._begun, self._ended, self._longest = np.zeros((3, size), np.int64)

    def add(self, segment: RecordedSegment, rows: SpanRows) -> None:
        """Add the spans of one segment."""
        size = len(self._begun)
        names = np.minimum(rows.name, size - 1)
        lasted = rows.end.astype(np.int64) - rows.start.astype(np.int64)
        ended = rows.status <= FAILED
        self._begun += np.bincount(names, minlength=size)
        self._ended += np.bincount(names[ended], minlength=size)
        np.maximum.at(self._longest, names[ended], lasted[ended])
        odd = ((rows.status == FAILED) | (rows.status == UNFINISHED)) & (rows.end != 0)
        if odd.any():
            self._add_failures(segment, rows.where(odd))

    def _add_failures(self, segment: RecordedSegment, rows: SpanRows) -> None:
        frame = self._tables.span_frame(segment, rows, None, FAILURE)
        ends = (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")
        self._history.failures = latest_failures(
            [*self._history.failures, *frame.select("name", "start_ns", ends).rows()]
        )

    def finish(self) -> None:
        """Store the counts by name."""
        names = self._tables.process.names
        for number in np.flatnonzero(self._begun).tolist():
            _, category, name = names.get(number, LOST)
            key = name, category
            begun, ended, longest = self._history.done.get(key, (0, 0, 0))
            self._history.done[key] = (
                begun + int(self._begun[number]),
                ended + int(self._ended[number]),
                max(longest, int(self._longest[number])),
            )


def latest_failures(failures: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return the spans that the last of several exceptions ended, the outermost first."""
    last = max((end for _, _, end in failures), default=0)
    return sorted((f for f in failures if f[2] >= last - AROUND_NS), key=lambda f: f[1])


@dataclass
class TypicalDurations:
    """How often spans ended and the longest duration in seconds, by name; and collectives by rank."""

    done: dict[str, tuple[int, float]] = field(default_factory=dict)
    collectives: dict[int, int] = field(default_factory=dict)
    """Collectives that each rank began in the latest attempt."""

    def relevant(self, stack: Stack) -> StackFrame | None:
        """Return the span that decides whether a thread hangs: a long phase around it, else the innermost."""
        for frame in stack.frames:
            if phase_of_span(frame.name, frame.category) in LONG:
                return frame
        return stack.innermost

    def limit_s(self, frame: StackFrame) -> float | None:
        """Return the number of seconds after which a span takes too long; None if unknown."""
        count, longest = self.done.get(frame.name, (0, 0.0))
        limit = longest + min((TIMES - 1) * longest, MOST_MORE_S)
        phase = phase_of_span(frame.name, frame.category)
        if phase in LONG:
            return limit if count else FIRST_WORK_S
        if count >= OFTEN:
            return limit
        if phase in WAITS or frame.name == DIST_INIT:
            return max(FIRST_S, limit)
        return None

    def is_too_long(self, stack: Stack) -> bool:
        """Return whether a thread is in a span for longer than its limit."""
        frame = self.relevant(stack)
        limit = None if frame is None else self.limit_s(frame)
        return frame is not None and limit is not None and frame.seconds >= limit

    def is_at_work(self, stack: Stack) -> bool:
        """Return whether a thread is in a span that may take longer than it has so far."""
        frame = self.relevant(stack)
        limit = None if frame is None else self.limit_s(frame)
        return frame is not None and limit is not None and frame.seconds < limit


def read_typical_durations(
    run: RecordedRun, attempt: int, histories: Iterable[SpanHistory] | None = None
) -> TypicalDurations:
    """Return the durations of spans in all attempts.

    ``histories`` are those of the processes, if they have been read already.
    """
    durations = TypicalDurations()
    processes = (
        (read_history(tables) for tables in run.by_process()) if histories is None else histories
    )
    for process in processes:
        if process.role != "worker":
            _add(durations, process, attempt)
    return durations


def _add(durations: TypicalDurations, process: SpanHistory, attempt: int) -> None:
    for (name, category), (begun, ended, longest) in process.done.items():
        count, most = durations.done.get(name, (0, 0.0))
        durations.done[name] = count + ended, max(most, longest / 1e9)
        is_collective = phase_of_span(name, category) == "communication"
        if is_collective and process.attempt == attempt:
            so_far = durations.collectives.get(process.rank, 0)
            durations.collectives[process.rank] = so_far + begun
