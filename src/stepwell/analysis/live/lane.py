"""The spans of the training thread in the last minute, as the columns that timelines are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.analysis.timeline import intervals
from stepwell.analysis.timeline.cells import fill, own_spans
from stepwell.analysis.timeline.iterations import StepWindows
from stepwell.analysis.timeline.lanes import FOREVER, LaneSpans
from stepwell.analysis.timeline.phases import (
    BEFORE,
    CODE_MASK,
    DURING,
    GARBAGE,
    HAS_NO_PHASE,
    INHERITED,
    ITERATION,
    LIKE_ITERATION,
    NOTHING,
    OWN_NAME,
    PHASES,
    code_of,
    final_phases,
)
from stepwell.follower.records import SpanRecord

SECOND = 1_000_000_000
KEPT_S = 60
_INHERITED: list[list[int]] = INHERITED.tolist()
_NONE = np.array([-1, -1])


@dataclass
class _LiveSpan:
    """A span that is open or ended in the last minute.

    Attributes:
        code: phase of its own time, without flags.
        flags: the flags of its name (see ``phases``).
        is_container: whether it contains a whole iteration: then its own name gets no line.
    """

    record: SpanRecord
    end_ns: int
    code: int
    flags: int
    is_container: bool = False

    @property
    def is_iteration(self) -> bool:
        return bool(self.flags & (ITERATION | LIKE_ITERATION))


class LiveLane:
    """The spans of one thread in the last minute, updated record by record."""

    def __init__(self) -> None:
        self._spans: list[_LiveSpan] = []
        self._open: dict[int, _LiveSpan] = {}
        self._codes: dict[tuple[str, str | None], int] = {}
        self._names: dict[str, int] = {}
        self._around_steps: int | None = None
        self._since: int | None = None
        self._skipped: list[tuple[int, int]] = []
        self._steps_since: int | None = None
        self._at: int | None = None

    @property
    def inside(self) -> list[SpanRecord]:
        """The open spans, the outermost first."""
        return [span.record for span in self._open.values()]

    @property
    def at_ns(self) -> int | None:
        """The time of the latest change."""
        return self._at

    def note_steps(self) -> None:
        """Note that a step was set: the time so far is not before the first step."""
        self._steps_since = 0

    def restart(self, since: int) -> None:
        """Forget open spans, because records before ``since`` are skipped. Time counts from there on."""
        for span in self._open.values():
            span.end_ns = self._at or since
        self._open.clear()
        if self._at is not None and self._at < since:
            self._skipped.append((self._at, since))
        self._since = self._since or since or None
        self._at = since or None

    def take(self, record: SpanRecord) -> None:
        """Add the start or the end of a span of this thread."""
        if record.type == "start":
            self._begin(record)
        else:
            self._end(record)

    def _begin(self, record: SpanRecord) -> None:
        self._move(record.start_ns)
        key = record.name, record.category
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = code_of(record.name, record.category or "")
            self._names.setdefault(record.name, len(self._names))
        outer = self._open.get(record.parent) if record.parent is not None else None
        around = NOTHING if outer is None else outer.code
        inherited = _INHERITED[around][code & CODE_MASK]
        if code & CODE_MASK == GARBAGE:
            inherited = GARBAGE
        span = _LiveSpan(record, FOREVER, inherited, code & ~CODE_MASK)
        self._spans.append(span)
        self._open[record.id] = span
        if span.is_iteration and self._steps_since is None:
            self._steps_since = record.start_ns
        if code & LIKE_ITERATION and self._around_steps is None:
            self._around_steps = self._names[record.name]

    def _end(self, record: SpanRecord) -> None:
        end = record.end_ns or record.start_ns
        self._move(end)
        ended = self._open.pop(record.id, None)
        if ended is None:
            return
        ended.end_ns = end
        if ended.is_iteration:
            for span in self._open.values():
                if span.record.start_ns <= ended.record.start_ns:
                    span.is_container = True

    def _move(self, time: int) -> None:
        if self._since is None:
            self._since = time
        self._at = max(time, self._at or time)

    def shares(self, until: int) -> dict[str, int]:
        """Return nanoseconds by phase in the minute before ``until``."""
        begin = (until // SECOND - KEPT_S) * SECOND
        self._spans = [span for span in self._spans if span.end_ns > begin]
        self._skipped = [skipped for skipped in self._skipped if skipped[1] > begin]
        if self._since is None or self._since >= until:
            return {}
        begin = max(begin, self._since)
        lane = self._lane(begin, until)
        collections = [(s.record.start_ns, s.end_ns) for s in self._spans if s.code == GARBAGE]
        pauses = _as_set(collections, begin, until)
        own = own_spans(
            lane, None, {number: ("", "", name) for name, number in self._names.items()}
        )
        final = final_phases(len(own.names), own.iteration)
        # Skipped time has a place and a line of its own, after all others.
        lines = (*PHASES, *own.names)
        final = np.vstack((final, np.full(final.shape[1], len(lines), np.uint8)))
        windows = self._windows(begin, until).overlaid(own.spans, own.places).overlaid(pauses)
        windows = windows.overlaid(_as_set(self._skipped, begin, until), len(final) - 1)
        cells = fill(lane, windows, final, begin, until).sum(axis=1).tolist()
        return {line: ns for line, ns in zip(lines, cells, strict=False) if ns}

    def _windows(self, begin: int, until: int) -> StepWindows:
        """Divide the time at the first step."""
        first = until if self._steps_since is None else min(max(self._steps_since, begin), until)
        places = np.array([BEFORE, DURING], np.uint8)
        return StepWindows(np.array([begin, first]), np.zeros(2, np.int64), places, _NONE, _NONE)

    def _lane(self, begin: int, until: int) -> LaneSpans:
        spans = [s for s in self._spans if s.code != GARBAGE and s.record.start_ns < until]
        starts = np.array([span.record.start_ns for span in spans], np.int64)
        ends = np.array([span.end_ns for span in spans], np.int64)
        named = [
            (row, self._names[span.record.name])
            for row, span in enumerate(spans)
            if span.flags & OWN_NAME and span.code in HAS_NO_PHASE and not span.is_container
        ]
        return LaneSpans(
            thread="",
            is_main=True,
            starts=np.clip(starts, begin, until),
            ends=np.clip(ends, begin, until),
            codes=np.array([span.code for span in spans], np.uint8),
            declared=np.empty((3, 0), np.int64),
            named=np.array(named, np.int64).reshape(-1, 2).T,
            around_steps=self._around_steps,
        )


def _as_set(pairs: Sequence[tuple[int, int]], begin: int, until: int) -> intervals.Set:
    """Return the instants in any of these intervals, from ``begin`` to ``until``."""
    starts, ends = np.array(pairs, np.int64).reshape(-1, 2).T
    return intervals.clip(intervals.union(starts, ends), begin, until)
