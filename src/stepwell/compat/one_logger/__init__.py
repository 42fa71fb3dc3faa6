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
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from stepwell.compat.lightning import OneLoggerPTLTrainer as OneLoggerPTLTrainer
    from stepwell.compat.lightning import TimeEventCallback as TimeEventCallback
    from stepwell.compat.lightning import hook_trainer_cls as hook_trainer_cls
    from stepwell.compat.one_logger.exporters import OTelExporter as OTelExporter
    from stepwell.compat.one_logger.wandb_exporter import Config as Config
    from stepwell.compat.one_logger.wandb_exporter import (
        FlatMetricNamingStrategy as FlatMetricNamingStrategy,
    )
    from stepwell.compat.one_logger.wandb_exporter import (
        HierarchicalMetricNamingStrategy as HierarchicalMetricNamingStrategy,
    )
    from stepwell.compat.one_logger.wandb_exporter import WandBExporterAsync as WandBExporterAsync
    from stepwell.compat.one_logger.wandb_exporter import WandBExporterSync as WandBExporterSync

Recorder = TrainingRecorder = DefaultRecorder
TrainingTelemetryProvider = OneLoggerProvider

# Callbacks that start a span, and context managers, return the span with one-logger's interface. Spans of
# every iteration use LiveSpan itself, which is faster.

# Callbacks: the application

on_app_start = returning_views(_training.on_app_start)
on_app_end = _training.on_app_end

# Callbacks: setting up

on_distributed_init_start = returning_views(_training.on_distributed_init_start)
on_distributed_init_end = _training.on_distributed_init_end
on_model_init_start = returning_views(_training.on_model_init_start)
on_model_init_end = _training.on_model_init_end
on_dataloader_init_start = returning_views(_training.on_dataloader_init_start)
on_dataloader_init_end = _training.on_dataloader_init_end
on_optimizer_init_start = returning_views(_training.on_optimizer_init_start)
on_optimizer_init_end = _training.on_optimizer_init_end
on_load_checkpoint_start = returning_views(_training.on_load_checkpoint_start)
on_load_checkpoint_end = _training.on_load_checkpoint_end

# Callbacks: training

on_train_start = returning_views(_training.on_train_start)
on_train_end = _training.on_train_end
on_training_single_iteration_start = returning_views(
    _training.on_training_single_iteration_start, LiveSpan
)
on_training_single_iteration_end = _training.on_training_single_iteration_end
on_data_loading_start = returning_views(_training.on_data_loading_start, LiveSpan)
on_data_loading_end = _training.on_data_loading_end
on_model_forward_start = returning_views(_training.on_model_forward_start, LiveSpan)
on_model_forward_end = _training.on_model_forward_end
on_zero_grad_start = returning_views(_training.on_zero_grad_start, LiveSpan)
on_zero_grad_end = _training.on_zero_grad_end
on_model_backward_start = returning_views(_training.on_model_backward_start, LiveSpan)
on_model_backward_end = _training.on_model_backward_end
on_optimizer_update_start = returning_views(_training.on_optimizer_update_start, LiveSpan)
on_optimizer_update_end = _training.on_optimizer_update_end

# Callbacks: validation and testing

on_validation_start = returning_views(_training.on_validation_start)
on_validation_end = _training.on_validation_end
on_validation_single_iteration_start = returning_views(
    _training.on_validation_single_iteration_start, LiveSpan
)
on_validation_single_iteration_end = _training.on_validation_single_iteration_end
on_testing_start = returning_views(_training.on_testing_start)
on_testing_end = _training.on_testing_end
on_testing_single_iteration_start = returning_views(
    _training.on_testing_single_iteration_start, LiveSpan
)
on_testing_single_iteration_end = _training.on_testing_single_iteration_end

# Callbacks: saving checkpoints

on_save_checkpoint_start = returning_views(_training.on_save_checkpoint_start)
on_save_checkpoint_success = _training.on_save_checkpoint_success
on_save_checkpoint_failure = _training.on_save_checkpoint_failure
on_save_checkpoint_end = _training.on_save_checkpoint_end
on_save_checkpoint_finalization_start = returning_views(
    _training.on_save_checkpoint_finalization_start
)
on_save_checkpoint_finalization_end = _training.on_save_checkpoint_finalization_end

# Context managers: application and setup

application = entering_views(_training.application)
distributed_init = entering_views(_training.distributed_init)
model_init = entering_views(_training.model_init)
dataloader_init = entering_views(_training.dataloader_init)
optimizer_init = entering_views(_training.optimizer_init)
checkpoint_load = entering_views(_training.checkpoint_load)

# Context managers: training

training_loop = entering_views(_training.training_loop)
training_iteration = entering_views(_training.training_iteration, LiveSpan)
data_loading = entering_views(_training.data_loading, LiveSpan)
model_forward = entering_views(_training.model_forward, LiveSpan)
zero_grad = entering_views(_training.zero_grad, LiveSpan)
model_backward = entering_views(_training.model_backward, LiveSpan)
optimizer_update = entering_views(_training.optimizer_update, LiveSpan)

# Context managers: validation and testing

validation_loop = entering_views(_training.validation_loop)
validation_iteration = entering_views(_training.validation_iteration, LiveSpan)
testing_loop = entering_views(_training.testing_loop)
testing_iteration = entering_views(_training.testing_iteration, LiveSpan)

# Context managers: saving checkpoints

checkpoint_save = entering_views(_training.checkpoint_save)
checkpoint_save_finalization = entering_views(_training.checkpoint_save_finalization)

__all__ = [
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
    "application",
    "checkpoint_load",
    "checkpoint_save",
    "checkpoint_save_finalization",
    "data_loading",
    "dataloader_init",
    "distributed_init",
    "get_recorder",
    "install",
    "model_backward",
    "model_forward",
    "model_init",
    "on_app_end",
    "on_app_start",
    "on_data_loading_end",
    "on_data_loading_start",
    "on_dataloader_init_end",
    "on_dataloader_init_start",
    "on_distributed_init_end",
    "on_distributed_init_start",
    "on_load_checkpoint_end",
    "on_load_checkpoint_start",
    "on_model_backward_end",
    "on_model_backward_start",
    "on_model_forward_end",
    "on_model_forward_start",
    "on_model_init_end",
    "on_model_init_start",
    "on_optimizer_init_end",
    "on_optimizer_init_start",
    "on_optimizer_update_end",
    "on_optimizer_update_start",
    "on_save_checkpoint_end",
    "on_save_checkpoint_failure",
    "on_save_checkpoint_finalization_end",
    "on_save_checkpoint_finalization_start",
    "on_save_checkpoint_start",
    "on_save_checkpoint_success",
    "on_testing_end",
    "on_testing_single_iteration_end",
    "on_testing_single_iteration_start",
    "on_testing_start",
    "on_train_end",
    "on_train_start",
    "on_training_single_iteration_end",
    "on_training_single_iteration_start",
    "on_validation_end",
    "on_validation_single_iteration_end",
    "on_validation_single_iteration_start",
    "on_validation_start",
    "on_zero_grad_end",
    "on_zero_grad_start",
    "optimizer_init",
    "optimizer_update",
    "testing_iteration",
    "testing_loop",
    "timed_span",
    "training_iteration",
    "training_loop",
    "validation_iteration",
    "validation_loop",
    "zero_grad",
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


if not TYPE_CHECKING:  # Type checkers would accept every name.

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
