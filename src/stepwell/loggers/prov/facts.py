"""What a run folder tells of where results come from: attempts, phases, what was logged, in plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.journal.liveness import worst_of

Ended = dict[str, tuple[str, int]]
"""How and when processes ended that still seem to run, by their names."""

MEASURES = ("system", "carbon", "flops_pb", "flops_pe", "execution_time")
"""Kinds of items that are numbers, or dicts of numbers."""


@dataclass
class ProcessFacts:
    """A rank in an attempt; ``end`` is None while it runs."""

    name: str
    attempt: int
    rank: int
    host: str
    pid: int
    status: str
    start: int
    end: int | None


@dataclass
class Phase:
    """A standard span of one process."""

    id: int
    process: str
    attempt: int
    rank: int
    name: str
    start: int
    end: int | None
    status: str
    attributes: dict[str, Any]


@dataclass
class Item:
    """Something that was logged, other than a number."""

    kind: str
    name: str
    process: str
    attempt: int
    rank: int
    time: int
    step: int | None
    epoch: int | None
    value: Any
    sha256: str | None
    size: int | None
    file: str | None
    media: str | None
    attributes: dict[str, Any]


@dataclass
class Checkpoint:
    """A checkpoint that was saved, as one process tells it."""

    process: str
    attempt: int
    rank: int
    span: int | None
    time: int
    attributes: dict[str, Any]


@dataclass
class Series:
    """All values of a metric in an attempt; ``last`` and ``last_step`` are those of the first rank."""

    name: str
    attempt: int
    kind: str
    ranks: list[int]
    count: int
    first_step: int | None
    last_step: int | None
    last: float
    least: float
    most: float
    start: int
    end: int
    sha256: str


@dataclass
class Facts:
    """All of it. ``attempts`` are as run.json has them, by their numbers."""

    id: str
    name: str
    folder: Path
    tags: list[str]
    config: dict[str, Any]
    attempts: dict[int, dict[str, Any]]
    processes: list[ProcessFacts]
    """Those of attempts in ``decided`` that still run have no say in how and when these ended."""
    decided: set[int] = field(default_factory=set)
    phases: list[Phase] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)

    def deciding(self, attempt: int | None = None) -> list[ProcessFacts]:
        """The processes, of one attempt or of all, that say how and when it ended."""
        return [
            process
            for process in self.processes
            if (attempt is None or process.attempt == attempt)
            and (process.end is not None or process.attempt not in self.decided)
        ]

    @property
    def status(self) -> str:
        """How the run ended, or that it goes on: its latest attempt decides."""
        latest = max((process.attempt for process in self.processes), default=0)
        return worst_of(process.status for process in self.deciding(latest))

    @property
    def ranks(self) -> int:
        """How many ranks recorded."""
        return len({process.rank for process in self.processes})
