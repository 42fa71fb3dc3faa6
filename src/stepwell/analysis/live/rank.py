"""One rank of a running job, followed from a minute ago on."""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

from stepwell._core import clock
from stepwell.analysis.live.curves import LiveCurves
from stepwell.analysis.live.lane import KEPT_S, SECOND, LiveLane
from stepwell.analysis.live.snapshot import RankNow
from stepwell.analysis.progress import is_overdue
from stepwell.analysis.ranks.stacks import MAIN
from stepwell.analysis.throughput import Throughput, rates_of
from stepwell.analysis.timeline.wall import Liveness, life
from stepwell.follower.document import ALWAYS
from stepwell.follower.log import LogFollower
from stepwell.follower.records import EventRecord, MetricRecord, SpanRecord
from stepwell.follower.trace import Follower
from stepwell.vocabulary import StandardTrainingJobSpanName

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
