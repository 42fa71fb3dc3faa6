"""The provider and its builder: one place to say what is recorded, and to get at it again.

Both are thin: the configuration is a plain value, the job and the run are plain objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from stepwell.journal import errors
from stepwell.journal.errors import StepwellError
from stepwell.telemetry.export_filter import ExportCustomizationMode, ExportFilter
from stepwell.telemetry.exporter import Exporter
from stepwell.telemetry.exporter_loading import Configured, load_exporters
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.span_recorder import SpanRecorder
from stepwell.telemetry.start import init
from stepwell.training.config import ApplicationConfig, TrainingTelemetryConfig
from stepwell.training.config_files import read_overrides
from stepwell.training.current import current, current_job
from stepwell.training.job import TrainingJob
from stepwell.training.merging import ResolvedConfig, merged

AnyConfig = ApplicationConfig | TrainingTelemetryConfig


class TrainingTelemetryBuilder:
    """Collects what the provider is configured with; every method but the last returns the builder."""

    def __init__(self) -> None:
        self._base: AnyConfig | None = None
        self._overrides: list[Mapping[str, Any]] = []
        self._exporters: list[Configured] = []
        self._filter: ExportFilter | None = None

    def with_base_config(self, config: AnyConfig) -> TrainingTelemetryBuilder:
        """Take this configuration, of the application or of the training."""
        if self._base is not None and self._base is not config:
            raise StepwellError(
                "with_base_config is called twice: use with_config_override instead"
            )
        self._base = config
        return self

    with_base_telemetry_config = with_base_config

    def with_config_override(
        self, override: Mapping[str, Any] | str | os.PathLike[str]
    ) -> TrainingTelemetryBuilder:
        """Change some fields: a dict, or the path of a YAML or JSON file. The last one wins."""
        if isinstance(override, Mapping):
            self._overrides.append(override)
        else:
            self._overrides.append(read_overrides(override))
        return self

    def with_exporter(self, exporter: Exporter) -> TrainingTelemetryBuilder:
        """Carry the records of the run out with this one too."""
        self._exporters.append(Configured(exporter))
        return self

    def with_export_customization(
        self,
        export_customization_mode: ExportCustomizationMode,
        span_name_filter: Iterable[str | Enum] | None = None,
    ) -> TrainingTelemetryBuilder:
        """Choose the spans that exporters get; the run itself always has all."""
        self._filter = ExportFilter(export_customization_mode, span_name_filter)
        return self

    def with_export_config(
        self,
        exporters_config: Iterable[Any] | Mapping[str, Any] | None = None,
        config_file_path: str | os.PathLike[str] | None = None,
    ) -> TrainingTelemetryBuilder:
        """Take exporters from a list of descriptions, and from a YAML or JSON file.

        Those that ``STEPWELL_EXPORTERS`` names come with every run, also without this.
        """
        for config in (exporters_config, config_file_path):
            if config is not None:
                self._exporters += load_exporters(config)
        return self

    def configure_provider(self) -> TrainingTelemetryProvider:
        """Configure the provider of this process with all that."""
        provider = TrainingTelemetryProvider.instance()
        provider.configure(
            self._base,
            self._exporters,
            overrides=self._overrides,
            export_filter=self._filter,
        )
        return provider


class TrainingTelemetryProvider:
    """What this process records, and with what configuration.

    Configuring it starts a run unless one is active. It can be configured again: new exporters are added,
    the rest stays.
    """

    _instance: TrainingTelemetryProvider | None = None

    def __init__(self) -> None:
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
        """The one of this process."""
        if TrainingTelemetryProvider._instance is None:
            TrainingTelemetryProvider._instance = cls()
        return TrainingTelemetryProvider._instance

    # Building, for those who start from the provider

    def with_base_config(self, config: AnyConfig) -> TrainingTelemetryBuilder:
        """Begin to configure with this configuration."""
        return TrainingTelemetryBuilder().with_base_config(config)

    with_base_telemetry_config = with_base_config

    def with_config_override(
        self, override: Mapping[str, Any] | str | os.PathLike[str]
    ) -> TrainingTelemetryBuilder:
        """Begin to configure with these fields."""
        return TrainingTelemetryBuilder().with_config_override(override)

    def with_exporter(self, exporter: Exporter) -> TrainingTelemetryBuilder:
        """Begin to configure with this exporter."""
        return TrainingTelemetryBuilder().with_exporter(exporter)

    def with_export_customization(
        self,
        export_customization_mode: ExportCustomizationMode,
        span_name_filter: Iterable[str | Enum] | None = None,
    ) -> TrainingTelemetryBuilder:
        """Begin to configure with this choice of spans."""
        return TrainingTelemetryBuilder().with_export_customization(
            export_customization_mode, span_name_filter
        )

    def with_export_config(
        self,
        exporters_config: Iterable[Any] | Mapping[str, Any] | None = None,
        config_file_path: str | os.PathLike[str] | None = None,
    ) -> TrainingTelemetryBuilder:
        """Begin to configure with exporters that are described."""
        return TrainingTelemetryBuilder().with_export_config(exporters_config, config_file_path)

    # Configuring

    def configure(
        self,
        config: AnyConfig | None = None,
        exporters: Iterable[Exporter | Configured] = (),
        *,
        overrides: Iterable[Mapping[str, Any]] = (),
        export_filter: ExportFilter | None = None,
    ) -> None:
        """Record from now on with this configuration and, beside those there are, these exporters.

        What is left out stays as it was.
        """
        base = self._base if config is None else config
        training = self._training if config is None else None
        changes = [*(self._overrides if config is None else []), *overrides]
        resolved = merged(base, training, changes)
        self._base, self._training, self._overrides = base, training, changes
        if export_filter is not None:
            self._filter = export_filter
        self._use(resolved, [e if isinstance(e, Configured) else Configured(e) for e in exporters])

    def set_training_telemetry_config(self, config: TrainingTelemetryConfig) -> None:
        """Say how training is configured, when that is known only after the application has started."""
        if not isinstance(config, TrainingTelemetryConfig):
            raise StepwellError(
                f"set_training_telemetry_config({config!r}): write TrainingTelemetryConfig(…)"
            )
        resolved = merged(self._base, config, self._overrides)
        self._training = config
        self._use(resolved, [])

    def _use(self, config: ResolvedConfig, exporters: list[Configured]) -> None:
        if config.strict or self._is_strict:
            self._is_strict = config.strict
            errors.set_strict(config.strict)
        current.config = config
        is_off = _ask(config, "is_enabled_for_current_rank") is False
        current.switch_off(is_off)
        self._is_configured = True
        if is_off:
            return
        run = self._start_run(config)
        run.label(**_labels(config))
        for added in exporters:
            run.add_exporter(added.exporter, added.filter or self._filter)

    def _start_run(self, config: ResolvedConfig) -> Run:
        run = active_run()
        job = current.job
        if run is None:
            run = init(config.application_name, config=config.to_dict())
            self._run = run
        if job is not None and current.job is job:
            job.reconfigure(config)
        return run

    # What there is

    @property
    def is_configured(self) -> bool:
        """Whether it has been configured."""
        return self._is_configured

    one_logger_ready = is_configured

    @property
    def config(self) -> ResolvedConfig:
        """The configuration in force."""
        if not self._is_configured:
            raise StepwellError(
                "the provider is not configured yet: TrainingTelemetryProvider.instance()"
                ".configure(config=TrainingTelemetryConfig(…))"
            )
        return current.config

    @property
    def job(self) -> TrainingJob | None:
        """The job that is recorded, None when there is none."""
        return current_job()

    @property
    def run(self) -> Run | None:
        """The run that is recorded, None when there is none."""
        return active_run()

    def force_disable_logging(self) -> None:
        """Record no training in this process until it is configured again."""
        current.switch_off(True)

    def reset(self) -> None:
        """Back to the beginning, for tests and notebooks; the run that it started is finished."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()
        current.config = ResolvedConfig()
        current.switch_off(False)
        if self._is_strict:
            errors.set_strict(False)
        self.__init__()  # type: ignore[misc]


def _labels(config: ResolvedConfig) -> dict[str, Any]:
    """What tells runs apart, for run.json."""
    names = ("application_name", "session_tag", "perf_tag", "is_baseline_run")
    return {name: value for name in names if (value := _ask(config, name)) not in (None, False)}


def _ask(config: ResolvedConfig, name: str) -> Any:
    try:
        return getattr(config, name)
    except StepwellError as error:
        errors.misuse(f"config {name}", str(error))
        return None
