"""What a row of the tables is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.floor import Measured


@dataclass(frozen=True)
class Effort:
    """How long to measure: pairs of blocks, and spans of the row about growth."""

    rounds: int = 15
    long_spans: int = 1_000_000


class Skipped(Exception):
    """A row cannot be measured here; says why."""


@dataclass(frozen=True)
class Row:
    """One line of a table. ``measure`` runs in a process of its own.

    Attributes:
        name: for ``--only``.
        title: what is measured.
        measure: does it.
        target: at most this; for a peer, at least this many times cheaper than it.
        unit: of the value and the target.
        like: for a peer, the row of stepwell that does the same.
        environment: variables its process needs from the start.
    """

    name: str
    title: str
    measure: Callable[[Effort], Measured]
    target: float | None = None
    unit: str = "×"
    like: str = ""
    environment: tuple[tuple[str, str], ...] = ()
