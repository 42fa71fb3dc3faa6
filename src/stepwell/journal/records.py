"""Records: what a follower of a journal gives out, with times as nanoseconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A span that began (``start``) or ended (``stop``); the latter has all that is known of it.

    ``id`` is unique in its process; ``parent`` is the nearest ancestor that is given out too.
    ``status`` is open for a start; for a stop it is ok, error, or unfinished: nobody saw its end.
    """

    type: str
    id: int
    parent: int | None
    name: str
    category: str | None
    thread: str
    start_ns: int
    end_ns: int | None
    status: str
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened: ``event``, ``error``, or ``attributes`` added late to its span."""

    type: str
    name: str
    span: int | None
    thread: str
    time_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)
