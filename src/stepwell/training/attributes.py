"""The attributes of the standard spans and events: each declared once, with its kind and meaning.

Validation, typed properties and the reference in the documentation follow from the declarations. An
attribute is absent if its source is: without a batch size there are no sample counts, without a logged loss
there is no ``latest_loss``. All times are in seconds; durations come from the monotonic clock.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Generic, TypeVar, overload

from stepwell._core.checks import (
    COUNT,
    FLAG,
    MESSAGE,
    METADATA,
    NUMBER,
    PATH,
    POSITIVE,
    RATE,
    SECONDS,
    TARGET,
    TEXT,
    TEXTS,
    Kind,
    refuse,
)
from stepwell._core.errors import StepwellError
from stepwell.telemetry.events import Attributes
from stepwell.training.config import STRATEGY_NAME
from stepwell.training.settings import check

__all__ = [
    "CheckpointSaveSpanAttributes",
    "InitializationAttributes",
    "SaveCheckpointFailureEventAttributes",
    "SaveCheckpointSuccessEventAttributes",
    "SyncCheckpointMetricsUpdateAttributes",
    "TestingMetricsUpdateAttributes",
    "TrainingLoopAttributes",
    "TrainingMetricsUpdateAttributes",
    "TrainingTelemetryAttributes",
    "ValidationMetricsUpdateAttributes",
]

T = TypeVar("T")
A = TypeVar("A", bound="TypedAttributes")


class Field(Generic[T]):
    """A declared attribute. Read on an instance it is the value, on the class the declaration."""

    def __init__(self, kind: Kind[Any], meaning: str, is_required: bool) -> None:
        self.kind = kind
        self.meaning = meaning
        self.is_required = is_required
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Field[T]: ...
    @overload
    def __get__(self, instance: Attributes, owner: type) -> T: ...
    def __get__(self, instance: Attributes | None, owner: type) -> Field[T] | T:
        if instance is None:
            return self
        value: Any = instance.get(self.name)
        if value is None and self.is_required:
            raise StepwellError(f"{owner.__name__}.{self.name} has no value")
        result: T = value
        return result

    def __set__(self, instance: Attributes, value: T) -> None:
        instance.add(self.name, value)

    def take(self, value: Any) -> Any:
        """Return the plain value, None if absent or not finite. Raise ValueError if it is wrong."""
        if value is None:
            return None
        plain = self.kind.take(value)
        return None if type(plain) is float and not math.isfinite(plain) else plain


def required(kind: Kind[T], meaning: str) -> Field[T]:
    """Declare a required attribute."""
    return Field(kind, meaning, is_required=True)


def optional(kind: Kind[T], meaning: str) -> Field[T | None]:
    """Declare an attribute that may be absent."""
    return Field(kind, meaning, is_required=False)


class TypedAttributes(Attributes):
    """Attributes with declared fields, which are checked. Other attributes can be added."""

    __slots__ = ()
    FIELDS: ClassVar[dict[str, Field[Any]]] = {}
    """The declared attributes by name, in the order of declaration."""
    _REQUIRED: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        declared = {name: it for name, it in vars(cls).items() if isinstance(it, Field)}
        cls.FIELDS = {**cls.FIELDS, **declared}
        cls._REQUIRED = frozenset(name for name, it in cls.FIELDS.items() if it.is_required)

    @classmethod
    def create(cls: type[A], **values: Any) -> A:
        """Return attributes with these values; None means absent.

        Raise one StepwellError that names every missing, wrong or unknown value.
        """
        kept, problems = check(cls.FIELDS, values, "an attribute")
        # Values that were given but wrong are in the list of problems already.
        missing = [name for name in sorted(cls._REQUIRED - kept.keys()) if values.get(name) is None]
        refuse([*problems, *(f"{name} is missing" for name in missing)], cls.__name__)
        return cls.adopt(kept)

    @classmethod
    def adopt(cls: type[A], values: dict[str, Any]) -> A:
        """Return attributes that take over a dict, unchecked. No value may be None or not finite."""
        new = object.__new__(cls)
        new._values = values
        return new

    def add(self, name: str, value: Any) -> Attributes:
        """Set one value, checked if it is declared. Return the attributes."""
        field = self.FIELDS.get(name) if isinstance(name, str) else None
        if field is None:
            return super().add(name, value)
        try:
            plain = field.take(value)
        except ValueError as error:
            raise StepwellError(f"{type(self).__name__}: {name} {error}") from None
        if plain is None:
            self._values.pop(name, None)
        else:
            self._values[name] = plain
        return self


# Spans


class TrainingLoopAttributes(TypedAttributes):
    """Attributes of the span ``training_loop``: its start and its targets."""

    train_iterations_start = required(COUNT, "index of the loop's first iteration")
    train_samples_start = optional(COUNT, "samples trained on before the loop")
    train_iterations_target = optional(
        TARGET, "target number of iterations, including those before the loop"
    )
    train_samples_target = optional(
        TARGET, "target number of samples, including those before the loop"
    )
    train_tokens_target = optional(
        POSITIVE, "target number of tokens, including those before the loop"
    )
    completed_floating_point_operations_overall = optional(
        COUNT, "floating point operations done before the loop"
    )


class CheckpointSaveSpanAttributes(TypedAttributes):
    """Attributes of the spans ``checkpoint_save_sync`` and ``checkpoint_save_async``."""

    checkpoint_strategy = required(STRATEGY_NAME, "sync or async")
    current_iteration = required(COUNT, "the step that the save was called with")
    save_checkpoint_attempt_count = required(
        POSITIVE, "saves begun so far with this strategy, including this one and failed ones"
    )


# Events of the application


class InitializationAttributes(TypedAttributes):
    """Attributes of the event ``one_logger_initialization``: the application and its process."""

    application_name = required(TEXT, "name of the application, the same in all its runs")
    world_size = required(POSITIVE, "number of ranks")
    rank = required(COUNT, "rank of this process")
    local_rank = optional(COUNT, "rank of this process on its node")
    node_name = required(TEXT, "host")
    app_type = required(TEXT, "training")
    session_tag = optional(TEXT, "shared by all runs of one logical job")
    is_baseline_run = required(FLAG, "whether this run is a baseline for others")
    enable_for_current_rank = required(FLAG, "whether this rank records")
    stepwell_version = required(TEXT, "version of stepwell")
    summary_data_schema_version = required(TEXT, "version of the names and meanings of attributes")
    custom_metadata = optional(METADATA, "the user's own metadata; values keep their types")


class TrainingTelemetryAttributes(TypedAttributes):
    """Attributes of the event ``update_training_telemetry_config``: the configuration of training."""

    perf_tag = optional(TEXTS, "shared by runs whose speed can be compared; one or several")
    global_batch_size = optional(POSITIVE, "samples of all ranks in one iteration")
    micro_batch_size = optional(POSITIVE, "samples of one rank in one pass")
    seq_length = optional(POSITIVE, "tokens in a sample")
    flops_per_sample = optional(POSITIVE, "floating point operations for a sample")
    train_iterations_target = optional(TARGET, "target number of iterations")
    train_samples_target = optional(TARGET, "target number of samples")
    log_every_n_train_iterations = required(POSITIVE, "iterations between two updates")
    loss_metric = optional(TEXT, "the metric that is reported as the loss")
    checkpoint_strategy = optional(STRATEGY_NAME, "sync or async")
    is_train_iterations_enabled = required(FLAG, "whether training iterations are recorded")
    is_validation_iterations_enabled = required(FLAG, "whether validation iterations are recorded")
    is_test_iterations_enabled = required(FLAG, "whether testing iterations are recorded")
    is_save_checkpoint_enabled = required(FLAG, "whether checkpoint saves are recorded")
    is_log_throughput_enabled = required(FLAG, "whether throughput is reported")
    custom_metadata = optional(METADATA, "the user's own metadata; values keep their types")


# Events of loops


class TrainingMetricsUpdateAttributes(TypedAttributes):
    """Attributes of the event ``training_metrics_update``: the loop so far, and since the last update."""

    train_iterations_start = required(COUNT, "index of the loop's first iteration")
    train_samples_start = optional(COUNT, "samples trained on before the loop")
    current_iteration = required(COUNT, "index of the latest finished iteration")
    num_iterations = required(COUNT, "iterations finished in this loop")
    num_train_samples = optional(COUNT, "samples trained on in this loop")
    interval = required(COUNT, "iterations since the previous update")
    is_final = required(FLAG, "whether this is the update at the end of the loop")

    avg_iteration_time_sec = required(SECONDS, "mean over the loop so far")
    min_iteration_time_sec = required(SECONDS, "shortest iteration of the loop so far")
    max_iteration_time_sec = required(SECONDS, "longest iteration of the loop so far")
    total_iteration_time_sec = required(SECONDS, "time in iterations of the loop so far")
    avg_between_iterations_time_sec = optional(
        SECONDS, "mean time from the end of one iteration to the start of the next"
    )
    avg_forward_time_sec = optional(SECONDS, "mean time in `model_forward` per iteration")
    avg_backward_time_sec = optional(SECONDS, "mean time in `model_backward` per iteration")
    avg_dataloader_time_sec = optional(SECONDS, "mean time in `data_loading` per iteration")
    first_logged_train_iterations_finish_timestamp_sec = required(
        SECONDS, "when the loop's first iteration finished, since the epoch"
    )
    last_logged_train_iterations_finish_timestamp_sec = required(
        SECONDS, "when the latest iteration finished, since the epoch"
    )

    train_tokens = optional(COUNT, "tokens trained on in this loop")
    avg_batch_size = optional(RATE, "mean samples per iteration")
    avg_samples_per_second = optional(
        RATE, "samples per second of wall time, from the start of the loop to the latest iteration"
    )
    avg_tokens_per_second = optional(RATE, "the same for tokens")
    avg_samples_per_second_without_data = optional(
        RATE, "samples per second of that time without `data_loading`"
    )
    avg_tokens_per_second_without_data = optional(RATE, "the same for tokens")
    latest_loss = optional(NUMBER, "latest value of the loss; absent when it is not finite")

    total_flops = optional(COUNT, "floating point operations in this loop")
    completed_floating_point_operations_overall = optional(
        COUNT, "floating point operations in this loop and before it"
    )
    avg_tflops = optional(RATE, "TFLOP/s of all ranks together, over the loop so far")
    train_throughput_per_gpu = optional(RATE, "TFLOP/s of a rank, over the loop so far")
    train_throughput_per_gpu_max = optional(RATE, "TFLOP/s of a rank in the best iteration")
    train_throughput_per_gpu_min = optional(RATE, "TFLOP/s of a rank in the worst iteration")

    window_iterations = required(COUNT, "iterations in the window: those since the last update")
    window_avg_iteration_time_sec = optional(SECONDS, "mean in the window")
    window_p50_iteration_time_sec = optional(SECONDS, "median in the window")
    window_p95_iteration_time_sec = optional(SECONDS, "95th percentile in the window")
    window_max_iteration_time_sec = optional(SECONDS, "longest in the window")
    window_avg_between_iterations_time_sec = optional(SECONDS, "mean pause in the window")
    window_max_between_iterations_time_sec = optional(SECONDS, "longest pause in the window")
    window_samples_per_second = optional(RATE, "samples per second of wall time in the window")
    window_tokens_per_second = optional(RATE, "tokens per second of wall time in the window")
    window_throughput_per_gpu = optional(RATE, "TFLOP/s of a rank in the window")


class _EvaluationUpdate(TypedAttributes):
    """Attributes of an update at the end of a validation or testing loop."""

    current_iteration = required(COUNT, "index of the latest finished training iteration")
    interval = required(COUNT, "training iterations since the previous loop of this kind")
    num_iterations = required(COUNT, "batches of this loop")
    avg_iteration_time_sec = optional(SECONDS, "mean over the loop's batches")
    min_iteration_time_sec = optional(SECONDS, "shortest batch of the loop")
    max_iteration_time_sec = optional(SECONDS, "longest batch of the loop")
    total_iteration_time_sec = optional(SECONDS, "time in batches of the loop")


class ValidationMetricsUpdateAttributes(_EvaluationUpdate):
    """Attributes of the event ``validation_metrics_update`` at the end of a validation loop."""


class TestingMetricsUpdateAttributes(_EvaluationUpdate):
    """Attributes of the event ``testing_metrics_update`` at the end of a testing loop."""

    __test__ = False  # pytest would collect it by its name


# Events of checkpoints


class SaveCheckpointSuccessEventAttributes(TypedAttributes):
    """Attributes of the event ``save_checkpoint_success``. "Productive" is the progress in the checkpoint."""

    checkpoint_strategy = required(STRATEGY_NAME, "sync or async")
    current_iteration = required(COUNT, "the step that the save was called with")
    save_checkpoint_success_count = required(POSITIVE, "saves that have succeeded so far")
    first_successful_save_checkpoint_timestamp_sec = required(
        SECONDS, "when the first save succeeded, since the epoch"
    )
    latest_successful_save_checkpoint_timestamp_sec = required(
        SECONDS, "when the latest save succeeded, since the epoch"
    )
    training_start_timestamp_sec = optional(SECONDS, "when training started, since the epoch")
    productive_train_iterations = required(COUNT, "iterations that are in a checkpoint")
    productive_train_samples = optional(COUNT, "samples that are in a checkpoint")
    productive_train_iterations_sec = required(SECONDS, "time in those of this process")
    productive_validation_iterations_sec = required(SECONDS, "time in validation until then")
    productive_train_tflops = optional(
        RATE, "floating point operations in a checkpoint, in units of 10¹²; not a rate"
    )
    checkpoint_size = optional(COUNT, "bytes on disk")
    checkpoint_directory = optional(PATH, "folder that the checkpoint is in")
    is_late = optional(FLAG, "whether a newer checkpoint had succeeded before")


class SaveCheckpointFailureEventAttributes(TypedAttributes):
    """Attributes of the event ``save_checkpoint_failure``."""

    checkpoint_strategy = required(STRATEGY_NAME, "sync or async")
    current_iteration = required(COUNT, "the step that the save was called with")
    save_checkpoint_failure_count = required(POSITIVE, "saves that have failed so far")
    error_message = optional(MESSAGE, "what went wrong")
    exception_type = optional(TEXT, "class of the exception")
    exception_message = optional(MESSAGE, "text of the exception")


class SyncCheckpointMetricsUpdateAttributes(TypedAttributes):
    """Attributes of the event ``sync_checkpoint_metrics_update``: the time that training waited for saves."""

    save_checkpoint_count = required(POSITIVE, "saves so far with this strategy")
    save_checkpoint_sync_time_total_sec = required(SECONDS, "time in them")
    save_checkpoint_sync_time_avg_sec = required(SECONDS, "mean")
    save_checkpoint_sync_time_min_sec = required(SECONDS, "shortest")
    save_checkpoint_sync_time_max_sec = required(SECONDS, "longest")
