"""One aligned clock for all processes of a run.

Every process times with its machine's monotonic clock and notes now and then what the wall clock
says. Processes of one boot share that clock exactly, so they share one offset: the median of all
their notes, which a wall clock that is stepped for a while does not move.
"""

from __future__ import annotations

from statistics import median_low
from typing import Any


def clock_offsets(documents: list[dict[str, Any]]) -> dict[str, int]:
    """Nanoseconds to add to a process's clock to get the time since the epoch, by boot id."""
    notes: dict[str, list[int]] = {}
    for about in documents:
        for clock, wall in about["anchors"]:
            notes.setdefault(about["boot"], []).append(wall - clock)
    return {boot: median_low(offsets) for boot, offsets in notes.items()}
