"""Short spans as one record: began and ended, with nothing in between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stepwell.telemetry.exporter import Record, SpanRecord


def join_short(records: Iterable[Record]) -> list[Record]:
    """The same records, but one of type ``complete`` for a start and its stop.

    Only where nothing of the same thread came between, so what is inside of a span still comes
    behind its start.
    """
    joined: list[Record | None] = []
    latest: dict[str, int] = {}
    for record in records:
        at = latest.get(record.thread)
        start = None if at is None else joined[at]
        if at is not None and _begins(start, record):
            joined[at] = None
            record = replace(record, type="complete")
        latest[record.thread] = len(joined)
        joined.append(record)
    return [record for record in joined if record is not None]


def _begins(start: Record | None, stop: Record) -> bool:
    return (
        isinstance(start, SpanRecord)
        and isinstance(stop, SpanRecord)
        and (start.type, stop.type, start.id) == ("start", "stop", stop.id)
    )
