"""The spans of a run so far, in a few numbers, and how long a span may take before it counts as hanging.

Only needed for runs that have not finished. Each process is summed up by itself, where it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepwell.analysis.ranks.stacks import Stack, StackFrame
from stepwell.analysis.timeline.phases import phase_of_span
from stepwell.reading import RecordedRun
from stepwell.reading.spans import FAILED, UNFINISHED, SpanReader
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
    document, names = tables.process.document, tables.process.names
    place = int(document["rank"]), int(document["attempt"]), str(document["role"])
    history = SpanHistory(tables.process.name, *place)
    # One more entry for names that were lost.
    size = max(names, default=0) + 2
    begun, ended, longest = np.zeros((3, size), np.int64)
    reader = SpanReader(tables.process)
    for segment in reader.segments:
        rows = reader.rows(segment, depths=False)
        numbers, is_ended = np.minimum(rows.name, size - 1), rows.status <= FAILED
        lasted = rows.end.astype(np.int64) - rows.start.astype(np.int64)
        begun += np.bincount(numbers, minlength=size)
        ended += np.bincount(numbers[is_ended], minlength=size)
        np.maximum.at(longest, numbers[is_ended], lasted[is_ended])
        odd = ((rows.status == FAILED) | (rows.status == UNFINISHED)) & (rows.end != 0)
        if odd.any():
            frame = tables.span_frame(segment, rows.where(odd), None, FAILURE)
            ends = (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")
            failures = frame.select("name", "start_ns", ends).rows()
            history.failures = latest_failures([*history.failures, *failures])
    for number in np.flatnonzero(begun).tolist():
        _, category, name = names.get(number, LOST)
        count, done, most = history.done.get((name, category), (0, 0, 0))
        history.done[name, category] = (
            count + int(begun[number]),
            done + int(ended[number]),
            max(most, int(longest[number])),
        )
    return history


def latest_failures(failures: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return the spans that the last of several exceptions ended, the outermost first."""
    last = max((end for _, _, end in failures), default=0)
    return sorted((f for f in failures if f[2] >= last - AROUND_NS), key=lambda f: f[1])


@dataclass
class TypicalDurations:
    """How often spans ended and the longest duration in seconds, by name; and collectives by rank."""

    done: dict[str, tuple[int, float]] = field(default_factory=dict)
    collectives: Counter[int] = field(default_factory=Counter)
    """Collectives that each rank began in the latest attempt."""

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

    def is_too_long(self, stack: Stack) -> bool | None:
        """Return whether a thread is in a span for longer than its limit; None if there is no limit."""
        # A long phase around the innermost span decides.
        long = (f for f in stack.frames if phase_of_span(f.name, f.category) in LONG)
        frame = next(long, stack.innermost)
        limit = None if frame is None else self.limit_s(frame)
        return None if frame is None or limit is None else frame.seconds >= limit


def read_typical_durations(
    run: RecordedRun, attempt: int, histories: Iterable[SpanHistory] | None = None
) -> TypicalDurations:
    """Return the durations of spans in all attempts.

    ``histories`` are those of the processes, if they have been read already.
    """
    durations = TypicalDurations()
    if histories is None:
        histories = map(read_history, run.by_process())
    for process in histories:
        done = {} if process.role == "worker" else process.done
        for (name, category), (begun, ended, longest) in done.items():
            count, most = durations.done.get(name, (0, 0.0))
            durations.done[name] = count + ended, max(most, longest / 1e9)
            is_collective = phase_of_span(name, category) == "communication"
            if is_collective and process.attempt == attempt:
                durations.collectives[process.rank] += begun
    return durations
