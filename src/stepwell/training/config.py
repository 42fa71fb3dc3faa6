"""Configurations of an application and of its training.

A field whose name ends in ``_or_fn`` takes a value or a function without arguments. The property without that
suffix returns the value, and calls the function at each access: ``config.global_batch_size``.
"""

# ruff: noqa: RUF009 (the calls in the classes declare fields)

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from stepwell._core.checks import FLAG, METADATA, POSITIVE, TARGET, TEXT, TEXTS, Kind
from stepwell.telemetry import run_names
from stepwell.training.settings import (
    Evaluated,
    as_json,
    checked,
    setting,
    settings_of,
    value_or_fn,
)

T = TypeVar("T")
OrFn: TypeAlias = T | Callable[[], T]
Tags: TypeAlias = str | list[str]


class CheckPointStrategy(str, Enum):
    """Whether training waits for a checkpoint to be written."""

    SYNC = "sync"
    ASYNC = "async"

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


def _strategy(value: Any) -> CheckPointStrategy:
    return CheckPointStrategy(TEXT.convert(value).lower())


STRATEGY = Kind[CheckPointStrategy](
    "CheckPointStrategy.SYNC or CheckPointStrategy.ASYNC",
    lambda value: type(value) is CheckPointStrategy,
    _strategy,
)
STRATEGY_NAME = Kind[str](
    "'sync' or 'async'",
    lambda value: type(value) is str and value in ("sync", "async"),
    lambda value: str(_strategy(value)),
)


def script_name() -> str:
    """Return the default application name, that of the script."""
    return run_names.script_name(otherwise="application")


@dataclass(frozen=True, kw_only=True)
class ApplicationFields:
    """The fields of every application."""

    application_name: str = setting(
        "",
        TEXT,
        "name of the application, the same in all its runs; default: the name of the script",
        factory=script_name,
    )
    session_tag_or_fn: OrFn[str | None] | None = value_or_fn(
        None, TEXT, "shared by all runs of one logical job, including restarts"
    )
    world_size_or_fn: OrFn[int | None] | None = value_or_fn(
        None, POSITIVE, "number of ranks; default: as set by the launcher"
    )
    is_baseline_run_or_fn: OrFn[bool] = value_or_fn(
        False, FLAG, "whether this run is a baseline for others"
    )
    enable_for_current_rank: OrFn[bool] = value_or_fn(True, FLAG, "whether this rank records")
    custom_metadata: Mapping[str, Any] | None = setting(
        None, METADATA, "your own metadata; values keep their types"
    )
    summary_data_schema_version: str = setting(
        "1.0.0", TEXT, "version of the names and meanings of attributes"
    )
    strict: bool = setting(False, FLAG, "raise problems inside telemetry; for tests")

    session_tag = Evaluated[str | None]()
    world_size = Evaluated[int | None]()
    is_baseline_run = Evaluated[bool]()
    is_enabled_for_current_rank = Evaluated[bool](of="enable_for_current_rank")


@dataclass(frozen=True, kw_only=True)
class TrainingFields:
    """The fields of training."""

    perf_tag_or_fn: OrFn[Tags | None] | None = value_or_fn(
        None, TEXTS, "shared by runs whose speed can be compared; one or several"
    )
    global_batch_size_or_fn: OrFn[int | None] | None = value_or_fn(
        None, POSITIVE, "samples of all ranks in one iteration"
    )
    micro_batch_size_or_fn: OrFn[int | None] | None = value_or_fn(
        None, POSITIVE, "samples of one rank in one pass"
    )
    seq_length_or_fn: OrFn[int | None] | None = value_or_fn(
        None, POSITIVE, "tokens in a sample; gives token counts"
    )
    flops_per_sample_or_fn: OrFn[float | None] | None = value_or_fn(
        None, POSITIVE, "floating point operations for a sample; gives throughput in TFLOP/s"
    )
    train_iterations_target_or_fn: OrFn[int | None] | None = value_or_fn(
        None, TARGET, "target number of iterations"
    )
    train_samples_target_or_fn: OrFn[int | None] | None = value_or_fn(
        None, TARGET, "target number of samples"
    )
    log_every_n_train_iterations: int = setting(50, POSITIVE, "iterations between two updates")
    loss_metric: str | None = setting(
        None, TEXT, "the metric reported as the loss; default: `loss`, `train_loss` or `train/loss`"
    )
    is_log_throughput_enabled_or_fn: OrFn[bool] = value_or_fn(
        False, FLAG, "whether throughput is reported"
    )
    save_checkpoint_strategy: CheckPointStrategy = setting(
        CheckPointStrategy.SYNC, STRATEGY, "whether training waits for a checkpoint to be written"
    )
    is_train_iterations_enabled_or_fn: OrFn[bool] = value_or_fn(
        True, FLAG, "whether training iterations are recorded"
    )
    is_validation_iterations_enabled_or_fn: OrFn[bool] = value_or_fn(
        True, FLAG, "whether validation iterations are recorded"
    )
    is_test_iterations_enabled_or_fn: OrFn[bool] = value_or_fn(
        True, FLAG, "whether testing iterations are recorded"
    )
    is_save_checkpoint_enabled_or_fn: OrFn[bool] = value_or_fn(
        True, FLAG, "whether checkpoint saves are recorded"
    )

    perf_tag = Evaluated[Tags | None]()
    global_batch_size = Evaluated[int | None]()
    micro_batch_size = Evaluated[int | None]()
    seq_length = Evaluated[int | None]()
    flops_per_sample = Evaluated[int | None]()
    train_iterations_target = Evaluated[int | None]()
    train_samples_target = Evaluated[int | None]()
    is_log_throughput_enabled = Evaluated[bool]()
    is_train_iterations_enabled = Evaluated[bool]()
    is_validation_iterations_enabled = Evaluated[bool]()
    is_test_iterations_enabled = Evaluated[bool]()
    is_save_checkpoint_enabled = Evaluated[bool]()

    @property
    def app_type(self) -> str:
        """The type of the application."""
        return "training"


@checked
@dataclass(frozen=True, kw_only=True)
class TrainingTelemetryConfig(ApplicationFields, TrainingFields):
    """The configuration of training. It may include the fields of the application."""

    def with_override(self, changes: Mapping[str, Any]) -> TrainingTelemetryConfig:
        """Return a copy with these fields changed. Fields in ``telemetry_config`` count as its own."""
        from stepwell.training.resolved_config import override_training

        return override_training(self, changes)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields with a value as JSON values. Functions are called."""
        return as_json(self, settings_of(TrainingTelemetryConfig))


def _training_config(value: Any) -> TrainingTelemetryConfig:
    if not isinstance(value, TrainingTelemetryConfig):
        raise TypeError
    return value


TRAINING_CONFIG = Kind[TrainingTelemetryConfig](
    "a TrainingTelemetryConfig",
    lambda value: type(value) is TrainingTelemetryConfig,
    _training_config,
)


@checked
@dataclass(frozen=True, kw_only=True)
class ApplicationConfig(ApplicationFields):
    """The configuration of an application. That of its training can be set later."""

    telemetry_config: TrainingTelemetryConfig | None = setting(
        None, TRAINING_CONFIG, "the configuration of training"
    )

    def with_override(self, changes: Mapping[str, Any]) -> ApplicationConfig:
        """Return a copy with these fields changed, including those in ``{"telemetry_config": {…}}``."""
        from stepwell.training.resolved_config import override_application

        return override_application(self, changes)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields with a value as JSON values. Functions are called."""
        values = as_json(self, settings_of(ApplicationFields))
        if self.telemetry_config is not None:
            values["telemetry_config"] = self.telemetry_config.to_dict()
        return values
