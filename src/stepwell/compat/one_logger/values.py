"""The values of one-logger: names, attributes, times and events, with its spellings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from stepwell.journal import clock
from stepwell.journal.errors import TELEMETRY_ERROR, StepwellError
from stepwell.journal.journal import ERROR_EVENT
from stepwell.telemetry.attributes import Attributes
from stepwell.telemetry.events import Event, Timestamp, as_attributes, clock_at, name_of
from stepwell.telemetry.live import SPAN_START, SPAN_STOP

A = TypeVar("A", bound="OneLoggerAttributes")
E = TypeVar("E", bound="OneLoggerEvent")
TIME = "timestamp_msec"
"""The attribute that every event of one-logger has."""


class StandardSpanName(str, Enum):
    """The span that every application has."""

    APPLICATION = "application"

    def __str__(self) -> str:
        return str(self.value)


class StandardEventName(str, Enum):
    """The events that any span may have."""

    SPAN_START = SPAN_START
    SPAN_STOP = SPAN_STOP
    ERROR = ERROR_EVENT
    TELEMETRY_DATA_ERROR = TELEMETRY_ERROR

    def __str__(self) -> str:
        return str(self.value)


@dataclass
class Attribute:
    """A name and a value."""

    name: str
    value: Any


class OneLoggerAttributes(dict[str, Attribute]):
    """Attributes as a dict of ``Attribute`` objects: ``attributes["a"].value``."""

    def __init__(self, dictionary: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.add_attributes(dictionary)

    def add(self: A, name: str, value: Any) -> A:
        """Set one value; returns itself, so that calls can be chained."""
        self.add_attribute(Attribute(name_of(name), value))
        return self

    def add_attribute(self, attribute: Attribute) -> Attribute:
        """Set one attribute, and return it."""
        self[attribute.name] = attribute
        return attribute

    def add_attributes(self, other_attributes: Mapping[str, Any] | None) -> None:
        """Set all attributes of another set."""
        for name, value in plain_values(other_attributes).items():
            self.add(name, value)

    @classmethod
    def merge(
        cls: type[A],
        attributes: Mapping[str, Any] | None = None,
        other: Mapping[str, Any] | None = None,
    ) -> A:
        """Return the attributes of both; where they differ, those of the second."""
        return cls.from_json({**plain_values(attributes), **plain_values(other)})

    def to_json(self) -> dict[str, Any]:
        """Return the values as a plain dict."""
        return plain_values(self)

    @classmethod
    def from_json(cls: type[A], data: Mapping[str, Any]) -> A:
        """Return the attributes that ``to_json`` gave."""
        return cls(data)

    def get_bool_value(self, attribute_name: str) -> bool | None:
        """Return the value, None when there is none. Raises when it is not a bool."""
        return Attributes(self.to_json()).get_bool_value(attribute_name)

    def get_int_value(self, attribute_name: str) -> int | None:
        """Return the value, None when there is none. Raises when it is not an int."""
        return Attributes(self.to_json()).get_int_value(attribute_name)

    def get_float_value(self, attribute_name: str) -> float | None:
        """Return the value, None when there is none. Raises when it is not a number."""
        return Attributes(self.to_json()).get_float_value(attribute_name)

    def get_str_value(self, attribute_name: str) -> str | None:
        """Return the value, None when there is none. Raises when it is not a str."""
        return Attributes(self.to_json()).get_str_value(attribute_name)


def plain_values(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return attributes, of one-logger or plain ones, as a dict of plain values."""
    if not isinstance(values, Mapping):
        # None is fine; of anything else this warns.
        return as_attributes(values).to_json()
    return {
        name_of(name): value.value if isinstance(value, Attribute) else value
        for name, value in values.items()
    }


@dataclass(frozen=True)
class TracingTimestamp:
    """An instant on two clocks: seconds since the epoch, and ``time.perf_counter()``."""

    seconds_since_epoch: float
    perf_counter_seconds: float

    @property
    def milliseconds_since_epoch(self) -> int:
        """Whole milliseconds since the epoch."""
        return int(self.seconds_since_epoch * 1000)

    @classmethod
    def now(cls) -> TracingTimestamp:
        """Return this instant."""
        return cls(clock.wall() / 1e9, clock.now() / 1e9)

    @classmethod
    def at(cls, instant: int) -> TracingTimestamp:
        """Return an instant of the journal's clock."""
        return cls(clock.to_wall(instant) / 1e9, instant / 1e9)

    @classmethod
    def for_timestamp(
        cls,
        timestamp_sec: float,
        perf_counter: float | None = None,
        validate_timestamp: bool = True,
    ) -> TracingTimestamp:
        """Return the instant of this wall time, however long ago; a wrong unit is a warning."""
        instant = clock_at(timestamp_sec, clock.BEFORE_BOOT)
        return cls(float(timestamp_sec), perf_counter or instant / 1e9)

    def to_json(self) -> dict[str, float]:
        """Return both clocks as a plain dict."""
        return {
            "seconds_since_epoch": self.seconds_since_epoch,
            "perf_counter_seconds": self.perf_counter_seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, float]) -> TracingTimestamp:
        """Return the instant that ``to_json`` gave."""
        return cls(**data)


def seconds_of(time: TracingTimestamp | Timestamp | None) -> Timestamp | None:
    """Return a time as stepwell takes it."""
    return time.seconds_since_epoch if isinstance(time, TracingTimestamp) else time


class OneLoggerEvent:
    """An instant with a name and attributes, among them ``timestamp_msec``."""

    def __init__(
        self,
        name: str | Enum,
        timestamp: TracingTimestamp,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.timestamp = timestamp
        if not isinstance(attributes, OneLoggerAttributes):
            attributes = OneLoggerAttributes(attributes)
        self.attributes = attributes
        self.attributes.add(TIME, timestamp.milliseconds_since_epoch)

    @classmethod
    def create(
        cls: type[E],
        name: str | Enum,
        attributes: Mapping[str, Any] | None = None,
        timestamp: TracingTimestamp | None = None,
    ) -> E:
        """Return an event of now, or of the given time."""
        return cls(name, timestamp or TracingTimestamp.now(), attributes)

    @property
    def name_str(self) -> str:
        """The name as a plain text."""
        return name_of(self.name)

    def as_recorded(self) -> Event:
        """Return the event as stepwell records it; its time is not an attribute there."""
        values = plain_values(self.attributes)
        values.pop(TIME, None)
        return Event.create(self.name_str, values, seconds_of(self.timestamp))

    def to_json(self) -> dict[str, Any]:
        """Return the event as a plain dict."""
        return {
            "name": self.name_str,
            "timestamp": self.timestamp.to_json(),
            "attributes": self.attributes.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OneLoggerEvent:
        """Return the event that ``to_json`` gave."""
        timestamp = TracingTimestamp.from_json(data["timestamp"])
        if data["name"] == ERROR_EVENT:
            return ErrorEvent(timestamp, data["attributes"])
        return OneLoggerEvent(data["name"], timestamp, data.get("attributes"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OneLoggerEvent) and other.to_json() == self.to_json()

    def __hash__(self) -> int:
        return hash((self.name_str, self.timestamp))

    def __repr__(self) -> str:
        return f"<event {self.name_str} {self.attributes.to_json()}>"


class ErrorEvent(OneLoggerEvent):
    """An error of the application: a message, and the exception where there is one."""

    def __init__(self, timestamp: TracingTimestamp, attributes: Mapping[str, Any]) -> None:
        values = plain_values(attributes)
        values.setdefault("error_message", values.get("exception_message") or "")
        super().__init__(ERROR_EVENT, timestamp, values)

    @classmethod
    def create(  # type: ignore[override]
        cls,
        error_message: str,
        exception: BaseException | None = None,
        exception_traceback: str | None = None,
    ) -> ErrorEvent:
        """Return the event of an error of now."""
        event = Event.of_error(error_message, exception)
        values = event.attributes.to_json()
        if exception_traceback is not None:
            values["exception_traceback"] = exception_traceback
        return cls(TracingTimestamp.at(event.clock), values)

    @property
    def error_message(self) -> str:
        """The message; that of the exception where none was given."""
        return str(self._value("error_message"))

    @property
    def exception_type(self) -> str | None:
        """Class of the exception."""
        return self._value("exception_type")

    @property
    def exception_message(self) -> str | None:
        """Text of the exception."""
        return self._value("exception_message")

    @property
    def exception_traceback(self) -> str | None:
        """Traceback of the exception."""
        return self._value("exception_traceback")

    def _value(self, name: str) -> str | None:
        value: str | None = self.attributes.to_json().get(name)
        return value


class TelemetryDataError(OneLoggerEvent):
    """A problem of the telemetry itself: the records are not complete."""

    class ErrorType(str, Enum):
        """Whether something was recorded before."""

        NO_TELEMETRY_DATA = "no_telemetry_data"
        INCOMPLETE_TELEMETRY_DATA = "incomplete_telemetry_data"

    def __init__(
        self,
        timestamp: TracingTimestamp,
        error_type: ErrorType | str,
        error_message: str,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.error_type = self.ErrorType(error_type)
        self.error_message = error_message
        values = {
            **plain_values(attributes),
            "error_message": error_message,
            "telemetry_data_error_type": self.error_type.value,
        }
        super().__init__(TELEMETRY_ERROR, timestamp, values)

    @classmethod
    def create(  # type: ignore[override]
        cls,
        error_type: ErrorType | str,
        error_message: str,
        attributes: Mapping[str, Any] | None = None,
    ) -> TelemetryDataError:
        """Return the event of a problem of now."""
        return cls(TracingTimestamp.now(), error_type, error_message, attributes)


class ExportError(StepwellError):
    """An exporter could not export."""
