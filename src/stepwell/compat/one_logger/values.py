"""one-logger's value types: names, attributes, timestamps and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeVar

from stepwell import training
from stepwell._core import clock
from stepwell._core.checks import refuse
from stepwell._core.errors import TELEMETRY_ERROR, StepwellError
from stepwell.journal.format import ERROR_EVENT
from stepwell.telemetry.events import Attributes, Event, Timestamp, as_attributes, clock_at, name_of
from stepwell.telemetry.span_handle import SPAN_START, SPAN_STOP
from stepwell.training.attributes import TypedAttributes
from stepwell.training.settings import check
from stepwell.vocabulary import StandardTrainingJobEventName as EventName
from stepwell.vocabulary import StandardTrainingJobSpanName as SpanName

A = TypeVar("A", bound="OneLoggerAttributes")
E = TypeVar("E", bound="OneLoggerEvent")
T = TypeVar("T", bound="OneLoggerTypedAttributes")
TIME = "timestamp_msec"
"""An attribute of every event."""


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
        """Set a value. Returns the attributes, so that calls can be chained."""
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
        """Return the attributes of both. Those of ``other`` win."""
        return cls.from_json({**plain_values(attributes), **plain_values(other)})

    def to_json(self) -> dict[str, Any]:
        """Return the values as a plain dict."""
        return plain_values(self)

    @classmethod
    def from_json(cls: type[A], data: Mapping[str, Any]) -> A:
        """Return the attributes that ``to_json`` returned."""
        return cls(data)

    def get_bool_value(self, attribute_name: str) -> bool | None:
        """Return the value, or None. Raises if it is not a bool."""
        return Attributes(self.to_json()).get_bool_value(attribute_name)

    def get_int_value(self, attribute_name: str) -> int | None:
        """Return the value, or None. Raises if it is not an int."""
        return Attributes(self.to_json()).get_int_value(attribute_name)

    def get_float_value(self, attribute_name: str) -> float | None:
        """Return the value, or None. Raises if it is not a number."""
        return Attributes(self.to_json()).get_float_value(attribute_name)

    def get_str_value(self, attribute_name: str) -> str | None:
        """Return the value, or None. Raises if it is not a str."""
        return Attributes(self.to_json()).get_str_value(attribute_name)


def plain_values(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return attributes as a dict of plain values."""
    if not isinstance(values, Mapping):
        # Accepts None, and warns about other types.
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
        """Return the current time."""
        return cls(clock.wall() / 1e9, clock.now() / 1e9)

    @classmethod
    def at(cls, instant: int) -> TracingTimestamp:
        """Return the timestamp of an instant of the journal's clock."""
        return cls(clock.to_wall(instant) / 1e9, instant / 1e9)

    @classmethod
    def for_timestamp(
        cls,
        timestamp_sec: float,
        perf_counter: float | None = None,
        validate_timestamp: bool = True,
    ) -> TracingTimestamp:
        """Return the timestamp of a wall time, however long ago. A wrong unit causes a warning."""
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
        """Return the timestamp that ``to_json`` returned."""
        return cls(**data)


def seconds_of(time: TracingTimestamp | Timestamp | None) -> Timestamp | None:
    """Return a time in the form that stepwell's functions accept."""
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
        """Return an event at the given time (default: now)."""
        return cls(name, timestamp or TracingTimestamp.now(), attributes)

    @property
    def name_str(self) -> str:
        """The name as a plain string."""
        return name_of(self.name)

    def as_recorded(self) -> Event:
        """Return stepwell's event, in which the time is not an attribute."""
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
        """Return the event that ``to_json`` returned."""
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
        """Return an error event at the current time."""
        event = Event.of_error(error_message, exception)
        values = event.attributes.to_json()
        if exception_traceback is not None:
            values["exception_traceback"] = exception_traceback
        return cls(TracingTimestamp.at(event.clock), values)

    @property
    def error_message(self) -> str:
        """The message (default: that of the exception)."""
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
    """A problem of the telemetry itself: records are missing."""

    class ErrorType(str, Enum):
        """Whether any record exists."""

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
        """Return the event of a problem at the current time."""
        return cls(TracingTimestamp.now(), error_type, error_message, attributes)


class ExportError(StepwellError):
    """An exporter could not export."""


class OneLoggerTypedAttributes(OneLoggerAttributes):
    """Attributes of a standard span or event. Each declared attribute is a property, None if absent."""

    DECLARED: ClassVar[type[TypedAttributes]]
    REQUIRED: ClassVar[tuple[str, ...]] = ()
    """Arguments that ``create`` requires, in positional order."""
    ONLY_THERE: ClassVar[tuple[str, ...]] = ()
    """Attributes that only the original declares; accepted without a check."""

    @classmethod
    def create(cls: type[T], *positional: Any, **values: Any) -> T:
        """Return attributes with these values. None means absent.

        Raises StepwellError with all missing, wrong and unknown values.
        """
        values.update(zip(cls.REQUIRED, positional, strict=False))
        missing = [f"{name} is missing" for name in cls.REQUIRED if values.get(name) is None]
        ours = {name: value for name, value in values.items() if name not in cls.ONLY_THERE}
        kept, problems = check(cls.DECLARED.FIELDS, ours, "an attribute of it")
        refuse([*missing, *problems], cls.__name__)
        taken = {**values, **dict.fromkeys(ours), **kept}
        return cls({name: value for name, value in taken.items() if value is not None})

    def __getattr__(self, name: str) -> Any:
        if name in self.DECLARED.FIELDS or name in self.ONLY_THERE:
            attribute = self.get(name)
            return None if attribute is None else attribute.value
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _typed(
    declared: type[TypedAttributes], required: str, *only_there: str
) -> type[OneLoggerTypedAttributes]:
    body = {
        "__doc__": declared.__doc__,
        "__module__": __name__,
        "__test__": False,  # pytest would collect one of them because of its name.
        "DECLARED": declared,
        "REQUIRED": tuple(required.split()),
        "ONLY_THERE": only_there,
    }
    name = declared.__name__
    name = f"OneLogger{name}" if name == "InitializationAttributes" else name
    return type(name, (OneLoggerTypedAttributes,), body)


VERSION = "one_logger_training_telemetry_version"
TrainingLoopAttributes = _typed(
    training.TrainingLoopAttributes, "train_iterations_start train_samples_start"
)
CheckpointSaveSpanAttributes = _typed(
    training.CheckpointSaveSpanAttributes,
    "checkpoint_strategy current_iteration save_checkpoint_attempt_count",
)
OneLoggerInitializationAttributes = _typed(
    training.InitializationAttributes,
    f"world_size {VERSION} enable_for_current_rank session_tag is_baseline_run "
    "summary_data_schema_version node_name rank",
    VERSION,
)
TrainingTelemetryAttributes = _typed(
    training.TrainingTelemetryAttributes,
    "perf_tag global_batch_size log_every_n_train_iterations",
    "app_type",
)
TrainingMetricsUpdateAttributes = _typed(
    training.TrainingMetricsUpdateAttributes,
    "train_iterations_start current_iteration num_iterations train_samples_start num_train_samples "
    "interval avg_iteration_time_sec min_iteration_time_sec max_iteration_time_sec "
    "total_iteration_time_sec",
)
ValidationMetricsUpdateAttributes = _typed(
    training.ValidationMetricsUpdateAttributes, "current_iteration interval"
)
TestingMetricsUpdateAttributes = _typed(
    training.TestingMetricsUpdateAttributes, "current_iteration interval"
)
SaveCheckpointSuccessEventAttributes = _typed(
    training.SaveCheckpointSuccessEventAttributes,
    "checkpoint_strategy current_iteration first_successful_save_checkpoint_timestamp_sec "
    "latest_successful_save_checkpoint_timestamp_sec save_checkpoint_success_count "
    "productive_train_iterations productive_train_samples productive_train_iterations_sec "
    "productive_validation_iterations_sec",
)
SyncCheckpointMetricsUpdateAttributes = _typed(
    training.SyncCheckpointMetricsUpdateAttributes,
    "save_checkpoint_sync_time_total_sec save_checkpoint_sync_time_min_sec "
    "save_checkpoint_sync_time_max_sec",
)

CLASSES: dict[str, type[OneLoggerTypedAttributes]] = {
    SpanName.TRAINING_LOOP: TrainingLoopAttributes,
    SpanName.CHECKPOINT_SAVE_SYNC: CheckpointSaveSpanAttributes,
    SpanName.CHECKPOINT_SAVE_ASYNC: CheckpointSaveSpanAttributes,
    EventName.ONE_LOGGER_INITIALIZATION: OneLoggerInitializationAttributes,
    EventName.UPDATE_TRAINING_TELEMETRY_CONFIG: TrainingTelemetryAttributes,
    EventName.TRAINING_METRICS_UPDATE: TrainingMetricsUpdateAttributes,
    EventName.VALIDATION_METRICS_UPDATE: ValidationMetricsUpdateAttributes,
    EventName.TESTING_METRICS_UPDATE: TestingMetricsUpdateAttributes,
    EventName.SAVE_CHECKPOINT_SUCCESS: SaveCheckpointSuccessEventAttributes,
    EventName.SYNC_CHECKPOINT_METRICS_UPDATE: SyncCheckpointMetricsUpdateAttributes,
}
"""Attribute classes by the names of standard spans and events."""


def attributes_of(name: str, values: Mapping[str, Any]) -> OneLoggerAttributes:
    """Return the attributes of a span or event, for standard names as their own class."""
    return CLASSES.get(name, OneLoggerAttributes)(plain_values(values))
