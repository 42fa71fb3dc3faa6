"""one-logger's provider and recorder, implemented with stepwell's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar

from stepwell._core.errors import StepwellError
from stepwell.compat.one_logger.config import (
    OneLoggerConfig,
    config_of,
    configured_exporters,
    consistent,
    consistent_base,
)
from stepwell.compat.one_logger.exporters import adapted
from stepwell.compat.one_logger.spans import LiveSpan, as_recorded, event_of, view_of
from stepwell.compat.one_logger.values import (
    OneLoggerEvent,
    TracingTimestamp,
    plain_values,
    seconds_of,
)
from stepwell.telemetry.events import name_of
from stepwell.telemetry.exporter import INTERNAL_SPANS, ExportCustomizationMode
from stepwell.telemetry.run import Run
from stepwell.telemetry.span_recorder import SpanRecorder
from stepwell.training import TrainingTelemetryProvider
from stepwell.training.calls import current, current_job
from stepwell.training.standard_spans import open_spans


def _provider() -> TrainingTelemetryProvider:
    return TrainingTelemetryProvider.instance()


class OneLoggerRecorder:
    """Records spans and events by explicit calls.

    ``OneLoggerProvider.instance().configure(config, recorder)`` adds the recorder's exporters to the run.
    """

    def __init__(
        self,
        exporters: Iterable[Any] = (),
        export_customization_mode: ExportCustomizationMode | None = None,
        span_name_filter: Iterable[str | Enum] | None = None,
    ) -> None:
        self.exporters = list(exporters)
        self.export_customization = (export_customization_mode, span_name_filter)
        self._inner = SpanRecorder()

    def start(
        self,
        span_name: str | Enum,
        span_attributes: Mapping[str, Any] | None = None,
        start_event_attributes: Mapping[str, Any] | None = None,
        start_time: TracingTimestamp | None = None,
        parent_span: Any = None,
    ) -> LiveSpan:
        """Start a span, inside ``parent_span`` or else inside the innermost open one."""
        return view_of(
            self._inner.start(
                span_name,
                plain_values(span_attributes),
                plain_values(start_event_attributes),
                seconds_of(start_time),
                as_recorded(parent_span),
            )
        )

    def stop(
        self,
        span: Any,
        stop_event_attributes: Mapping[str, Any] | None = None,
        stop_time: TracingTimestamp | None = None,
    ) -> None:
        """End a span. Ending it again does nothing."""
        more = plain_values(stop_event_attributes) or None
        self._inner.stop(as_recorded(span), more, seconds_of(stop_time))

    def event(self, *args: Any, **kwargs: Any) -> OneLoggerEvent:
        """Record an event: ``event(span, event)``, or ``event(event)`` on the innermost open span."""
        given = [*args, *(kwargs[name] for name in ("span", "event") if name in kwargs)]
        recorded = self._inner.event(*map(as_recorded, given))
        event: Any = given[-1] if given else None
        return event if isinstance(event, OneLoggerEvent) else event_of(recorded)

    def error(
        self, span: Any, error_message: str, exception: BaseException | None = None
    ) -> OneLoggerEvent:
        """Record an error on a span."""
        return event_of(self._inner.error(as_recorded(span), error_message, exception))

    def telemetry_data_error(
        self, error_message: str, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Record that the telemetry itself is incomplete, and why."""
        self._inner.telemetry_data_error(error_message, plain_values(attributes))

    def get_active_spans_by_name(self, span_name: str | Enum) -> list[LiveSpan]:
        """Return the open spans of this name, the oldest first."""
        name = name_of(span_name)
        return [view_of(span) for span in reversed(open_spans()) if span.name == name]

    def close(self) -> None:
        """End all open spans and the run that the provider started. This closes its exporters."""
        job = current_job()
        if job is not None:
            job.close("finished")
        _provider().finish()


RECORDER = OneLoggerRecorder()


class OneLoggerTrainingProvider:
    """Configures how this process records, through stepwell's only provider."""

    _instance: ClassVar[OneLoggerTrainingProvider | None] = None

    def __init__(self) -> None:
        self._base: Any = None
        self._is_base_new = False

    @classmethod
    def instance(cls) -> OneLoggerTrainingProvider:
        """Return the provider of this process."""
        if OneLoggerTrainingProvider._instance is None:
            OneLoggerTrainingProvider._instance = cls()
        return OneLoggerTrainingProvider._instance

    # Builder methods; they take effect with configure_provider

    def with_base_config(self, one_logger_config: Any) -> OneLoggerTrainingProvider:
        """Use this configuration. Its fields are read in ``configure_provider``."""
        if self._is_base_new and self._base is not one_logger_config:
            raise StepwellError(
                "with_base_config was called twice: use with_config_override instead, or reset() to "
                "start over"
            )
        self._base, self._is_base_new = one_logger_config, True
        return self

    with_base_telemetry_config = with_base_config

    def with_config_override(
        self, partial_config: Mapping[str, Any] | str | os.PathLike[str]
    ) -> OneLoggerTrainingProvider:
        """Override some fields: a dict, or the path of a YAML or JSON file. Later overrides win."""
        _provider().with_config_override(partial_config)
        return self

    def with_config_override_from_json_file(
        self, file_path: str | os.PathLike[str]
    ) -> OneLoggerTrainingProvider:
        """Override the fields in a JSON or YAML file."""
        return self.with_config_override(file_path)

    def with_exporter(self, exporter: Any) -> OneLoggerTrainingProvider:
        """Add an exporter with stepwell's or one-logger's interface."""
        _provider().with_exporter(adapted(exporter))
        return self

    def with_export_customization(
        self,
        export_customization_mode: ExportCustomizationMode,
        span_name_filter: Iterable[str | Enum] | None = None,
    ) -> OneLoggerTrainingProvider:
        """Choose the spans that exporters receive. The run itself always contains all spans."""
        names = list(span_name_filter or ()) or None
        if names and export_customization_mode is ExportCustomizationMode.DENY_LIST:
            names = [*names, *INTERNAL_SPANS]
        _provider().with_export_customization(export_customization_mode, names)
        return self

    def with_export_config(
        self,
        exporters_config: Iterable[Any] | Mapping[str, Any] | None = None,
        config_file_path: str | os.PathLike[str] | None = None,
    ) -> OneLoggerTrainingProvider:
        """Add the exporters described by a list, a file or installed packages."""
        for exporter in configured_exporters(exporters_config, config_file_path):
            _provider().with_exporter(exporter)
        return self

    def configure_provider(self) -> OneLoggerTrainingProvider:
        """Apply the configuration, and start a run unless one is active."""
        if self._is_base_new:
            self._is_base_new = False
            _provider().with_base_config(consistent_base(self._base))
        _provider().configure_provider()
        if isinstance(self._base, OneLoggerConfig):
            self._base.apply_logging()
        return self

    def configure(
        self,
        config: Any = None,
        exporters: Iterable[Any] | OneLoggerRecorder = (),
        recorder: OneLoggerRecorder | None = None,
    ) -> None:
        """Apply a configuration, with the given exporters or those of a recorder."""
        source = exporters if isinstance(exporters, OneLoggerRecorder) else recorder
        listed = [] if isinstance(exporters, OneLoggerRecorder) else list(exporters)
        if config is not None:
            self.with_base_config(config)
        if source is not None:
            listed += source.exporters
            mode, names = source.export_customization
            if mode is not None:
                self.with_export_customization(mode, names)
        for exporter in listed:
            self.with_exporter(exporter)
        self.configure_provider()

    def set_training_telemetry_config(self, training_telemetry_config: Any) -> None:
        """Set the training configuration after the application has started."""
        _provider().set_training_telemetry_config(consistent(self._base, training_telemetry_config))

    # State

    @property
    def recorder(self) -> OneLoggerRecorder:
        """The recorder of this process."""
        return RECORDER

    @property
    def config(self) -> OneLoggerConfig:
        """A copy of the active configuration."""
        return config_of(_provider().config, self._base)

    @property
    def run(self) -> Run | None:
        """The active run, or None."""
        return _provider().run

    @property
    def one_logger_ready(self) -> bool:
        """Whether the provider is configured."""
        return _provider().is_configured

    @property
    def one_logger_enabled(self) -> bool:
        """Whether the provider is configured and records in this process."""
        return self.one_logger_ready and not current.is_off

    def force_disable_logging(self) -> None:
        """Stop recording training in this process until it is configured again."""
        _provider().force_disable_logging()

    def reset(self) -> None:
        """Finish the provider's run and forget the configuration, for tests and notebooks."""
        _provider().reset()
        self._base, self._is_base_new = None, False
