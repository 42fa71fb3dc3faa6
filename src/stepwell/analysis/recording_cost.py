"""The cost of recording.

The cost in training time is a lower bound: the number of records in the run times the cost of one, measured
in a tight loop on the machine that reads the run. Measuring it during training would cost more. Between the
passes of a model, with cold CPU caches, a record takes a few times longer, and hooks add to it. Background
threads measure their own CPU time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from stepwell.reading import RecordedRun
from stepwell.reading.spans import SpanReader
from stepwell.reading.tables import ProcessTables

SPAN = 3.2
METRIC = 2.2
"""Cost of a span and of a metric by the project's benchmarks, relative to the floor: a context manager that
reads the clock twice. Without the background work of pumps and workers."""
ROUNDS = 2000


@dataclass(frozen=True)
class RecordingCost:
    """The cost of recording, of all ranks together.

    Attributes:
        spans: number of spans of main processes and workers.
        metrics: number of metric values of main processes and workers.
        bytes: size on disk.
        ns: least time that it took in main processes, estimated from the counts.
        share: ``ns`` as a share of the wall time of all ranks.
        beside_ns: measured CPU time of the background threads and of finishing, up to the last heartbeat for
            a killed process; None if no process recorded it.
    """

    spans: int
    metrics: int
    bytes: int
    ns: int
    share: float
    beside_ns: int | None = None


def recording_cost(
    run: RecordedRun,
    spans: tuple[int, int],
    metrics: int,
    wall_ns: int,
    documents: Iterable[dict[str, Any]],
) -> RecordingCost:
    """Return the estimated cost of recording.

    Args:
        run: the run.
        spans: number of spans of all processes, and of main processes: workers do not delay training.
        metrics: number of metric values.
        wall_ns: sum of the wall times of all ranks.
        documents: the documents of the processes.
    """
    total, own = spans
    ns = round(_floor_ns() * (SPAN * own + METRIC * metrics))
    share = ns / wall_ns if wall_ns else 0.0
    measured = [d["recorder_cpu_ns"] for d in documents if d.get("recorder_cpu_ns")]
    size = disk_bytes(run.folder) if run.stored_bytes is None else run.stored_bytes
    return RecordingCost(total, metrics, size, ns, share, sum(measured) or None)


def count_spans(tables: ProcessTables) -> int:
    """Return the number of spans of a process."""
    reader = SpanReader(tables.process)
    total = 0
    for segment in reader.segments:
        # The header of a sealed segment has the count, so that it need not be unpacked.
        count = segment.header.get("spans")
        total += count if isinstance(count, int) else len(reader.rows(segment).id)
    return total


class _Floor:
    __slots__ = ("kept", "start")

    def __init__(self) -> None:
        self.kept: list[tuple[int, int]] = []
        self.start = 0

    def __enter__(self) -> None:
        self.start = perf_counter_ns()

    def __exit__(self, *error: object) -> None:
        self.kept.append((self.start, perf_counter_ns()))


def _floor_ns() -> float:
    """Return the time of the cheapest possible span on this machine, the best of a few tries."""
    times = []
    for _ in range(3):
        span = _Floor()
        began = perf_counter_ns()
        for _ in range(ROUNDS):
            with span:
                pass
        times.append((perf_counter_ns() - began) / ROUNDS)
    return min(times)


def disk_bytes(path: Path) -> int:
    """Return the disk usage of the files below a folder, without following links; 0 if unknown."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except (OSError, AttributeError):
                continue
    return total
