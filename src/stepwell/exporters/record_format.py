"""Records as lines of text: short spans as one record, names and values that cannot break a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stepwell.telemetry.exporter import Record, SpanRecord

MAX_VALUE = 200
"""Longer values are cut in lines for people."""
_BARE = re.compile(r"[\w.:/+\-]+")


def join_short(records: Iterable[Record]) -> list[Record]:
    """Return the records with one of type ``complete`` in place of a start and its stop.

    Only if no record of the same thread is between them, so that records inside a span still follow its
    start.
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


def word(text: str) -> str:
    """Return a text as one word: in quotes if it contains spaces, quotes or invisible characters."""
    if _BARE.fullmatch(text) and text.isprintable():
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def value(item: Any, limit: int | None = None) -> str:
    """Return a value of an attribute as one word or as JSON."""
    if isinstance(item, str):
        text = word(item)
    else:
        text = json.dumps(item, ensure_ascii=False, default=str)
        if not text.isprintable():
            text = json.dumps(item, default=str)
    return text if limit is None or len(text) <= limit else f"{text[:limit]}…"


def pairs(items: Mapping[str, Any], limit: int | None = None) -> str:
    """Return ``name=value`` for each item, without those that are None."""
    shown = ((name, item) for name, item in items.items() if item is not None)
    return " ".join(f"{word(name)}={value(item, limit)}" for name, item in shown)
