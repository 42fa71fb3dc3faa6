"""What one process did so far, in a few numbers: what is asked of a run that has not come to its end.

A process is looked through by itself, and wherever it is read; what several of them give is put together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepwell.analysis.time.words import ITERATION, LIKE_ITERATION, table_of
from stepwell.reading.segments import Segment
from stepwell.reading.spans import FAILED, OK, UNFINISHED, SpanReader, SpanRows
from stepwell.reading.tables import LOST, ProcessTables

AROUND_NS = 1_000_000_000
"""One exception leaves all of the spans around it within this time."""
FAILURE = {"name", "start_ns", "duration_ns"}


@dataclass
class Habits:
    """One process.

    Attributes:
        done: by name and category how many spans began, how many ended, and the longest of these.
        failures: name, start and end of the spans that the last exception went through.
        left_ns: when the last training iteration began that did not end by itself, or has not yet.
    """

    process: str
    rank: int
    attempt: int
    role: str
    done: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    failures: list[tuple[str, int, int]] = field(default_factory=list)
    left_ns: int | None = None


def habits_of(tables: ProcessTables) -> Habits:
    """Look through the spans of a process, segment by segment."""
    about = tables.process.about
    place = int(about["rank"]), int(about["attempt"]), str(about["role"])
    found = Habits(tables.process.name, *place)
    looking = _Looking(tables, found)
    reader = SpanReader(tables.process)
    for segment in reader.segments:
        looking.add(segment, reader.rows(segment, depths=False))
    looking.finish()
    return found


class _Looking:
    """Adds segments up."""

    def __init__(self, tables: ProcessTables, found: Habits) -> None:
        self._tables = tables
        self._found = found
        names = tables.process.names
        self._codes = table_of(names)
        # One more for names that were lost.
        size = max(names, default=0) + 2
        self._begun, self._ended, self._longest = np.zeros((3, size), np.int64)

    def add(self, segment: Segment, rows: SpanRows) -> None:
        """The spans of one segment."""
        size = len(self._begun)
        names = np.minimum(rows.name, size - 1)
        lasted = rows.end.astype(np.int64) - rows.start.astype(np.int64)
        ended = rows.status <= FAILED
        self._begun += np.bincount(names, minlength=size)
        self._ended += np.bincount(names[ended], minlength=size)
        np.maximum.at(self._longest, names[ended], lasted[ended])
        is_iteration = self._codes[names] & (ITERATION | LIKE_ITERATION) != 0
        left = rows.start[is_iteration & (rows.status != OK)]
        if len(left):
            last = int(left.max()) + self._tables.offset
            self._found.left_ns = max(last, self._found.left_ns or 0)
        odd = ((rows.status == FAILED) | (rows.status == UNFINISHED)) & (rows.end != 0)
        if odd.any():
            self._add_failures(segment, rows.where(odd))

    def _add_failures(self, segment: Segment, rows: SpanRows) -> None:
        frame = self._tables.span_frame(segment, rows, None, FAILURE)
        ends = (pl.col("start_ns") + pl.col("duration_ns")).alias("end_ns")
        self._found.failures = latest_failures(
            [*self._found.failures, *frame.select("name", "start_ns", ends).rows()]
        )

    def finish(self) -> None:
        """Put the counts under the names."""
        names = self._tables.process.names
        for number in np.flatnonzero(self._begun).tolist():
            _, category, name = names.get(number, LOST)
            key = name, category
            begun, ended, longest = self._found.done.get(key, (0, 0, 0))
            self._found.done[key] = (
                begun + int(self._begun[number]),
                ended + int(self._ended[number]),
                max(longest, int(self._longest[number])),
            )


def latest_failures(failures: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Those that the last of several exceptions went through, the outermost first."""
    last = max((end for _, _, end in failures), default=0)
    return sorted((f for f in failures if f[2] >= last - AROUND_NS), key=lambda f: f[1])
