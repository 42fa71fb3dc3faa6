"""What recording itself cost, as an estimate: counted in the run, timed on the machine that reads it."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns

from stepwell.analysis.disk import disk_bytes
from stepwell.reading import RecordedRun
from stepwell.reading.spans import SpanReader

SPAN = 3.2
METRIC = 2.2
"""Times the floor, which is what two looks at the clock in a context manager take in Python: what a span
and a number may cost at most by the project's benchmarks. What pumps and workers do beside it is not in."""
ROUNDS = 2000


@dataclass(frozen=True)
class RecordingCost:
    """Of all ranks together.

    Attributes:
        spans, metrics: how many were recorded by main processes and workers.
        bytes: on disk.
        ns: about how long main processes were at it; an estimate from the counts.
        share: of the wall time of all ranks.
    """

    spans: int
    metrics: int
    bytes: int
    ns: int
    share: float


def recording_cost(run: RecordedRun, metrics: int, wall_ns: int) -> RecordingCost:
    """Count what a run recorded and estimate what that took. ``wall_ns`` is that of all ranks."""
    spans, own = _count(run)
    ns = round(_floor_ns() * (SPAN * own + METRIC * metrics))
    return RecordingCost(spans, metrics, disk_bytes(run.path), ns, ns / wall_ns if wall_ns else 0.0)


def _count(run: RecordedRun) -> tuple[int, int]:
    """Spans in all, and those of main processes: workers record beside the training, not in its time."""
    total = own = 0
    for tables in run.by_process(partial=True):
        reader = SpanReader(tables.process)
        for segment in reader.segments:
            # A sealed segment says it itself, so that it need not be unpacked.
            known = segment.header.get("spans")
            count = known if isinstance(known, int) else len(reader.rows(segment).id)
            total += count
            own += count if tables.process.about["role"] != "worker" else 0
    return total, own


class _Floor:
    __slots__ = ("kept", "start")

    def __init__(self, kept: list[tuple[int, int]]) -> None:
        self.kept = kept
        self.start = 0

    def __enter__(self) -> None:
        self.start = perf_counter_ns()

    def __exit__(self, *error: object) -> None:
        self.kept.append((self.start, perf_counter_ns()))


def _floor_ns() -> float:
    """What the cheapest record of a span could take here, the best of a few tries."""
    best = float("inf")
    for _ in range(3):
        kept: list[tuple[int, int]] = []
        span = _Floor(kept)
        began = perf_counter_ns()
        for _ in range(ROUNDS):
            with span:
                pass
        best = min(best, (perf_counter_ns() - began) / ROUNDS)
    return best
