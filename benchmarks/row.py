"""A row of the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.floor import Measured


@dataclass(frozen=True)
class Effort:
    """How much to measure: pairs of blocks, and spans for the row on growth."""

    rounds: int = 15
    long_spans: int = 1_000_000


class Skipped(Exception):
    """Raised, with the reason, if a row cannot be measured here."""


@dataclass(frozen=True)
class Row:
    """One line of a table. ``measure`` runs in a separate process.

    Attributes:
        name: for ``--only``.
        title: description of the measurement.
        measure: function that measures.
        target: upper limit; for a peer, how many times cheaper stepwell must be.
        unit: of the value and the target.
        like: for a peer, the row of stepwell that does the same.
        environment: environment variables of the process.
    """

    name: str
    title: str
    measure: Callable[[Effort], Measured]
    target: float | None = None
    unit: str = "×"
    like: str = ""
    environment: tuple[tuple[str, str], ...] = ()
