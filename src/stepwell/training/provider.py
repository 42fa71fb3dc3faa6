"""The provider and its builder: one place to configure recording, and to access the job and the run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from stepwell._core import errors
from stepwell._core.errors import StepwellError
from stepwell._core.values import shown
from stepwell.telemetry.exporter import Exporter, ExportFilter, ExportMode
from stepwell.telemetry.exporter_config import ConfiguredExporter, load_exporters
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.span_recorder import SpanRecorder
from stepwell.telemetry.start import init
from stepwell.training.calls import current, current_job
from stepwell.training.config import ApplicationConfig, TrainingTelemetryConfig
from stepwell.training.job import TrainingJob
from stepwell.training.resolved_config import ResolvedConfig, merged, read_overrides

AnyConfig = ApplicationConfig | TrainingTelemetryConfig
B = TypeVar("B", bound="TrainingTelemetryBuilder")


@dataclass
class ProviderPlan:
    """The arguments that ``configure_provider`` will use."""

    base: AnyConfig | None = None
    overrides: list[Mapping[str, Any]] = field(default_factory=list)
    exporters: list[ConfiguredExporter] = field(default_factory=list)
    filter: ExportFilter | None = None


class TrainingTelemetryBuilder:
    """Collects the configuration of the provider. Every method but the last returns the builder."""

    def __init__(self) -> None:
        self._plan = ProviderPlan()

    def with_base_config(self: B, config: AnyConfig) -> B:
        """Set the configuration, of the application or of the training."""
        if self._plan.base is not None and self._plan.base is not config:
            raise StepwellError(
                "with_base_config was called twice. Use with_config_override to change fields, or "
                "TrainingTelemetryProvider.instance().reset() to start over."
            )
        self._plan.base = config
        return self

    def with_base_telemetry_config(self: B, config: AnyConfig) -> B:
        """Alias of ``with_base_config``."""
        return self.with_base_config(config)

    def with_config_override(self: B, override: Mapping[str, Any] | str | os.PathLike[str]) -> B:
        """Change some fields, by a dict or the path of a YAML or JSON file. The last override wins."""
        read = override if isinstance(override, Mapping) else read_overrides(override)
        self._plan.overrides.append(read)
        return self

    def with_exporter(self: B, exporter: Exporter | ConfiguredExporter) -> B:
        """Add an exporter for the records of the run."""
        self._plan.exporters.append(_configured(exporter))
        return self

    def with_export_customization(
        self: B,
        export_customization_mode: ExportMode,
        span_name_filter: Iterable[str | Enum] | None = None,
    ) -> B:
        """Select the spans that exporters get. The run itself always contains all."""
        self._plan.filter = ExportFilter(export_customization_mode, span_name_filter)
        return self

    def with_export_config(
        self: B,
        exporters_config: Iterable[Any] | Mapping[str, Any] | None = None,
        config_file_path: str | os.PathLike[str] | None = None,
    ) -> B:
        """Add exporters from a list of descriptions, and from a YAML or JSON file.

        The exporters in ``STEPWELL_EXPORTERS`` are added to every run anyway.
        """
        for config in (exporters_config, config_file_path):
            if config is not None:
                self._plan.exporters += load_exporters(config)
        return self

    def configure_provider(self) -> TrainingTelemetryProvider:
        """Configure the provider of this process."""
        provider = TrainingTelemetryProvider.instance()
        plan = self._plan
        provider.configure(
            plan.base,
            plan.exporters,
            overrides=plan.overrides,
            export_filter=plan.filter,
        )
        return provider


class TrainingTelemetryProvider(TrainingTelemetryBuilder):
    """The configuration of recording in this process.

    Configuring it starts a run unless one is active. If it is configured again, new exporters are added and
    the rest is kept. It is its own builder: the ``with_…`` methods take effect with ``configure_provider``.
    """

    _instance: TrainingTelemetryProvider | None = None

    def __init__(self) -> None:
        super().__init__()
        self.recorder = SpanRecorder()
        self._base: AnyConfig | None = None
        self._training: TrainingTelemetryConfig | None = None
        self._overrides: list[Mapping[str, Any]] = []
        self._filter: ExportFilter | None = None
        self._run: Run | None = None
        self._is_configured = False
        self._is_strict = False

    @classmethod
    def instance(cls) -> TrainingTelemetryProvider:
        """Return the provider of this process."""
        if TrainingTelemetryProvider._instance is None:
            TrainingTelemetryProvider._instance = cls()
        return TrainingTelemetryProvider._instance

    def configure_provider(self) -> TrainingTelemetryProvider:
        """Configure it with the arguments of the ``with_…`` methods since the last time."""
        try:
            return super().configure_provider()
        finally:
            self._plan = ProviderPlan()

    def configure(
        self,
        config: AnyConfig | None = None,
        exporters: Iterable[Exporter | ConfiguredExporter] = (),
        *,
        overrides: Iterable[Mapping[str, Any]] = (),
        export_filter: ExportFilter | None = None,
    ) -> None:
        """Record with this configuration from now on, and add these exporters.

        Arguments that are not given keep their previous value.
        """
        base = self._base if config is None else config
        training = self._training if config is None else None
        changes = [*(self._overrides if config is None else []), *overrides]
        resolved = merged(base, training, changes)
        self._base, self._training, self._overrides = base, training, changes
        if export_filter is not None:
            self._filter = export_filter
        self._use(resolved, list(map(_configured, exporters)))

    def set_training_telemetry_config(self, config: TrainingTelemetryConfig) -> None:
        """Set the configuration of training, after the application has started."""
        if not isinstance(config, TrainingTelemetryConfig):
            raise StepwellError(f"config must be a TrainingTelemetryConfig, got {shown(config)}")
        resolved = merged(self._base, config, self._overrides)
        self._training = config
        self._use(resolved, [])

    def _use(self, config: ResolvedConfig, exporters: list[ConfiguredExporter]) -> None:
        if config.strict or self._is_strict:
            self._is_strict = config.strict
            errors.set_strict(config.strict)
        current.config = config
        is_off = config.ask("is_enabled_for_current_rank") is False
        current.switch_off(is_off)
        self._is_configured = True
        if is_off:
            return
        run = self._start_run(config)
        run.label(**_labels(config))
        for added in exporters:
            run.add_exporter(added.exporter, added.filter or self._filter)

    def _start_run(self, config: ResolvedConfig) -> Run:
        job = current.job
        run = active_run()
        if run is None:
            run = init(config.application_name, config=config.to_dict())
            self._run = run
        if job is not None and current.job is job:
            job.reconfigure(config)
        return run

    # State

    @property
    def is_configured(self) -> bool:
        """Whether it has been configured."""
        return self._is_configured

    one_logger_ready = is_configured

    @property
    def config(self) -> ResolvedConfig:
        """The current configuration."""
        if not self._is_configured:
            raise StepwellError(
                "The provider is not configured. Call TrainingTelemetryProvider.instance()"
                ".configure(config=TrainingTelemetryConfig(…)) first."
            )
        return current.config

    @property
    def job(self) -> TrainingJob | None:
        """The current job, None if there is none."""
        return current_job()

    @property
    def run(self) -> Run | None:
        """The active run, None if there is none."""
        return active_run()

    def force_disable_logging(self) -> None:
        """Stop recording training in this process, until it is configured again."""
        current.switch_off(True)

    def finish(self) -> None:
        """Finish the run, if the provider started it."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def reset(self) -> None:
        """Reset the provider, for tests and notebooks. A run that it started is finished."""
        self.finish()
        current.config = ResolvedConfig()
        current.switch_off(False)
        if self._is_strict:
            errors.set_strict(False)
        self.__init__()  # type: ignore[misc]


def _configured(exporter: Exporter | ConfiguredExporter) -> ConfiguredExporter:
    return exporter if isinstance(exporter, ConfiguredExporter) else ConfiguredExporter(exporter)


def _labels(config: ResolvedConfig) -> dict[str, Any]:
    """Return the labels of the run, for run.json."""
    names = ("application_name", "session_tag", "perf_tag", "is_baseline_run")
    return {name: value for name in names if (value := config.ask(name)) not in (None, False)}
