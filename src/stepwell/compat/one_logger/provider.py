"""The providers and recorders of one-logger, over stepwell's provider and span recorder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar

from stepwell.compat.one_logger.config import (
    OneLoggerConfig,
    config_of,
    consistent,
    consistent_base,
)
from stepwell.compat.one_logger.exporters import adapted, configured_exporters
from stepwell.compat.one_logger.spans import LiveSpan, as_recorded, event_of, view_of
from stepwell.compat.one_logger.values import (
    OneLoggerEvent,
    TracingTimestamp,
    plain_values,
    seconds_of,
)
from stepwell.journal.errors import StepwellError
from stepwell.telemetry.events import name_of
from stepwell.telemetry.export_filter import MACHINERY, ExportCustomizationMode
from stepwell.telemetry.run import Run
from stepwell.telemetry.span_recorder import SpanRecorder
from stepwell.training import TrainingTelemetryProvider
from stepwell.training.current import current, current_job
from stepwell.training.standard_spans import open_spans


def _provider() -> TrainingTelemetryProvider:
    return TrainingTelemetryProvider.instance()


class OneLoggerRecorder:
    """Starts, ends and describes spans by explicit calls.

    ``OneLoggerProvider.instance().configure(config, recorder)`` gives the run the exporters that it was
    made with.
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
        """End a span; doing so twice is harmless."""
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
        """End all open spans, and the run that the provider started: its exporters are closed."""
        job = current_job()
        if job is not None:
            job.close("finished")
        _provider().finish()


RECORDER = OneLoggerRecorder()


class OneLoggerTrainingProvider:
    """How this process records. Its methods configure stepwell's provider, which there is one of."""

    _instance: ClassVar[OneLoggerTrainingProvider | None] = None

    def __init__(self) -> None:
        self._base: Any = None
        self._is_base_new = False

    @classmethod
    def instance(cls) -> OneLoggerTrainingProvider:
        """Return the one of this process."""
        if OneLoggerTrainingProvider._instance is None:
            OneLoggerTrainingProvider._instance = cls()
        return OneLoggerTrainingProvider._instance

    # Step by step; each takes effect with configure_provider, chained or not

    def with_base_config(self, one_logger_config: Any) -> OneLoggerTrainingProvider:
        """Take this configuration; what is assigned to its fields before the last step counts."""
        if self._is_base_new and self._base is not one_logger_config:
            raise StepwellError(
                "with_base_config is called twice: use with_config_override instead, or reset() to "
                "begin anew"
            )
        self._base, self._is_base_new = one_logger_config, True
        return self

    with_base_telemetry_config = with_base_config

    def with_config_override(
        self, partial_config: Mapping[str, Any] | str | os.PathLike[str]
    ) -> OneLoggerTrainingProvider:
        """Change some fields: a dict, or the path of a YAML or JSON file. The last one wins."""
        _provider().with_config_override(partial_config)
        return self

    def with_config_override_from_json_file(
        self, file_path: str | os.PathLike[str]
    ) -> OneLoggerTrainingProvider:
        """Change the fields that a JSON or YAML file has."""
        return self.with_config_override(file_path)

    def with_exporter(self, exporter: Any) -> OneLoggerTrainingProvider:
        """Give the run this exporter, with stepwell's interface or with that of one-logger."""
        _provider().with_exporter(adapted(exporter))
        return self

    def with_export_customization(
        self,
        export_customization_mode: ExportCustomizationMode,
        span_name_filter: Iterable[str | Enum] | None = None,
    ) -> OneLoggerTrainingProvider:
        """Choose the spans that exporters get; the run itself always has all."""
        names = list(span_name_filter or ()) or None
        if names and export_customization_mode is ExportCustomizationMode.BLACKLIST_SPANS:
            names = [*names, *MACHINERY]
        _provider().with_export_customization(export_customization_mode, names)
        return self

    def with_export_config(
        self,
        exporters_config: Iterable[Any] | Mapping[str, Any] | None = None,
        config_file_path: str | os.PathLike[str] | None = None,
    ) -> OneLoggerTrainingProvider:
        """Take the exporters that a list, a file, or installed packages describe."""
        for made in configured_exporters(exporters_config, config_file_path):
            _provider().with_exporter(made)
        return self

    def configure_provider(self) -> OneLoggerTrainingProvider:
        """Configure with all that, and start a run unless one is active."""
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
        """Configure with this configuration and these exporters, or with those of a recorder."""
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
        """Say how training is configured, when that is known only after the application has started."""
        _provider().set_training_telemetry_config(consistent(self._base, training_telemetry_config))

    # What there is

    @property
    def recorder(self) -> OneLoggerRecorder:
        """Starts, ends and describes spans."""
        return RECORDER

    @property
    def config(self) -> OneLoggerConfig:
        """A copy of the configuration in force."""
        return config_of(_provider().config, self._base)

    @property
    def run(self) -> Run | None:
        """The run that is recorded, None when there is none."""
        return _provider().run

    @property
    def one_logger_ready(self) -> bool:
        """Whether it has been configured."""
        return _provider().is_configured

    @property
    def one_logger_enabled(self) -> bool:
        """Whether it has been configured, and records in this process."""
        return self.one_logger_ready and not current.is_off

    def force_disable_logging(self) -> None:
        """Record no training in this process until it is configured again."""
        _provider().force_disable_logging()

    def reset(self) -> None:
        """Return to the beginning, for tests and notebooks; the run that it started is finished."""
        _provider().reset()
        self._base, self._is_base_new = None, False
