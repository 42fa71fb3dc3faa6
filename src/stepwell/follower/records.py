"""The records that followers return. Times are in nanoseconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """The start or the stop of a span (``type``). The stop has all of its data.

    ``id`` is unique within the process; ``parent`` is the nearest ancestor that is returned too. ``status``
    is ``open`` for a start; for a stop it is ``ok``, ``error``, or ``unfinished`` (without a recorded end).
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
    """An event (``type``): ``event``, ``error``, or ``attributes`` that were added to its span later."""

    type: str
    name: str
    span: int | None
    thread: str
    time_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """A logged number. ``audience`` has the numbers of the loggers that it is meant for; it may be empty."""

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
    """Any other logged object: a parameter, a figure, a file, … (``kind``).

    A small one has a ``value``. Otherwise ``content`` is the sha256 of an artifact of ``size`` bytes, with
    the file name ``file`` and the media type ``media``.
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
    """The last record of a log: finished, failed, interrupted or killed."""

    status: str
    time_ns: int
    thread: str = ""
    type: str = "status"


LogRecord: TypeAlias = MetricRecord | ItemRecord
"""The records that backends receive."""
