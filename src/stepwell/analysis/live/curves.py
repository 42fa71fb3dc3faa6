"""The metrics of a running job: those logged before the first look, and new ones."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import polars as pl

from stepwell.analysis.findings.curves import goal_of
from stepwell.follower.records import MetricRecord
from stepwell.reading import RecordedRun
from stepwell.reading.run import SYSTEM

KEPT = 512
"""Number of values of each metric that are kept."""


@dataclass(frozen=True)
class MetricNow:
    """A metric: its last value and its curve."""

    name: str
    last: float
    step: int | None
    curve: tuple[float, ...]


class LiveCurves:
    """The last values of each metric, from the lowest rank that logs it.

    Attributes:
        epoch_start: an epoch and a step near its beginning, from metrics before the first look.
    """

    def __init__(self, run: RecordedRun) -> None:
        self._points: dict[str, deque[tuple[int | None, float]]] = {}
        self._ranks: dict[str, int] = {}
        self._seen: dict[tuple[int, str], int] = {}
        self.epoch_start: tuple[int, int] | None = None
        self._read(run)

    def _read(self, run: RecordedRun) -> None:
        table = (
            run.metrics()
            .filter(~pl.col("name").str.starts_with(SYSTEM))
            .select("name", "rank", "step", "epoch", "time_ns", "value")
            .collect(engine="streaming")
        )
        epochs = table.drop_nulls(["epoch", "step"]).group_by("epoch").agg(pl.col("step").min())
        self.epoch_start = max(epochs.iter_rows(), default=None)
        is_lowest = pl.col("rank") == pl.col("rank").min().over("name")
        table = table.filter(is_lowest).sort("time_ns")
        for (name,), part in table.group_by("name", maintain_order=True):
            last = part.tail(KEPT)
            pairs = zip(last["step"].to_list(), last["value"].to_list(), strict=True)
            rank = int(part["rank"][0])
            self._points[str(name)] = deque(pairs, KEPT)
            self._ranks[str(name)] = rank
            self._seen[rank, str(name)] = int(part["time_ns"][-1])

    def take(self, rank: int, record: MetricRecord, step: int | None) -> None:
        """Add a value that was logged. ``step`` is the step in progress at that time, if any."""
        name = record.name
        if name.startswith(SYSTEM) or record.time_ns <= self._seen.get((rank, name), 0):
            return
        if rank > self._ranks.setdefault(name, rank):
            return
        if rank < self._ranks[name]:
            self._ranks[name] = rank
            self._points.pop(name, None)
        at = record.step if step is None else step
        self._points.setdefault(name, deque(maxlen=KEPT)).append((at, record.value))

    def latest(self, most: int) -> tuple[MetricNow, ...]:
        """Return the metrics that have a goal first (lower or higher is better), then the others."""
        metrics = []
        for name in sorted(self._points, key=lambda name: (goal_of(name) is None, name))[:most]:
            step, last = self._points[name][-1]
            curve = tuple(value for _, value in self._points[name] if math.isfinite(value))
            metrics.append(MetricNow(name, last, step, curve))
        return tuple(metrics)
