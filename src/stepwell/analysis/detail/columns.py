"""The metric values of a process by name, from cached columns of sealed segments and from live ones.

Sealed metric segments are sorted by name and stored in the cache, 32 segment numbers to a file. Changes of
step and epoch are stored beside them. Steps that a value does not contain are looked up when it is read: the
change of step may be in a segment that was sealed later.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.analysis.cache import Blobs, CachedShelf, Shelf, memory_shelf, shelf_path
from stepwell.analysis.detail.source import ProcessSource, RunSource, by_group, fingerprint
from stepwell.analysis.timeline.intervals import Ints
from stepwell.journal.format import (
    CONTEXT_NAME,
    EPOCH_MASK,
    IMPLICIT_STEP,
    STEP_BIAS,
    STEP_SHIFT,
)
from stepwell.reading.segments import RecordedSegment, Words
from stepwell.reading.tables import LOST

Floats = NDArray[np.float64]

CONTEXT = "context"
NAME_MASK = 0xFFFFFF
ROW = 24
"""Bytes of one value."""


@dataclass(frozen=True)
class Values:
    """Values of one metric: rank, step, ns since the run began, and value."""

    ranks: Ints
    steps: Ints
    times: Ints
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def joined(cls, parts: Iterable[Values]) -> Values:
        """Return the values of several parts together."""
        none: Ints = np.empty(0, np.int64)
        every = [Values(none, none, none, np.empty(0)), *parts]
        columns = zip(*(part.columns for part in every), strict=True)
        return cls(*map(np.concatenate, columns))

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """All columns."""
        return self.ranks, self.steps, self.times, self.values

    def where(self, chosen: NDArray[np.bool_]) -> Values:
        """Return some of the values."""
        return Values(*(column[chosen] for column in self.columns))


class StepLog:
    """The changes of step and epoch of a process, and of its parent for those that it did not set itself."""

    def __init__(self, clock: Words, word: Words, above: StepLog | None) -> None:
        order = np.argsort(clock, kind="stable")
        self.clock, word = clock[order].astype(np.int64), word[order]
        self.steps = (word >> np.uint64(STEP_SHIFT)).astype(np.int64) - 1
        self.epochs = (word & np.uint64(EPOCH_MASK)).astype(np.int64) - 1
        self._above = above

    def steps_at(self, clock: Ints) -> Ints:
        """Return the step at each of these times, -1 for none."""
        index = np.searchsorted(self.clock, clock, side="right")
        steps: Ints = np.append(-1, self.steps)[index]
        if self._above is not None and (steps < 0).any():
            steps = np.where(steps < 0, self._above.steps_at(clock), steps)
        return steps


class ProcessMetrics:
    """The metrics of one process.

    Args:
        source: the process.
        above: the metrics of its parent, if it is a worker.
        is_cached: whether columns are read from the cache and written to it. If not, they are only in memory.
    """

    def __init__(
        self, source: ProcessSource, above: ProcessMetrics | None = None, is_cached: bool = True
    ) -> None:
        self.source = source
        self._above = above
        self._is_cached = is_cached
        segments = source.process.of_kind("metrics")
        self._shelves = [self._shelf(*each) for each in by_group(segments).items()]
        self._loaded: dict[int, dict[str, bytes]] = {}
        self._live = _sorted_rows([s for s in segments if s.sealed is None])

    @cached_property
    def counts(self) -> Counter[str]:
        """The number of values of each metric."""
        counts: Counter[str] = Counter()
        for part in (*(shelf.note["counts"] for shelf in self._shelves), _counts(self._live)):
            for number, count in part.items():
                name = self.source.process.names.get(int(number), LOST)[2]
                counts[name] += int(count)
        return counts

    @cached_property
    def steps(self) -> StepLog:
        """The changes of step and epoch."""
        clock, word = _columns(self._blobs(CONTEXT), 2)
        return StepLog(clock, word, None if self._above is None else self._above.steps)

    def values(self, name: str) -> Values:
        """Return the values of a metric in the order of their segments."""
        numbers = [str(n) for n, entry in self.source.process.names.items() if entry[2] == name]
        clock, word, bits = _columns((b for n in numbers for b in self._blobs(n)), 3)
        counted = (word & np.uint64(IMPLICIT_STEP - 1)).astype(np.int64)
        steps = counted - STEP_BIAS
        implicit = np.flatnonzero(word & np.uint64(IMPLICIT_STEP))
        times = clock.astype(np.int64)
        if len(implicit):
            known = self.steps.steps_at(times[implicit])
            steps[implicit] = np.where(known >= 0, known, counted[implicit])
        ranks = np.full(len(steps), self.source.rank, np.int64)
        return Values(ranks, steps, times + self.source.shift, bits.view(np.float64))

    def load(self) -> None:
        """Read all metrics at once, if they are all needed."""
        for at, shelf in enumerate(self._shelves):
            self._loaded[at] = shelf.get(shelf.stored)

    def _blobs(self, key: str) -> Iterable[bytes]:
        for at, shelf in enumerate(self._shelves):
            if key in shelf:
                blob = self._loaded[at].get(key) if at in self._loaded else None
                yield shelf.blob(key) if blob is None else blob
        if key in self._live:
            yield self._live[key]

    def _shelf(self, group: int, segments: list[RecordedSegment]) -> Shelf:
        """Return the columns of a group of segments."""
        marks = {str(segment.seq): fingerprint(segment) for segment in segments}
        path = shelf_path(self.source.run, self.source.process.name, "metrics", str(group))

        def make() -> Blobs:
            rows = _sorted_rows(segments)
            return rows, {"counts": _counts(rows)}

        return CachedShelf(path, marks, make) if self._is_cached else memory_shelf(*make())


def metric_columns(
    source: RunSource, ranks: Sequence[int] | None = None, is_cached: bool = True
) -> list[ProcessMetrics]:
    """Return the metrics of each process of some ranks, or of all."""
    columns = []
    mains: dict[str, ProcessMetrics] = {}
    for process in source.processes(ranks):
        above = mains.get(str(process.process.document["parent"])) if process.is_worker else None
        own = ProcessMetrics(process, above, is_cached)
        if not process.is_worker:
            mains[process.process.name] = own
        columns.append(own)
    return columns


def _sorted_rows(segments: list[RecordedSegment]) -> dict[str, bytes]:
    """Return the columns of each metric by the number of its name, and the changes of step."""
    parts = [segment.columns for segment in segments]
    if not parts:
        return {}
    clock, word, value, name_word = (np.concatenate(c) for c in zip(*parts, strict=True))
    rows: dict[str, bytes] = {}
    is_context = name_word == CONTEXT_NAME
    rows[CONTEXT] = clock[is_context].tobytes() + word[is_context].tobytes()
    number = np.where(is_context | (name_word == 0), 0, name_word & np.uint64(NAME_MASK))
    order = np.argsort(number, kind="stable")
    number = number[order]
    changes = np.flatnonzero(number[1:] != number[:-1]) + 1
    bounds = [0, *changes.tolist(), len(number)]
    for begin, end in itertools.pairwise(bounds):
        if end > begin and number[begin]:
            chosen = order[begin:end]
            columns = (clock[chosen], word[chosen], value[chosen])
            rows[str(int(number[begin]))] = b"".join(column.tobytes() for column in columns)
    return rows


def _counts(rows: dict[str, bytes]) -> dict[str, int]:
    """Return the number of values of each metric by the number of its name."""
    return {number: len(blob) // ROW for number, blob in rows.items() if number != CONTEXT}


def _columns(blobs: Iterable[bytes], count: int) -> list[Words]:
    """Return the columns of several blobs together."""
    parts = [[np.empty(0, np.uint64)] * count]
    for blob in blobs:
        words = np.frombuffer(blob, np.uint64)
        parts.append(np.split(words[: len(words) // count * count], count))
    return [np.concatenate(column) for column in zip(*parts, strict=True)]
