"""A span on its way from its start to its stop, and the records that it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stepwell.journal.format import ABANDONED, ERROR, TIME_MASK
from stepwell.journal.kept_names import Name
from stepwell.journal.records import EventRecord, SpanRecord

START, EVENT, STOP = range(3)
"""In this order where times are equal."""

Given = tuple[tuple[int, int, int], SpanRecord | EventRecord]
"""A record, behind what tells its place among others."""


@dataclass(slots=True)
class Followed:
    """A span that was given out as begun, and where it is now.

    ``end`` is its end word, once seen. ``order`` is its place among others, ``last`` that of its
    latest event, ``text`` where its attributes were read.
    """

    id: int
    parent: int | None
    name: Name
    thread: str
    start: int
    order: int
    seq: int
    slot: int
    end: int = 0
    last: int = 0
    text: tuple[int, int] = (0, 0)
    attributes: dict[str, Any] = field(default_factory=dict)
    late: dict[str, Any] = field(default_factory=dict)

    @property
    def due(self) -> int:
        """From when on its stop is given out."""
        return self.end & TIME_MASK


def start_of(span: Followed, offset: int) -> Given:
    """The record of its start; ``offset`` makes clock values times since the epoch."""
    record = _record(span, "start", None, "open", offset, dict(span.attributes))
    return (span.order, START, span.id), record


def stop_of(span: Followed, offset: int) -> Given:
    """The record of its end, behind those of its events."""
    end = max(span.end & TIME_MASK, span.start)
    status = "ok"
    if span.end & (ERROR | ABANDONED):
        status = "unfinished" if span.end & ABANDONED else "error"
    attributes = {**span.attributes, **span.late}
    record = _record(span, "stop", end + offset, status, offset, attributes)
    return (max(end, span.order, span.last), STOP, -span.id), record


def _record(
    span: Followed,
    type: str,
    end: int | None,
    status: str,
    offset: int,
    attributes: dict[str, Any],
) -> SpanRecord:
    name, category = span.name
    start = span.start + offset
    return SpanRecord(
        type, span.id, span.parent, name, category, span.thread, start, end, status, attributes
    )
