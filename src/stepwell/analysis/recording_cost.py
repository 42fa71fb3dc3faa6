"""What recording itself cost.

In the time of the training it is an estimate from below: counted in the run, timed on the machine that reads
it and in a loop that does nothing else, since to measure it there would cost more. Between the passes of a
model, whose caches hold something else, the same takes a few times longer, and hooks come to it. What the
background threads took, they measured themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from stepwell.analysis.disk import disk_bytes
from stepwell.reading import RecordedRun
from stepwell.reading.spans import SpanReader
from stepwell.reading.tables import ProcessTables

SPAN = 3.2
METRIC = 2.2
"""Times the floor, which is what two looks at the clock in a context manager take in Python: what a span
and a number cost by the project's benchmarks. What pumps and workers do beside it is not in."""
ROUNDS = 2000


@dataclass(frozen=True)
class RecordingCost:
    """Of all ranks together.

    Attributes:
        spans, metrics: how many were recorded by main processes and workers.
        bytes: on disk.
        ns: how long main processes were at it at the least; an estimate from the counts.
        share: of the wall time of all ranks.
        beside_ns: processor time of the background threads and of finishing, as measured; None where no
            process told, and as of the last heartbeat where one was killed.
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
    documents: Iterable[dict[str, Any]] = (),
) -> RecordingCost:
    """Estimate what recording took at the least.

    ``spans`` are how many there are in all, and in main processes: workers record beside the training, not
    in its time. ``wall_ns`` is that of all ranks, ``documents`` are what is known of their processes.
    """
    total, own = spans
    ns = round(_floor_ns() * (SPAN * own + METRIC * metrics))
    share = ns / wall_ns if wall_ns else 0.0
    told = [d["recorder_cpu_ns"] for d in documents if d.get("recorder_cpu_ns")]
    beside = sum(told) if told else None
    return RecordingCost(total, metrics, _bytes(run), ns, share, beside)


def _bytes(run: RecordedRun) -> int:
    return disk_bytes(run.folder) if run.stored_bytes is None else run.stored_bytes


def count_spans(tables: ProcessTables) -> int:
    """How many spans a process recorded."""
    reader = SpanReader(tables.process)
    total = 0
    for segment in reader.segments:
        # A sealed segment says it itself, so that it need not be unpacked.
        known = segment.header.get("spans")
        total += known if isinstance(known, int) else len(reader.rows(segment).id)
    return total


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
