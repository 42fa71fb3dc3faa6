"""Other programs that take the processors of the machine from the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import percent

FULL = 90.0
"""Per cent of the machine's processors."""
LESS = 0.8
"""Of the processor time at the start: a run that gets less on a full machine shares it with others."""
STARVED = 50.0
"""Per cent of one processor: a process that gets less on a full machine waits for its turn in every step."""
FEWEST = 5
"""Readings for that."""


@dataclass(frozen=True)
class Contention:
    """The processors of a full machine, and what a rank with its workers got of them.

    Attributes:
        busy: per cent of all processors that were in use, the median.
        own: per cent of one processor that the rank used, by reading.
        is_taken: whether other programs used at least half of the machine.
    """

    busy: float
    own: tuple[float, ...]
    is_taken: bool

    @property
    def gets_less(self) -> bool:
        """Whether the rank got less at the end than at the start."""
        return len(self.own) >= 2 and self.own[-1] < LESS * self.own[0]

    @property
    def is_starved(self) -> bool:
        """Whether others had the processor for so much of the time that pauses anywhere are theirs."""
        if len(self.own) < FEWEST or not self.is_taken:
            return False
        return float(np.median(self.own)) < STARVED


def contention(facts: Facts, rank: int) -> Contention | None:
    """Return how a rank shared a full machine with other programs; None if the machine was not full."""
    readings = facts.machine
    node = readings.filter(name="system/node_cpu_percent")["value"].to_numpy()
    own = readings.filter(name="system/cpu_percent")
    if not len(node) or own.is_empty() or (busy := float(np.median(node))) < FULL:
        return None
    ranks = own["rank"].n_unique()
    used = float(own["value"].to_numpy().mean()) * ranks
    is_taken = used <= busy * _processors(facts) / 2
    return Contention(busy, tuple(own.filter(rank=rank)["value"].to_list()), is_taken)


def is_starved(facts: Facts, rank: int) -> bool:
    """Return whether other programs held this rank up in all parts of its steps."""
    shared = contention(facts, rank)
    return shared is not None and shared.is_starved


def rule(facts: Facts) -> Iterator[Finding]:
    """A note where a rank got little of a full machine."""
    found = {rank: contention(facts, rank) for rank in facts.statuses}
    starved = {rank: shared for rank, shared in found.items() if shared and shared.is_starved}
    if not starved:
        return
    busy = max(shared.busy for shared in starved.values())
    own = float(np.mean([value for shared in starved.values() for value in shared.own]))
    who = "this process" if facts.ranks == 1 else "each rank"
    yield Finding(
        "busy-machine",
        "note",
        f"Other programs use the machine: its processors are {percent(busy / 100)} busy, and {who} gets "
        f"{percent(own / 100)} of one on average. Pauses and slow steps without a rhythm probably come "
        "from that.",
        {"busy_percent": busy, "own_percent": own},
        ranks=tuple(starved) if facts.ranks > 1 else (),
        advice="Measure times on a machine that is not shared.",
        link=facts.command("plot", "system/*"),
    )


def _processors(facts: Facts) -> int:
    """How many the machine has, at least 1: all of its nodes together."""
    attempts = facts.run.about.get("attempts") or [{}]
    count = (attempts[-1].get("host") or {}).get("cpu_count")
    nodes = len({document.get("host") for document in facts.latest})
    return (count if isinstance(count, int) and count > 0 else 1) * max(1, nodes)
