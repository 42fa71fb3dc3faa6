"""One aligned clock for all processes of a run.

Every process times with its machine's monotonic clock and notes now and then what the wall clock
says. Processes of one boot share that clock exactly, so they share one offset: the median of all
their notes, which a wall clock that is stepped for a while does not move.
"""

from __future__ import annotations

from typing import Any

from stepwell.journal.document import clock_offset


def clock_offsets(documents: list[dict[str, Any]]) -> dict[str, int]:
    """Nanoseconds to add to a process's clock to get the time since the epoch, by boot id."""
    anchors: dict[str, list[Any]] = {}
    for about in documents:
        anchors.setdefault(about["boot"], []).extend(about["anchors"])
    offsets = {boot: clock_offset(found) for boot, found in anchors.items()}
    return {boot: offset for boot, offset in offsets.items() if offset is not None}
