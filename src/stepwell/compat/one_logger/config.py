"""one-logger's configuration: assignable versions of stepwell's classes, and exporters from files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from stepwell._core.checks import nearest
from stepwell._core.errors import StepwellError, log_warning
from stepwell._core.values import text_of
from stepwell.compat.one_logger.exporters import adapted
from stepwell.telemetry.exporter_config import ConfiguredExporter, find_class, load_exporters
from stepwell.training.config import (
    ApplicationConfig,
    ApplicationFields,
    TrainingFields,
    TrainingTelemetryConfig,
)
from stepwell.training.resolved_config import METADATA_FIELD, NESTED, ResolvedConfig
from stepwell.training.settings import changed_fields, settings_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class OneLoggerErrorHandlingStrategy(Enum):
    """What happens when telemetry is misused or fails."""

    PROPAGATE_EXCEPTIONS = "propagate_exceptions"
    DISABLE_QUIETLY_AND_REPORT_METRIC_ERROR = "disable_quietly_and_report_metric_error"


class ApplicationType(str, Enum):
    """The kind of an application."""

    TRAINING = "training"
    VALIDATION = "validation"
    BATCH_INFERENCE = "batch_inference"
    ONLINE_INFERENCE = "online_inference"
    DATA_PROCESSING = "data_processing"


@dataclass
class LoggerConfig:
    """How the logger ``stepwell`` logs messages about the telemetry itself.

    Without a ``LoggerConfig`` the logger is not changed. Files are written only if their path is given.
    """

    log_level: str = "INFO"
    log_format: str = "%(name)s - %(levelname)s - %(message)s"
    log_file_path_for_info: str | os.PathLike[str] | None = None
    log_file_path_for_err: str | os.PathLike[str] | None = None

    def apply(self) -> None:
        """Configure the logger ``stepwell``."""
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
    """The fields that every telemetry configuration has."""

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
    """A configuration with assignable fields. Unknown fields are ignored with a warning."""

    def __init__(self, **given: Any) -> None:
        declared = settings_of(type(self))
        unknown = [name for name in given if name not in declared]
        if unknown:
            hints = "; ".join(
                f"unknown field {name}, {nearest(name, declared)}" for name in unknown
            )
            log_warning("%s: %s. Unknown fields are ignored.", type(self).__name__, hints)
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
        error_handling_strategy: with ``PROPAGATE_EXCEPTIONS``, problems inside telemetry are raised and stop
            training. By default they are logged as warnings.
        logger_config: how warnings are logged: a ``LoggerConfig`` or a dict of its fields.
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
        """Apply ``logger_config``, if it was given."""
        if vars(self).get("_logger_config") is not None:
            self.logger_config.apply()


def consistent(base: Any, training: Any) -> Any:
    """Return the training configuration without the fields that the application's configuration sets.

    The original ignores application fields in a training configuration; stepwell would report a conflict.
    """
    if not isinstance(base, ApplicationFields) or not isinstance(training, TrainingTelemetryConfig):
        return training
    shared = (changed_fields(base).keys() & settings_of(ApplicationFields).keys()) - {
        METADATA_FIELD
    }
    kept = {name: value for name, value in changed_fields(training).items() if name not in shared}
    return OneLoggerTrainingConfig(**kept)


def consistent_base(base: Any) -> Any:
    """Return an application's configuration with its training part made consistent with it."""
    if not isinstance(base, ApplicationConfig) or base.telemetry_config is None:
        return base
    return ApplicationConfig(
        **{**changed_fields(base), NESTED: consistent(base, base.telemetry_config)}
    )


def config_of(resolved: ResolvedConfig, base: Any = None) -> OneLoggerConfig:
    """Return a copy of the active configuration as one-logger's class."""
    values = changed_fields(resolved)
    values.pop("has_telemetry_config", None)
    training = {field.name for field in fields(TrainingFields)}
    application = {name: value for name, value in values.items() if name not in training}
    if resolved.has_telemetry_config:
        own = {name: value for name, value in values.items() if name in training}
        own[METADATA_FIELD] = values.get(METADATA_FIELD)
        application[NESTED] = OneLoggerTrainingConfig(**own)
    given = base.logger_config if isinstance(base, OneLoggerConfig) else None
    return OneLoggerConfig(logger_config=given, **application)


FILES = tuple(f"one_logger_exporters_config.{suffix}" for suffix in ("yaml", "yml", "json"))
"""Files in the working directory in which the original looks for exporters."""
FILE_VARIABLE = "ONE_LOGGER_EXPORTER_CONFIG_PATH"
GROUP = "nv_one_logger.exporter_configs"
"""Entry point group of packages that provide exporters."""
THEIRS, OURS = "nv_one_logger.", "stepwell.compat.one_logger."


@dataclass
class ExporterConfig:
    """The class and options of an exporter."""

    class_name: str
    config: dict[str, Any] = field(default_factory=dict)
    enabled: bool = True


def configured_exporters(
    exporters_config: Iterable[Any] | Mapping[str, Any] | None,
    config_file_path: str | os.PathLike[str] | None = None,
) -> list[ConfiguredExporter]:
    """Return the exporters described by a list, a file and installed packages.

    Without ``config_file_path``, the environment variable and the file names of the original are used.
    Errors in a configuration that the caller did not name are only logged.
    """
    from importlib.metadata import entry_points

    exporters: list[ConfiguredExporter] = []
    if exporters_config is not None:
        given = exporters_config
        listed = given.get("exporters") or () if isinstance(given, Mapping) else given
        exporters += load_exporters([_entry(entry) for entry in listed], find_adapted)
    if config_file_path is not None:
        exporters += load_exporters(config_file_path, find_adapted)
    else:
        exporters += _load_guarded(_config_file)
    for point in entry_points(group=GROUP):
        exporters += _load_guarded(partial(_default_entries, point))
    return exporters


def _default_entries(point: EntryPoint) -> list[Any]:
    return [_entry(point.load().get_default_config())]


def _load_guarded(find: Callable[[], Any]) -> list[ConfiguredExporter]:
    try:
        config = find()
        return [] if config is None else load_exporters(config, find_adapted)
    except Exception as error:  # Another package's code may raise anything.
        log_warning("%s. Training continues without this exporter.", text_of(error))
        return []


def find_adapted(name: str, where: str) -> Callable[..., Any]:
    """Return a factory for exporters of this class. Classes of the original are replaced by those here."""
    kind = find_class(OURS + name[len(THEIRS) :] if name.startswith(THEIRS) else name, where)

    @wraps(kind)
    def make(**options: Any) -> Any:
        return adapted(kind(**options))

    return make


def _entry(entry: Any) -> Any:
    if is_dataclass(entry) and not isinstance(entry, type):
        return asdict(entry)
    return adapted(entry)


def _config_file() -> Path | None:
    given = os.environ.get(FILE_VARIABLE)
    if given:
        return Path(given)
    return next((path for path in map(Path, FILES) if path.is_file()), None)
