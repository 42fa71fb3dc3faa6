"""The state of a running job at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.throughput import Throughput


@dataclass(frozen=True)
class RankNow:
    """A rank and the open spans of its main thread, the outermost first."""

    rank: int
    status: str
    step: int | None
    inside: tuple[str, ...]
    seconds: float
    """Time in the innermost span, or since the last one ended."""


@dataclass(frozen=True)
class MetricNow:
    """A metric: its last value and its curve."""

    name: str
    last: float
    step: int | None
    curve: tuple[float, ...]


@dataclass(frozen=True)
class Snapshot:
    """The state of a run.

    ``time`` has the share of each phase in the last ``time_seconds`` of all ranks, the largest first. That is
    a minute, or less if the run is younger or records too many spans to read. ``findings`` are all findings,
    ``new`` those that no earlier snapshot had.
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
    """Over the whole training loop; the two rates above are from the latest update alone."""
    metrics: tuple[MetricNow, ...]
    time: dict[str, float]
    time_seconds: float
    ranks: tuple[RankNow, ...]
    not_followed: int
    """Number of ranks that are not followed."""
    findings: tuple[Finding, ...] = field(default=())
    new: tuple[Finding, ...] = field(default=())

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.status not in ("running", "empty")

    @property
    def done(self) -> float | None:
        """Share of the steps that are done."""
        if not self.target or self.step is None:
            return None
        return min(1.0, (self.step + 1) / self.target)
