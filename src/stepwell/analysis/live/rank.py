"""One rank of a running job, followed from a minute ago on: its open spans, its step, its recent time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stepwell._core import clock
from stepwell.analysis.live.curves import LiveCurves
from stepwell.analysis.progress import is_overdue
from stepwell.analysis.ranks.stacks import MAIN
from stepwell.analysis.throughput import Throughput, rates_of
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
from stepwell.analysis.timeline.wall import Liveness, life
from stepwell.follower.document import ALWAYS
from stepwell.follower.log import LogFollower
from stepwell.follower.records import EventRecord, MetricRecord, SpanRecord
from stepwell.follower.trace import Follower
from stepwell.vocabulary import StandardTrainingJobSpanName

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
    """The spans of one thread in the last minute, updated record by record.

    Attributes:
        at_ns: the time of the latest change.
    """

    def __init__(self) -> None:
        self._spans: list[_LiveSpan] = []
        self._open: dict[int, _LiveSpan] = {}
        self._codes: dict[tuple[str, str | None], int] = {}
        self._names: dict[str, int] = {}
        self._around_steps: int | None = None
        self._since: int | None = None
        self._skipped: list[tuple[int, int]] = []
        self._steps_since: int | None = None
        self.at_ns: int | None = None

    @property
    def inside(self) -> list[SpanRecord]:
        """The open spans, the outermost first."""
        return [span.record for span in self._open.values()]

    def note_steps(self) -> None:
        """Note that a step was set: the time so far is not before the first step."""
        self._steps_since = 0

    def restart(self, since: int) -> None:
        """Forget open spans, because records before ``since`` are skipped. Time counts from there on."""
        for span in self._open.values():
            span.end_ns = self.at_ns or since
        self._open.clear()
        if self.at_ns is not None and self.at_ns < since:
            self._skipped.append((self.at_ns, since))
        self._since = self._since or since or None
        self.at_ns = since or None

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
        self.at_ns = max(time, self.at_ns or time)

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


LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value
RATES = {
    "samples": ("window_samples_per_second", "avg_samples_per_second"),
    "tokens": ("window_tokens_per_second", "avg_tokens_per_second"),
}
MOST_S = 0.5
"""Seconds that a look may take. New records that take longer to read are skipped."""
MOST_EVENTS = 1 << 20
"""Bytes of older events that are read."""
MOST_SPANS = 40_000
"""Older spans that are read. If a job records more, less than a minute is covered."""
MOST_SEGMENTS = 2
"""Older segments of metrics that are read."""


@dataclass(frozen=True)
class RankNow:
    """A rank and the open spans of its main thread, the outermost first."""

    rank: int
    status: str
    step: int | None
    inside: tuple[str, ...]
    seconds: float
    """Time in the innermost span, or since the last one ended."""


class RecentSpans(Follower):
    """The spans and events of a process in the last ``seconds``, and the spans that were open before.

    Attributes:
        since_ns: the time from which on all spans of ``thread`` are read; 0 for the beginning.
    """

    def __init__(self, folder: Path, seconds: float, thread: str) -> None:
        super().__init__(folder)
        left_out = self.skip_older(seconds, MOST_SPANS, MOST_EVENTS)
        self.since_ns = left_out.get(thread, 0)


class RecentLog(LogFollower):
    """The metrics of a process in the last ``seconds``.

    Attributes:
        contexts: time, step and epoch of each change; the reader removes them.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder)
        self.contexts: deque[tuple[int, int | None, int | None]] = deque()
        self.on_context = lambda *context: self.contexts.append(context)
        self.skip_older(seconds, MOST_SEGMENTS)


class LiveRank:
    """The open spans of a rank, its step and its speed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spans = RecentSpans(folder, KEPT_S, MAIN)
        self.log = RecentLog(folder, KEPT_S)
        self.lane = LiveLane()
        self.lane.restart(self.spans.since_ns)
        self.step: int | None = None
        self.epoch: int | None = None
        self.epoch_start: tuple[int, int] | None = None
        self.loop: dict[str, Any] = {}
        self.throughput: Throughput | None = None
        self.rates: dict[str, float] = {}
        self._steps: deque[tuple[int, int]] = deque()

    @property
    def document(self) -> dict[str, Any]:
        """The latest content of process.json."""
        return self.spans.document

    @property
    def rank(self) -> int:
        """The number of the rank."""
        rank = self.document.get("rank")
        return rank if isinstance(rank, int) else 0

    def look(self, curves: LiveCurves) -> None:
        """Read new records. If there are more than time allows, skip the rest."""
        if not self._read_log(curves):
            self.log = RecentLog(self.folder, 0)
            self._read_log(curves)
        if self.step is not None:
            self.lane.note_steps()
        if not self._read_spans():
            self.spans = RecentSpans(self.folder, 0, MAIN)
            self.lane.restart(self.spans.since_ns)
            self._read_spans()

    def _read_log(self, curves: LiveCurves) -> bool:
        """Return whether all new records could be read in time."""
        began = time.monotonic()
        while not self.log.over and (metrics := self.log.poll()):
            for record in metrics:
                self._take_contexts(record.time_ns)
                if isinstance(record, MetricRecord):
                    curves.take(self.rank, record, self.step)
            if time.monotonic() - began > MOST_S:
                return False
        self._take_contexts(ALWAYS)
        return True

    def _read_spans(self) -> bool:
        """Return whether all new records could be read in time."""
        began = time.monotonic()
        while records := self.spans.poll():
            for item in records:
                self._take(item)
            if time.monotonic() - began > MOST_S and not self.spans.over:
                return False
        return True

    def _take(self, item: SpanRecord | EventRecord) -> None:
        if not isinstance(item, SpanRecord):
            self._note_rates(item.attributes)
            return
        # The follower ends the open spans of a killed process; here they stay open, to be shown.
        if item.thread == MAIN and not (item.type == "stop" and self._was_killed(item)):
            self.lane.take(item)
        if item.name == LOOP:
            self.loop = item.attributes

    def _was_killed(self, item: SpanRecord) -> bool:
        return item.status == "unfinished" and self.spans.status == "killed"

    def _take_contexts(self, until: int) -> None:
        """Apply the changes of step and epoch up to this time."""
        contexts = self.log.contexts
        while contexts and contexts[0][0] <= until:
            at, step, epoch = contexts.popleft()
            is_next = None not in (epoch, self.epoch) and epoch != self.epoch
            if is_next and epoch is not None and step is not None:
                self.epoch_start = epoch, step
            self.step, self.epoch = step, epoch
            if step is not None and (not self._steps or self._steps[-1][1] != step):
                self._steps.append((at, step))

    def _note_rates(self, attributes: dict[str, Any]) -> None:
        self.throughput = rates_of(attributes) or self.throughput
        for kind, names in RATES.items():
            for name in names:
                value = attributes.get(name)
                if isinstance(value, int | float):
                    self.rates[kind] = float(value)
                    break

    def pace(self, until: int) -> float | None:
        """Return steps per second in the last minute; None with too few steps, or if the next is overdue."""
        while len(self._steps) > 2 and self._steps[0][0] < until - KEPT_S * SECOND:
            self._steps.popleft()
        if len(self._steps) < 2:
            return None
        (first_at, first), (last_at, last) = self._steps[0], self._steps[-1]
        if last <= first or last_at <= first_at:
            return None
        # A current step that takes longer than usual lowers the pace.
        typical = (last_at - first_at) / (last - first)
        waited = until - last_at if self.spans.status == "running" else 0
        times = [
            (b[0] - a[0]) / (b[1] - a[1]) / 1e9 for a, b in pairwise(self._steps) if b[1] > a[1]
        ]
        if is_overdue(waited / 1e9, times):
            return None
        return (last - first) * 1e9 / (last_at - first_at + max(0.0, waited - typical))

    def now(self, until: int) -> RankNow:
        """Return the open spans and the step of the rank."""
        inside = self.lane.inside
        since = inside[-1].start_ns if inside else self.lane.at_ns
        seconds = 0.0 if since is None else max(0, until - since) / 1e9
        names = tuple(record.name for record in inside)
        return RankNow(self.rank, self.spans.status, self.step, names, seconds)

    def until(self) -> int:
        """Return the time that the state describes: now, or the last sign of life of the rank."""
        alive, at = Liveness(self.spans.status, clock.wall()), self.lane.at_ns
        return life(self.document, alive, [] if at is None else [at])[1] or alive.now_ns
