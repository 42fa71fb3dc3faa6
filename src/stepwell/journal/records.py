"""Records: what a follower of a journal gives out, with times as nanoseconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias


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


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """A number that was logged, for the loggers with the numbers in ``audience``; empty: for none."""

    name: str
    audience: tuple[int, ...]
    step: int | None
    epoch: int | None
    value: float
    time_ns: int
    thread: str
    type: str = "metric"


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """Anything else that was logged: a parameter, a figure, a file, … (``kind``).

    A small one is its ``value``. Else ``content`` is the sha256 of a file of the run's artifacts of
    so many bytes (``size``), which is to be called ``file`` and of the type ``media``.
    """

    kind: str
    name: str
    audience: tuple[int, ...]
    step: int | None
    epoch: int | None
    value: Any
    content: str | None
    file: str | None
    media: str | None
    size: int | None
    time_ns: int
    thread: str
    attributes: dict[str, Any] = field(default_factory=dict)
    type: str = "item"


@dataclass(frozen=True, slots=True)
class StatusRecord:
    """The last record of a log: it is finished, failed or killed."""

    status: str
    time_ns: int
    thread: str = ""
    type: str = "status"


LogRecord: TypeAlias = MetricRecord | ItemRecord
"""What backends are given."""
