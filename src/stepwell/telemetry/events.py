"""Events, which are named instants, and the attributes of spans and events."""

from __future__ import annotations

import datetime
import traceback
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

from stepwell._core import clock
from stepwell._core.errors import StepwellError, report_misuse
from stepwell._core.masking import mask
from stepwell._core.values import cut, number, shown, text_of
from stepwell.journal.format import ERROR_EVENT

Timestamp = float | datetime.datetime
"""Seconds since the epoch, or a datetime."""
METADATA = "metadata"
"""Category of events that are a pair of texts: the name, and the attribute ``value``."""
LAST_CLOCK = 1 << 60
"""First time, decades from now, that the journal cannot store."""

T = TypeVar("T")


class Attributes(Mapping[str, Any]):
    """A set of named values.

    Any value is accepted; values without a JSON form are stored as a description.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        for name, value in (values or {}).items():
            self.add(name, value)

    def add(self, name: str, value: Any) -> Attributes:
        """Set a value; return the set itself, so that calls can be chained."""
        if not isinstance(name, str) or not name:
            report_misuse(
                "attribute name",
                f"the name of an attribute must be a non-empty string, got {shown(name)}",
            )
            name = shown(name)
        self._values[name] = value
        return self

    def add_attributes(self, other: Mapping[str, Any]) -> Attributes:
        """Set all values of another set."""
        for name, value in other.items():
            self.add(name, value)
        return self

    def copy(self) -> Attributes:
        twin = object.__new__(type(self))
        twin._values = dict(self._values)
        return twin

    @classmethod
    def merge(cls, first: Mapping[str, Any], second: Mapping[str, Any]) -> Attributes:
        """Return the values of both; the second takes precedence."""
        return Attributes(first).add_attributes(second)

    # Typed values

    def get_bool_value(self, name: str) -> bool | None:
        """Return a value, None if it is missing. Raise StepwellError if it is not a bool."""
        return self._typed(name, bool, "a bool")

    def get_int_value(self, name: str) -> int | None:
        """Return a value, None if it is missing. Raise StepwellError if it is not an int."""
        return self._typed(name, int, "an int")

    def get_float_value(self, name: str) -> float | None:
        """Return a value as float, None if it is missing. Raise StepwellError if it is not a number."""
        value = self._values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return self._typed(name, float, "a float")

    def get_str_value(self, name: str) -> str | None:
        """Return a value, None if it is missing. Raise StepwellError if it is not a str."""
        return self._typed(name, str, "a str")

    def _typed(self, name: str, kind: type[T], wanted: str) -> T | None:
        value = self._values.get(name)
        # A bool is an int to Python, but not to a person.
        is_bool = isinstance(value, bool)
        if value is None or (isinstance(value, kind) and is_bool == (kind is bool)):
            return value
        raise StepwellError(f"attribute {name} must be {wanted}, got {value!r}")

    # Mapping and JSON

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Attributes):
            return self._values == other._values
        return isinstance(other, Mapping) and self._values == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> dict[str, Any]:
        return dict(self._values)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Attributes:
        return cls(values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values!r})"


class Event:
    """A named instant with attributes. ``clock`` is its time on the journal's clock."""

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
        """Return an event that happens now, or at a given time."""
        return cls(name_of(name), as_attributes(attributes), clock_at(timestamp))

    @classmethod
    def of_error(
        cls,
        message: str | None = None,
        exception: BaseException | None = None,
        timestamp: Timestamp | None = None,
    ) -> Event:
        """Return the event for an error: a message, an exception, or both."""
        attributes = Attributes()
        if message is not None:
            attributes.add("error_message", cut(str(mask(text_of(message))), 2000))
        if isinstance(exception, BaseException):
            lines = traceback.format_exception(type(exception), exception, exception.__traceback__)
            attributes.add("exception_type", type(exception).__qualname__)
            attributes.add("exception_message", cut(str(mask(text_of(exception))), 2000))
            attributes.add("exception_traceback", cut(str(mask("".join(lines))), 8000))
        elif exception is not None:
            report_misuse("exception", f"exception must be an exception, got {shown(exception)}")
        return cls(ERROR_EVENT, attributes, clock_at(timestamp))

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
    """Return the name of a span or event as text; that of an Enum member is its value."""
    text = name.value if isinstance(name, Enum) else name
    if not isinstance(text, str) or not text:
        report_misuse(
            "name", f"the name of a span or event must be a non-empty string, got {shown(name)}"
        )
        return shown(name)
    return str(text)


def as_attributes(values: Mapping[str, Any] | None) -> Attributes:
    """Return a copy of attributes, of the same type if it is a subclass of Attributes."""
    if isinstance(values, Attributes):
        return values.copy()
    if values is not None and not isinstance(values, Mapping):
        report_misuse(
            "attributes",
            f"attributes must be a dict such as {{'reason': 'warm-up'}}, got {shown(values)}",
        )
        return Attributes()
    return Attributes(values)


def clock_at(timestamp: Timestamp | None, earliest: int = 1) -> int:
    """Return a timestamp on the journal's clock, at least ``earliest``; now if it is None."""
    if timestamp is None:
        return clock.now()
    try:
        at = (
            timestamp.timestamp() if isinstance(timestamp, datetime.datetime) else number(timestamp)
        )
        is_time = at is not None and timestamp is not True and at * 1e9 >= clock.EARLIEST_WALL
        instant = clock.from_wall(round(at * 1e9)) or -1 if is_time and at is not None else 0
    except (TypeError, ValueError, OverflowError, OSError):
        instant = 0
    if not instant or instant >= LAST_CLOCK:
        report_misuse(
            "timestamp",
            "timestamp must be seconds since the epoch, such as time.time(), got "
            f"{shown(timestamp)}: the current time is used",
        )
        return clock.now()
    return max(instant, earliest)
