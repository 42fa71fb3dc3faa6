"""nv-one-logger's names for ``stepwell.training`` and ``stepwell.exporters``.

from stepwell.compat.one_logger import OneLoggerConfig, TrainingTelemetryProvider, training_loop

Every module path of the original exists here too: replace ``nv_one_logger`` by ``stepwell.compat.one_logger``
in your imports. If you cannot change the program, call ``install()`` before it is imported. Lightning is
imported only when one of its names is used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from stepwell import training as _training
from stepwell._core.errors import StepwellError as OneLoggerError
from stepwell.compat.one_logger.config import (
    ApplicationType,
    ExporterConfig,
    LoggerConfig,
    OneLoggerConfig,
    OneLoggerErrorHandlingStrategy,
)
from stepwell.compat.one_logger.config import OneLoggerTelemetryConfig as TelemetryConfig
from stepwell.compat.one_logger.config import OneLoggerTrainingConfig as TrainingTelemetryConfig
from stepwell.compat.one_logger.exporters import BaseExporter, BaseJsonExporter
from stepwell.compat.one_logger.exporters import OneLoggerExporter as Exporter
from stepwell.compat.one_logger.provider import RECORDER
from stepwell.compat.one_logger.provider import OneLoggerRecorder as DefaultRecorder
from stepwell.compat.one_logger.provider import OneLoggerTrainingProvider as OneLoggerProvider
from stepwell.compat.one_logger.spans import (
    LiveSpan,
    Viewed,
    entering_views,
    returning_views,
    view_of,
)
from stepwell.compat.one_logger.spans import OneLoggerSpan as Span
from stepwell.compat.one_logger.values import (
    Attribute,
    CheckpointSaveSpanAttributes,
    ErrorEvent,
    ExportError,
    OneLoggerInitializationAttributes,
    SaveCheckpointSuccessEventAttributes,
    StandardEventName,
    StandardSpanName,
    SyncCheckpointMetricsUpdateAttributes,
    TelemetryDataError,
    TestingMetricsUpdateAttributes,
    TracingTimestamp,
    TrainingLoopAttributes,
    TrainingMetricsUpdateAttributes,
    TrainingTelemetryAttributes,
    ValidationMetricsUpdateAttributes,
    plain_values,
)
from stepwell.compat.one_logger.values import OneLoggerAttributes as Attributes
from stepwell.compat.one_logger.values import OneLoggerEvent as Event
from stepwell.exporters.file import FileExporter
from stepwell.exporters.python_logging import LoggingExporter as LoggerExporter
from stepwell.telemetry.exporter import ExportCustomizationMode
from stepwell.telemetry.span_handle import timed_span as _timed_span
from stepwell.training import CheckPointStrategy, SaveCheckpointFailureEventAttributes
from stepwell.vocabulary import SHORT_SPANS as DEFAULT_SPANS_EXPORT_BLACKLIST
from stepwell.vocabulary import StandardTrainingJobEventName, StandardTrainingJobSpanName

Recorder = TrainingRecorder = DefaultRecorder
TrainingTelemetryProvider = OneLoggerProvider

_CALLS = [name for name in _training.__all__ if name.islower()]
"""The callbacks, and the functions that return context managers."""
_FREQUENT = {
    *DEFAULT_SPANS_EXPORT_BLACKLIST,
    *(name.replace("_single", "") for name in DEFAULT_SPANS_EXPORT_BLACKLIST),
}
"""The spans of every iteration, by their names in callbacks and in context managers."""


def _with_views(name: str) -> Any:
    """Return the function of this name in ``stepwell.training``, with one-logger's spans as its results."""
    function = getattr(_training, name)
    span = name.removeprefix("on_").removesuffix("_start")
    view = LiveSpan if span in _FREQUENT else view_of
    if not name.startswith("on_"):
        return entering_views(function, view)
    return returning_views(function, view) if name.endswith("_start") else function


globals().update({name: _with_views(name) for name in _CALLS})

__all__ = [
    *_CALLS,
    "DEFAULT_SPANS_EXPORT_BLACKLIST",
    "ApplicationType",
    "Attribute",
    "Attributes",
    "BaseExporter",
    "BaseJsonExporter",
    "CheckPointStrategy",
    "CheckpointSaveSpanAttributes",
    "DefaultRecorder",
    "ErrorEvent",
    "Event",
    "ExportCustomizationMode",
    "ExportError",
    "Exporter",
    "ExporterConfig",
    "FileExporter",
    "LoggerConfig",
    "LoggerExporter",
    "OneLoggerConfig",
    "OneLoggerError",
    "OneLoggerErrorHandlingStrategy",
    "OneLoggerInitializationAttributes",
    "OneLoggerProvider",
    "Recorder",
    "SaveCheckpointFailureEventAttributes",
    "SaveCheckpointSuccessEventAttributes",
    "Span",
    "StandardEventName",
    "StandardSpanName",
    "StandardTrainingJobEventName",
    "StandardTrainingJobSpanName",
    "SyncCheckpointMetricsUpdateAttributes",
    "TelemetryConfig",
    "TelemetryDataError",
    "TestingMetricsUpdateAttributes",
    "TracingTimestamp",
    "TrainingLoopAttributes",
    "TrainingMetricsUpdateAttributes",
    "TrainingRecorder",
    "TrainingTelemetryAttributes",
    "TrainingTelemetryBuilder",
    "TrainingTelemetryConfig",
    "TrainingTelemetryProvider",
    "ValidationMetricsUpdateAttributes",
    "get_recorder",
    "install",
    "timed_span",
]

_LIGHTNING = "stepwell.compat.lightning"
_OTEL = "stepwell.compat.one_logger.exporters"
_WANDB = "stepwell.compat.one_logger.wandb_exporter"
_LAZY = {
    "OneLoggerPTLTrainer": _LIGHTNING,
    "TimeEventCallback": _LIGHTNING,
    "hook_trainer_cls": _LIGHTNING,
    "OTelExporter": _OTEL,
    "Config": _WANDB,
    "FlatMetricNamingStrategy": _WANDB,
    "HierarchicalMetricNamingStrategy": _WANDB,
    "WandBExporterAsync": _WANDB,
    "WandBExporterSync": _WANDB,
}
"""Names that are imported on use, because they need another library, and their modules."""

_PATHS = [
    "api",
    "api.config",
    "api.one_logger_provider",
    "api.recorder",
    "api.telemetry_config",
    "api.timed_span",
    "core",
    "core.attributes",
    "core.event",
    "core.exceptions",
    "core.span",
    "core.time",
    "exporter",
    "exporter.base_json_exporter",
    "exporter.export_config_manager",
    "exporter.exporter",
    "exporter.exporter_config",
    "exporter.file_exporter",
    "exporter.logger_exporter",
    "otel",
    "otel.exporter",
    "otel.exporter.otel_exporter",
    "recorder",
    "recorder.default_recorder",
    "training_telemetry",
    "training_telemetry.api",
    "training_telemetry.api.attributes",
    "training_telemetry.api.callbacks",
    "training_telemetry.api.checkpoint",
    "training_telemetry.api.config",
    "training_telemetry.api.context",
    "training_telemetry.api.events",
    "training_telemetry.api.spans",
    "training_telemetry.api.training_recorder",
    "training_telemetry.api.training_telemetry_provider",
    "training_telemetry.integration",
    "training_telemetry.integration.pytorch_lightning",
    "wandb",
    "wandb.exporter",
    "wandb.exporter.wandb_exporter",
]
"""Module paths of the original."""


def timed_span(
    name: str | Enum,
    span_attributes: Mapping[str, Any] | None = None,
    start_event_attributes: Mapping[str, Any] | None = None,
) -> Viewed:
    """Record a span: in a ``with`` statement, which returns the span, or as a decorator."""
    more = plain_values(start_event_attributes)
    return Viewed(_timed_span(name, plain_values(span_attributes), more), view_of)


def get_recorder() -> DefaultRecorder:
    """Return the recorder of this process."""
    return RECORDER


def TrainingTelemetryBuilder() -> OneLoggerProvider:
    """Return the provider of this process, which is its own builder."""
    return OneLoggerProvider.instance()


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


class OriginalModule(ModuleType):
    """Stands for a module of the original; contains every name of this package."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__path__: list[str] = []
        self.__all__ = __all__

    def __getattr__(self, name: str) -> Any:
        if name in __all__ or name in _LAZY:
            return getattr(sys.modules[__name__], name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


_modules = {path: OriginalModule(f"{__name__}.{path}") for path in _PATHS}


def _register(root: str) -> None:
    for path, module in _modules.items():
        sys.modules[f"{root}.{path}"] = module
        parent, _, name = path.rpartition(".")
        setattr(_modules[parent] if parent else sys.modules[root], name, module)


def install() -> None:
    """Make ``import nv_one_logger`` import this package, for programs that you cannot change.

    Call it before the program is imported. The original does not have to be installed.
    """
    imported = sys.modules.get("nv_one_logger")
    if imported is sys.modules[__name__]:
        return
    if imported is not None:
        raise OneLoggerError("nv_one_logger is already imported: call install() earlier")
    sys.modules["nv_one_logger"] = sys.modules[__name__]
    _register("nv_one_logger")


_register(__name__)
