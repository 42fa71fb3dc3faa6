"""The step and epoch at a time, for records that do not contain them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.journal.format import CONTEXT_NAME, EPOCH_MASK, STEP_SHIFT
from stepwell.reading.documents import MAX_TIME, is_count
from stepwell.reading.process import Process
from stepwell.reading.segments import RecordedSegment, Window, Words

Ints = NDArray[np.int64]
MAX_WORD = (1 << 64) - 1


class ContextLog:
    """The changes of step and epoch in a process.

    Args:
        process: the process.
        sparse: whether to unpack segments only when needed, as far as their headers allow that: for
            reading a small part of a run.
        above: the log of the parent process, which has the same clock: for a worker that sets only one of
            the two values, or none.
    """

    def __init__(
        self, process: Process, sparse: bool = False, above: ContextLog | None = None
    ) -> None:
        self._above = above
        self._parts = [_SegmentChanges(segment) for segment in process.of_kind("metrics")]
        for part in self._parts:
            if not sparse:
                part.load()
        self._join()
        self.bare = {part.key for part in self._parts if part.is_bare}
        """Segments, by process and number, that contain changes of step and epoch only."""
        if not sparse:
            # The arrays are joined: do not keep them twice.
            self._parts = []

    @property
    def is_known(self) -> bool:
        """Whether a step or epoch was ever set."""
        return len(self._clock) > 0

    @property
    def has_steps(self) -> bool:
        """Whether a step was ever set, by this process or its parent."""
        return self._has_own_steps or (self._above is not None and self._above.has_steps)

    @property
    def _has_own_steps(self) -> bool:
        return bool((self.name_word >> STEP_SHIFT).any()) or any(p.has_steps for p in self._parts)

    def at(self, clock: NDArray[Any]) -> tuple[Ints, Ints]:
        """Return step and epoch at each of these times, -1 for none."""
        step, epoch = self._own_at(clock)
        if self._above is not None and ((step < 0) | (epoch < 0)).any():
            step_above, epoch_above = self._above.at(clock)
            step = np.where(step < 0, step_above, step)
            epoch = np.where(epoch < 0, epoch_above, epoch)
        return step, epoch

    def _own_at(self, clock: NDArray[Any]) -> tuple[Ints, Ints]:
        if not len(self._clock):
            none = np.full(len(clock), -1, np.int64)
            return none, none
        self._load(lambda part: part.is_around(clock))
        index = np.searchsorted(self._clock, clock.astype(np.uint64), side="right")
        word = np.where(index > 0, self.name_word[np.maximum(index, 1) - 1], 0)
        return _split(word)

    def changes(self) -> tuple[Ints, Ints, Ints]:
        """Return the times of changes, and the step and epoch from then on, -1 for none."""
        self._load(lambda part: True)
        return self._clock.astype(np.int64), *_split(self.name_word)

    def window(self, first: int, end: int) -> Window | None:
        """Return when the first of these steps began and the last one ended; None if there are none.

        Both the steps and the times are half-open: ``end`` is not included.
        """
        if self._above is not None and not self._has_own_steps:
            return self._above.window(first, end)
        self._load(lambda part: part.may_have(first, end))
        while True:
            steps, _ = _split(self.name_word)
            rows = np.flatnonzero((steps >= first) & (steps < end))
            if not len(rows):
                return None
            after = int(rows[-1]) + 1
            last = int(self._clock[after]) if after < len(self._clock) else MAX_TIME
            # Another thread may have set the step in between, which the header of its segment does not show.
            edges = np.array([self._clock[rows[-1]], last], np.uint64)
            if not self._load(partial(_SegmentChanges.is_within, edges=edges)):
                return int(self._clock[rows[0]]), last

    def latest(self) -> tuple[int | None, int | None]:
        """Return the latest step and epoch."""
        word = int(self.name_word[-1]) if len(self.name_word) else 0
        step, epoch = (word >> STEP_SHIFT) - 1, (word & EPOCH_MASK) - 1
        above = (None, None) if self._above is None else self._above.latest()
        return (step if step >= 0 else above[0]), (epoch if epoch >= 0 else above[1])

    def _load(self, wanted: Callable[[_SegmentChanges], bool]) -> bool:
        """Unpack the wanted segments. Return whether there were any."""
        parts = [part for part in self._parts if not part.is_loaded and wanted(part)]
        for part in parts:
            part.load()
        if parts:
            self._join()
        return bool(parts)

    def _join(self) -> None:
        clock = np.concatenate([np.empty(0, np.uint64), *(part.clock for part in self._parts)])
        word = np.concatenate([np.empty(0, np.uint64), *(part.word for part in self._parts)])
        order = np.argsort(clock, kind="stable")
        self._clock = clock[order]
        self.name_word = word[order]


class _SegmentChanges:
    """The changes in one segment: all of them, or the first and the last from its header."""

    def __init__(self, segment: RecordedSegment) -> None:
        self._segment = segment
        self._steps = (0, -1)
        self.clock: Words = np.empty(0, np.uint64)
        self.word: Words = np.empty(0, np.uint64)
        summary = None if segment.sealed is None else segment.header.get("context")
        self.is_loaded = self.is_bare = False
        self.key = segment.process, segment.seq
        if not _is_summary(summary):
            self.load()
        elif summary:
            self.clock = np.array(summary[0:2], np.uint64)
            self.word = np.array(summary[2:4], np.uint64)
            self._steps = (summary[4] - 1, summary[5] - 1)
        else:
            self.is_loaded = True

    @property
    def has_steps(self) -> bool:
        return self._steps[1] >= 0

    def load(self) -> None:
        """Unpack the segment."""
        self.is_loaded = True
        clock, word, _, name = self._segment.columns
        changes = name == CONTEXT_NAME
        # A live segment may contain more the next time.
        self.is_bare = self._segment.sealed is not None and bool(changes.all())
        self.clock, self.word = clock[changes], word[changes]

    def may_have(self, first: int, end: int) -> bool:
        """Return whether one of these steps may have been set in it."""
        return self._steps[0] < end and self._steps[1] >= first

    def is_around(self, clock: NDArray[Any]) -> bool:
        """Return whether one of these times is between its first and last change."""
        return bool(((clock > self.clock[0]) & (clock < self.clock[-1])).any())

    def is_within(self, edges: Words) -> bool:
        """Return whether it may have changes between these times."""
        return bool(self.clock[0] < edges[1] and self.clock[-1] > edges[0])


def _split(words: Words) -> tuple[Ints, Ints]:
    """Return the steps and epochs in context words, -1 for none."""
    step = (words >> STEP_SHIFT).astype(np.int64) - 1
    return step, (words & EPOCH_MASK).astype(np.int64) - 1


def _is_summary(value: Any) -> bool:
    """Return whether this is a valid summary of context rows (see ``journal.seal``)."""
    is_list = isinstance(value, list) and len(value) in (0, 6)
    return is_list and all(is_count(n, MAX_WORD) for n in value)
