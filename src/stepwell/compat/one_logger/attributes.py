"""The attribute classes of one-logger: ``create`` asks for the attributes that the original asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from stepwell import training
from stepwell.compat.one_logger.values import OneLoggerAttributes, plain_values
from stepwell.training.fields import TypedAttributes
from stepwell.training.values import nearest, refuse
from stepwell.vocabulary import StandardTrainingJobEventName as EventName
from stepwell.vocabulary import StandardTrainingJobSpanName as SpanName

T = TypeVar("T", bound="OneLoggerTypedAttributes")


class OneLoggerTypedAttributes(OneLoggerAttributes):
    """Attributes of a standard span or event. Each declared one is a property, None when it is absent."""

    DECLARED: ClassVar[type[TypedAttributes]]
    REQUIRED: ClassVar[tuple[str, ...]] = ()
    """What ``create`` asks for, in the order of its positional arguments."""
    ONLY_THERE: ClassVar[tuple[str, ...]] = ()
    """Attributes that stepwell does not have, taken as they are."""

    @classmethod
    def create(cls: type[T], *positional: Any, **values: Any) -> T:
        """Return the attributes out of these values; None means absent.

        A StepwellError names every value that is missing, wrong or unknown.
        """
        values.update(zip(cls.REQUIRED, positional, strict=False))
        fields = cls.DECLARED.FIELDS
        made = cls()
        missing = [name for name in cls.REQUIRED if values.get(name) is None]
        problems = [f"{name} is missing" for name in missing]
        for name, value in values.items():
            try:
                if name in fields:
                    value = fields[name].take(value)
                elif name not in cls.ONLY_THERE:
                    problems.append(f"{name} is no attribute of it; {nearest(name, fields)}")
            except ValueError as error:
                problems.append(f"{name} {error}")
            if value is not None:
                made.add(name, value)
        refuse(problems, cls.__name__)
        return made

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
        "__test__": False,  # to pytest the name of one looks like a test
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
"""The classes of standard spans and events, by their names."""


def attributes_of(name: str, values: Mapping[str, Any]) -> OneLoggerAttributes:
    """Return the attributes of a span or event, of its class where it is a standard one."""
    return CLASSES.get(name, OneLoggerAttributes)(plain_values(values))
