"""One rank of a running job, followed."""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

from stepwell.analysis.live.curves import LiveCurves
from stepwell.analysis.live.phases import KEPT_S, SECOND, PhaseClock
from stepwell.analysis.live.recent import RecentLog, RecentSpans
from stepwell.analysis.live.snapshot import RankNow
from stepwell.analysis.progress import is_overdue
from stepwell.analysis.throughput import Throughput, rates_of
from stepwell.journal import clock
from stepwell.journal.follow_document import ALWAYS
from stepwell.journal.records import EventRecord, MetricRecord, SpanRecord
from stepwell.vocabulary import StandardTrainingJobSpanName

MAIN = "MainThread"
LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value
RATES = {
    "samples": ("window_samples_per_second", "avg_samples_per_second"),
    "tokens": ("window_tokens_per_second", "avg_tokens_per_second"),
}
MOST_S = 0.5
"""Seconds that a look may take; where more than that is new, the rest is skipped."""


class LiveRank:
    """What a rank is inside of, at which step it is and how fast it goes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spans = RecentSpans(folder, KEPT_S, MAIN)
        self.log = RecentLog(folder, KEPT_S)
        self.clock = PhaseClock()
        self.clock.restart(self.spans.since_ns)
        self.step: int | None = None
        self.epoch: int | None = None
        self.epoch_start: tuple[int, int] | None = None
        self.loop: dict[str, Any] = {}
        self.throughput: Throughput | None = None
        self.rates: dict[str, float] = {}
        self._steps: deque[tuple[int, int]] = deque()

    @property
    def about(self) -> dict[str, Any]:
        """process.json as last read."""
        return self.spans.about

    @property
    def rank(self) -> int:
        """Its number."""
        rank = self.about.get("rank")
        return rank if isinstance(rank, int) else 0

    def look(self, curves: LiveCurves) -> None:
        """Take in what is new; what is more than there is time for is skipped."""
        if not self._read_log(curves):
            self.log = RecentLog(self.folder, 0)
            self._read_log(curves)
        self.clock.has_steps = self.clock.has_steps or self.step is not None
        if not self._read_spans():
            self.spans = RecentSpans(self.folder, 0, MAIN)
            self.clock.restart(self.spans.since_ns)
            self._read_spans()

    def _read_log(self, curves: LiveCurves) -> bool:
        """Whether all of it could be read."""
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
        """Whether all of it could be read."""
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
        # What it was inside of when it was killed is given out as ended; here it is what to tell.
        if item.thread == MAIN and not (item.type == "stop" and self._was_killed(item)):
            self.clock.take(item)
        if item.name == LOOP:
            self.loop = item.attributes

    def _was_killed(self, item: SpanRecord) -> bool:
        return item.status == "unfinished" and self.spans.status == "killed"

    def _take_contexts(self, until: int) -> None:
        """Let the steps begin that began up to this time."""
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
        """Steps in a second, over the last minute; None while too little is known, or the next is overdue."""
        while len(self._steps) > 2 and self._steps[0][0] < until - KEPT_S * SECOND:
            self._steps.popleft()
        if len(self._steps) < 2:
            return None
        (first_at, first), (last_at, last) = self._steps[0], self._steps[-1]
        if last <= first or last_at <= first_at:
            return None
        # A step that takes longer than all before slows it down.
        typical = (last_at - first_at) / (last - first)
        waited = until - last_at if self.spans.status == "running" else 0
        times = [
            (b[0] - a[0]) / (b[1] - a[1]) / 1e9 for a, b in pairwise(self._steps) if b[1] > a[1]
        ]
        if is_overdue(waited / 1e9, times):
            return None
        return (last - first) * 1e9 / (last_at - first_at + max(0.0, waited - typical))

    def now(self, until: int) -> RankNow:
        """What it is inside of."""
        inside = self.clock.inside
        since = inside[-1].start_ns if inside else self.clock.at_ns
        seconds = 0.0 if since is None else max(0, until - since) / 1e9
        names = tuple(record.name for record in inside)
        return RankNow(self.rank, self.spans.status, self.step, names, seconds)

    def until(self) -> int:
        """As of when something is known of it: now, or when it ended."""
        if self.spans.status == "running":
            return clock.wall()
        known = [self.about.get("heartbeat"), self.clock.at_ns]
        return max((n for n in known if isinstance(n, int)), default=clock.wall())
