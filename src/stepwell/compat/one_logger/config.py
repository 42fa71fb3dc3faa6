"""The configuration classes of one-logger: ours, with fields that can be assigned to."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from stepwell.journal.errors import StepwellError, say
from stepwell.training.config import (
    ApplicationConfig,
    ApplicationFields,
    TrainingFields,
    TrainingTelemetryConfig,
)
from stepwell.training.merging import METADATA_FIELD, NESTED, ResolvedConfig
from stepwell.training.settings import settings_of, spoken
from stepwell.training.values import nearest


class OneLoggerErrorHandlingStrategy(Enum):
    """What happens when telemetry is called in a wrong way, or fails."""

    PROPAGATE_EXCEPTIONS = "propagate_exceptions"
    DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR = "disable_quietly_and_report_metric_error"


class ApplicationType(str, Enum):
    """What an application does."""

    TRAINING = "training"
    VALIDATION = "validation"
    BATCH_INFERENCE = "batch_inference"
    ONLINE_INFERENCE = "online_inference"
    DATA_PROCESSING = "data_processing"


@dataclass
class LoggerConfig:
    """How messages about the telemetry itself are logged, on the logger ``stepwell``.

    Without this nothing is changed. Files are written only where their path is given.
    """

    log_level: str = "INFO"
    log_format: str = "%(name)s - %(levelname)s - %(message)s"
    log_file_path_for_info: str | os.PathLike[str] | None = None
    log_file_path_for_err: str | os.PathLike[str] | None = None

    def apply(self) -> None:
        """Set up the logger ``stepwell`` like this."""
        logger = logging.getLogger("stepwell")
        logger.setLevel(self.log_level)
        files = {
            logging.DEBUG: self.log_file_path_for_info,
            logging.ERROR: self.log_file_path_for_err,
        }
        opened = {getattr(handler, "baseFilename", None) for handler in logger.handlers}
        for level, path in files.items():
            if path is not None and os.path.abspath(path) not in opened:
                handler = logging.FileHandler(path, delay=True)
                handler.setLevel(level)
                handler.setFormatter(logging.Formatter(self.log_format))
                logger.addHandler(handler)


@runtime_checkable
class OneLoggerTelemetryConfig(Protocol):
    """What the configuration of any telemetry has."""

    @property
    def is_train_iterations_enabled(self) -> bool: ...
    @property
    def is_validation_iterations_enabled(self) -> bool: ...
    @property
    def is_test_iterations_enabled(self) -> bool: ...
    @property
    def is_save_checkpoint_enabled(self) -> bool: ...
    @property
    def app_type(self) -> str: ...
    @property
    def custom_metadata(self) -> Mapping[str, Any] | None: ...


class Assignable:
    """A configuration whose fields can be assigned to; unknown fields are left out with a warning."""

    def __init__(self, **given: Any) -> None:
        declared = settings_of(type(self))
        unknown = [name for name in given if name not in declared]
        if unknown:
            hints = "; ".join(
                f"{name} is no field of it, {nearest(name, declared)}" for name in unknown
            )
            say("%s: %s. Unknown fields are left out.", type(self).__name__, hints)
        super().__init__(**{name: given[name] for name in given if name in declared})

    def __setattr__(self, name: str, value: Any) -> None:
        setting = settings_of(type(self)).get(name)
        try:
            value = value if setting is None or value is None else setting.take(value)
        except ValueError as error:
            raise StepwellError(f"{type(self).__name__}: {name} {error}") from None
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)


class OneLoggerTrainingConfig(Assignable, TrainingTelemetryConfig):
    """The configuration of training."""


class OneLoggerConfig(Assignable, ApplicationConfig):
    """The configuration of an application.

    Args:
        error_handling_strategy: ``PROPAGATE_EXCEPTIONS`` raises problems inside telemetry, and stops
            training with them. By default they are warnings.
        logger_config: how warnings are logged; a ``LoggerConfig`` or a dict of its fields.
        **given: the fields of ``stepwell.training.ApplicationConfig``.
    """

    def __init__(
        self,
        *,
        error_handling_strategy: OneLoggerErrorHandlingStrategy | str | None = None,
        logger_config: LoggerConfig | Mapping[str, Any] | None = None,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self.logger_config = logger_config
        if error_handling_strategy is not None:
            self.error_handling_strategy = error_handling_strategy

    @property
    def error_handling_strategy(self) -> OneLoggerErrorHandlingStrategy:
        """Whether problems inside telemetry are raised."""
        strategies = OneLoggerErrorHandlingStrategy
        return (
            strategies.PROPAGATE_EXCEPTIONS
            if self.strict
            else strategies.DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR
        )

    @error_handling_strategy.setter
    def error_handling_strategy(self, strategy: OneLoggerErrorHandlingStrategy | str) -> None:
        chosen = OneLoggerErrorHandlingStrategy(strategy)
        is_strict = chosen is OneLoggerErrorHandlingStrategy.PROPAGATE_EXCEPTIONS
        object.__setattr__(self, "strict", is_strict)

    @property
    def logger_config(self) -> LoggerConfig:
        """How warnings are logged."""
        given: LoggerConfig | None = vars(self).get("_logger_config")
        return LoggerConfig() if given is None else given

    @logger_config.setter
    def logger_config(self, config: LoggerConfig | Mapping[str, Any] | None) -> None:
        made = LoggerConfig(**config) if isinstance(config, Mapping) else config
        object.__setattr__(self, "_logger_config", made)

    def apply_logging(self) -> None:
        """Log warnings as ``logger_config`` says, if it was given."""
        if vars(self).get("_logger_config") is not None:
            self.logger_config.apply()


def consistent(base: Any, training: Any) -> Any:
    """Return the configuration of training without what the application's says otherwise.

    The original ignores fields of the application there; two functions would contradict each other.
    """
    if not isinstance(base, ApplicationFields) or not isinstance(training, TrainingTelemetryConfig):
        return training
    shared = (spoken(base).keys() & settings_of(ApplicationFields).keys()) - {METADATA_FIELD}
    kept = {name: value for name, value in spoken(training).items() if name not in shared}
    return OneLoggerTrainingConfig(**kept)


def consistent_base(base: Any) -> Any:
    """Return the configuration of an application, with that of training in it made consistent."""
    if not isinstance(base, ApplicationConfig) or base.telemetry_config is None:
        return base
    return ApplicationConfig(**{**spoken(base), NESTED: consistent(base, base.telemetry_config)})


def config_of(resolved: ResolvedConfig, base: Any = None) -> OneLoggerConfig:
    """Return the configuration in force with the spellings of one-logger; a copy."""
    values = spoken(resolved)
    values.pop("has_telemetry_config", None)
    training = {field.name for field in fields(TrainingFields)}
    application = {name: value for name, value in values.items() if name not in training}
    if resolved.has_telemetry_config:
        own = {name: value for name, value in values.items() if name in training}
        own[METADATA_FIELD] = values.get(METADATA_FIELD)
        application[NESTED] = OneLoggerTrainingConfig(**own)
    given = base.logger_config if isinstance(base, OneLoggerConfig) else None
    return OneLoggerConfig(logger_config=given, **application)
