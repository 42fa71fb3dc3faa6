"""Events: named instants with attributes."""

from __future__ import annotations

import datetime
import traceback
from collections.abc import Mapping
from enum import Enum
from typing import Any

from stepwell.journal import clock
from stepwell.journal.errors import misuse
from stepwell.journal.journal import ERROR_EVENT
from stepwell.journal.masking import mask
from stepwell.journal.values import cut, number, shown, text_of
from stepwell.telemetry.attributes import Attributes

Timestamp = float | datetime.datetime
"""Seconds since the epoch, or a datetime."""
METADATA = "metadata"
"""Category of an event that is a pair of texts: its name, and its attribute ``value``."""
LAST_CLOCK = 1 << 60
"""Times from here on are some decades away, and the journal has no place for them."""


class Event:
    """Something that happened at an instant. ``clock`` is that instant on the journal's clock."""

    __slots__ = ("attributes", "clock", "name")

    def __init__(self, name: str, attributes: Attributes, clock: int) -> None:
        self.name = name
        self.attributes = attributes
        self.clock = clock

    @classmethod
    def create(
        cls,
        name: str | Enum,
        attributes: Mapping[str, Any] | None = None,
        timestamp: Timestamp | None = None,
    ) -> Event:
        """An event that happens now, or at a given time."""
        return cls(name_of(name), as_attributes(attributes), clock_at(timestamp))

    @classmethod
    def of_error(
        cls,
        message: str | None = None,
        exception: BaseException | None = None,
        timestamp: Timestamp | None = None,
    ) -> Event:
        """The event that stands for an error: a message, an exception, or both."""
        about = Attributes()
        if message is not None:
            about.add("error_message", cut(str(mask(text_of(message))), 2000))
        if isinstance(exception, BaseException):
            lines = traceback.format_exception(type(exception), exception, exception.__traceback__)
            about.add("exception_type", type(exception).__qualname__)
            about.add("exception_message", cut(str(mask(text_of(exception))), 2000))
            about.add("exception_traceback", cut(str(mask("".join(lines))), 8000))
        elif exception is not None:
            misuse("exception", f"an error's exception is {shown(exception)}: write an exception")
        return cls(ERROR_EVENT, about, clock_at(timestamp))

    @property
    def time_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return clock.to_wall(self.clock)

    @property
    def timestamp_msec(self) -> int:
        """Milliseconds since the epoch."""
        return self.time_ns // 1_000_000

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return (self.name, self.clock, self.attributes) == (
            other.name,
            other.clock,
            other.attributes,
        )

    def __hash__(self) -> int:
        return hash((self.name, self.clock))

    def __repr__(self) -> str:
        return f"<event {self.name} {dict(self.attributes)}>"


def name_of(name: str | Enum) -> str:
    """The text that names a span or event; of an Enum member that is its value."""
    text = name.value if isinstance(name, Enum) else name
    if not isinstance(text, str) or not text:
        misuse("name", f"a span or event is named {shown(name)}: write a non-empty string")
        return shown(name)
    return str(text)


def as_attributes(values: Mapping[str, Any] | None) -> Attributes:
    """A set of attributes of one's own, of the type it was given as."""
    if isinstance(values, Attributes):
        return values.copy()
    if values is not None and not isinstance(values, Mapping):
        misuse(
            "attributes", f"attributes are {shown(values)}: write a dict, {{'reason': 'warm-up'}}"
        )
        return Attributes()
    return Attributes(values)


def clock_at(timestamp: Timestamp | None, earliest: int = 1) -> int:
    """A point in time on the journal's clock, no earlier than ``earliest``; now when none is given."""
    if timestamp is None:
        return clock.now()
    try:
        at = (
            timestamp.timestamp() if isinstance(timestamp, datetime.datetime) else number(timestamp)
        )
        is_time = at is not None and timestamp is not True and at * 1e9 >= clock.EARLIEST_WALL
        found = clock.from_wall(round(at * 1e9)) or -1 if is_time and at is not None else 0
    except (TypeError, ValueError, OverflowError, OSError):
        found = 0
    if not found or found >= LAST_CLOCK:
        misuse(
            "timestamp",
            f"timestamp is {shown(timestamp)}: write seconds since the epoch, such as time.time(); "
            "now is taken instead",
        )
        return clock.now()
    return max(found, earliest)
