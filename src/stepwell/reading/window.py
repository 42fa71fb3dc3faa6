"""Windows: a stretch of time of one process, and which segments have something of it.

A window is a half-open interval on the clock of the process. The header of a sealed segment tells when
its records begin and end, so that a segment outside of the window need not be unpacked.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from stepwell.journal.format import TIME_MASK
from stepwell.reading.documents import MAX_TIME, is_count
from stepwell.reading.segments import Segment

Window: TypeAlias = tuple[int, int]

ALWAYS: Window = (0, MAX_TIME + 1)


def extent(header: dict[str, Any]) -> Window | None:
    """When the first record of a sealed segment began and the last one ended; None if it does not tell.

    Segments that were sealed before they told when they end have the starts of two spans alone, which
    need not be the earliest and the latest.
    """
    time, until = header.get("time"), header.get("until")
    if not isinstance(time, list) or len(time) != 2:
        return None
    if not all(is_count(n, MAX_TIME) for n in (*time, until)):
        return None
    return time[0], max(time[1], until or 0)


def ends_of(segment: Segment) -> int:
    """When the last span of a segment ended, as far as that is known without unpacking it."""
    if segment.sealed is None:
        _, start, end = segment.columns
        return int(max((end & TIME_MASK).max(initial=0), start.max(initial=0)))
    known = extent(segment.header)
    return 0 if known is None else known[1]


def may_touch(segment: Segment, window: Window) -> bool:
    """Whether a segment may have records within the window."""
    known = None if segment.sealed is None else extent(segment.header)
    return known is None or (known[0] < window[1] and known[1] >= window[0])


def spans_touched(segments: list[Segment], window: Window) -> list[Segment]:
    """Those span segments of one lane, given in order, during which something of the window happened.

    What is open when a segment ends goes on in the next one, so a segment lasts until that begins:
    for every instant there is one that knows all spans that were open then.
    """
    found = []
    known = [None if s.sealed is None else extent(s.header) for s in segments]
    for i, segment in enumerate(segments):
        this, following = known[i], known[i + 1] if i + 1 < len(segments) else None
        if this is None or (i + 1 < len(segments) and following is None):
            found.append(segment)
            continue
        last = this[1] if following is None else max(this[1], following[0])
        if following is None and segment.header.get("open"):
            last = MAX_TIME
        if this[0] < window[1] and last >= window[0]:
            found.append(segment)
    return found
