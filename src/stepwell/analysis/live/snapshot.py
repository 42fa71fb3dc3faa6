"""What is known of a running job at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.throughput import Throughput


@dataclass(frozen=True)
class RankNow:
    """What a rank is inside of: the spans of its main thread, the outermost first."""

    rank: int
    status: str
    step: int | None
    inside: tuple[str, ...]
    seconds: float
    """For how long it is in the innermost one, or in none."""


@dataclass(frozen=True)
class MetricNow:
    """A metric: its last value, and how it went."""

    name: str
    last: float
    step: int | None
    curve: tuple[float, ...]


@dataclass(frozen=True)
class Snapshot:
    """How a run is.

    ``time`` has the share of each phase in the last ``time_seconds`` of all ranks, the largest first; that is
    a minute, or less where there was less, or more spans than can be gone through. ``new`` are the
    findings that no earlier snapshot had, ``findings`` are all.
    """

    id: str
    name: str
    path: Path
    time_ns: int
    status: str
    error: str | None
    seconds: float
    attempt: int
    step: int | None
    epoch: int | None
    target: int | None
    steps_per_second: float | None
    seconds_left: float | None
    samples_per_second: float | None
    tokens_per_second: float | None
    throughput: Throughput | None
    """Over the whole training loop; the two above are of the latest update alone."""
    metrics: tuple[MetricNow, ...]
    time: dict[str, float]
    time_seconds: float
    ranks: tuple[RankNow, ...]
    not_followed: int
    """Ranks that are more than can be followed."""
    findings: tuple[Finding, ...] = field(default=())
    new: tuple[Finding, ...] = field(default=())

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status not in ("running", "empty")

    @property
    def done(self) -> float | None:
        """Which share of the steps is done."""
        if not self.target or self.step is None:
            return None
        return min(1.0, (self.step + 1) / self.target)
