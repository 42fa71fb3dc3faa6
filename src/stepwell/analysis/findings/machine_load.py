"""Other programs that use the CPUs of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepwell._core.text import percent
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding

FULL = 90.0
"""Percentage of the machine's CPUs from which on the machine counts as full."""
LESS = 0.8
"""Share of the initial CPU time: a run that gets less on a full machine shares it with others."""
STARVED = 50.0
"""Percentage of one CPU: a process that gets less on a full machine waits for the CPU in every step."""
FEWEST = 5
"""Least number of readings to call a process starved."""


@dataclass(frozen=True)
class Contention:
    """The use of a full machine, and the CPU time that a rank with its workers got.

    Attributes:
        busy: median percentage of all CPUs in use.
        own: percentage of one CPU that the rank used, for each reading.
        is_starved: whether other programs used the CPUs so much that they explain pauses in any phase.
    """

    busy: float
    own: tuple[float, ...]
    is_starved: bool

    @property
    def gets_less(self) -> bool:
        """Whether the rank got less at the end than at the start."""
        return len(self.own) >= 2 and self.own[-1] < LESS * self.own[0]


def contention(facts: Facts, rank: int) -> Contention | None:
    """Return the CPU use of a rank on a full machine; None if the machine was not full."""
    readings = facts.machine
    node = readings.filter(name="system/node_cpu_percent")["value"].to_numpy()
    own = readings.filter(name="system/cpu_percent")
    if not len(node) or own.is_empty() or (busy := float(np.median(node))) < FULL:
        return None
    used = float(own["value"].to_numpy().mean()) * own["rank"].n_unique()
    is_half_taken = used <= busy * _processors(facts) / 2
    mine = own.filter(rank=rank)["value"].to_numpy()
    is_starved = len(mine) >= FEWEST and is_half_taken and float(np.median(mine)) < STARVED
    return Contention(busy, tuple(mine.tolist()), is_starved)


def is_starved(facts: Facts, rank: int) -> bool:
    """Return whether other programs slowed down this rank in all phases."""
    shared = contention(facts, rank)
    return shared is not None and shared.is_starved


def find_busy_machine(facts: Facts) -> Iterator[Finding]:
    """Yield a note if a rank got little CPU time on a full machine."""
    loads = {rank: contention(facts, rank) for rank in facts.statuses}
    starved = {rank: shared for rank, shared in loads.items() if shared and shared.is_starved}
    if not starved:
        return
    busy = max(shared.busy for shared in starved.values())
    own = float(np.mean([value for shared in starved.values() for value in shared.own]))
    who = "this process" if facts.ranks == 1 else "each rank"
    yield Finding(
        "busy-machine",
        "note",
        f"Other programs use the machine: its CPUs are {percent(busy / 100)} busy, and {who} gets "
        f"{percent(own / 100)} of one CPU on average. Irregular pauses and slow steps are probably "
        "caused by this.",
        {"busy_percent": busy, "own_percent": own},
        ranks=tuple(starved) if facts.ranks > 1 else (),
        advice="Measure times on a machine without other load.",
        link=facts.command("plot", "system/*"),
    )


def _processors(facts: Facts) -> int:
    """Return the number of CPUs of all nodes together, at least 1."""
    attempts = facts.run.document.get("attempts") or [{}]
    count = (attempts[-1].get("host") or {}).get("cpu_count")
    nodes = len({document.get("host") for document in facts.latest})
    return (count if isinstance(count, int) and count > 0 else 1) * max(1, nodes)
