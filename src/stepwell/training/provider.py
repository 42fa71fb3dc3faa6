"""The provider and its builder: one place to say what is recorded, and to get at it again.

Both are thin: the configuration is a plain value, the job and the run are plain objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

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
B = TypeVar("B", bound="TrainingTelemetryBuilder")


@dataclass
class ProviderPlan:
    """What ``configure_provider`` is going to configure with."""

    base: AnyConfig | None = None
    overrides: list[Mapping[str, Any]] = field(default_factory=list)
    exporters: list[Configured] = field(default_factory=list)
    filter: ExportFilter | None = None


class TrainingTelemetryBuilder:
    """Collects what the provider is configured with; every method but the last returns the builder."""

    def __init__(self) -> None:
        self._plan = ProviderPlan()

    def with_base_config(self: B, config: AnyConfig) -> B:
        """Take this configuration, of the application or of the training."""
        if self._plan.base is not None and self._plan.base is not config:
            raise StepwellError(
                "with_base_config is called twice: use with_config_override instead, or "
                "TrainingTelemetryProvider.instance().reset() to begin anew"
            )
        self._plan.base = config
        return self

    def with_base_telemetry_config(self: B, config: AnyConfig) -> B:
        """Take this configuration, of the application or of the training."""
        return self.with_base_config(config)

    def with_config_override(self: B, override: Mapping[str, Any] | str | os.PathLike[str]) -> B:
        """Change some fields: a dict, or the path of a YAML or JSON file. The last one wins."""
        read = override if isinstance(override, Mapping) else read_overrides(override)
        self._plan.overrides.append(read)
        return self

    def with_exporter(self: B, exporter: Exporter | Configured) -> B:
        """Carry the records of the run out with this one too."""
        self._plan.exporters.append(_configured(exporter))
        return self

    def with_export_customization(
        self: B,
        export_customization_mode: ExportCustomizationMode,
        span_name_filter: Iterable[str | Enum] | None = None,
    ) -> B:
        """Choose the spans that exporters get; the run itself always has all."""
        self._plan.filter = ExportFilter(export_customization_mode, span_name_filter)
        return self

    def with_export_config(
        self: B,
        exporters_config: Iterable[Any] | Mapping[str, Any] | None = None,
        config_file_path: str | os.PathLike[str] | None = None,
    ) -> B:
        """Take exporters from a list of descriptions, and from a YAML or JSON file.

        Those that ``STEPWELL_EXPORTERS`` names come with every run, also without this.
        """
        for config in (exporters_config, config_file_path):
            if config is not None:
                self._plan.exporters += load_exporters(config)
        return self

    def configure_provider(self) -> TrainingTelemetryProvider:
        """Configure the provider of this process with all that."""
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
    """What this process records, and with what configuration.

    Configuring it starts a run unless one is active. It can be configured again: new exporters are added,
    the rest stays. It is its own builder: the ``with_…`` methods take effect with ``configure_provider``.
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
        """The one of this process."""
        if TrainingTelemetryProvider._instance is None:
            TrainingTelemetryProvider._instance = cls()
        return TrainingTelemetryProvider._instance

    def configure_provider(self) -> TrainingTelemetryProvider:
        """Configure it with what the ``with_…`` methods were given since the last time."""
        try:
            return super().configure_provider()
        finally:
            self._plan = ProviderPlan()

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
        self._use(resolved, list(map(_configured, exporters)))

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

    def finish(self) -> None:
        """Finish the run that it started; a run that you started goes on."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def reset(self) -> None:
        """Back to the beginning, for tests and notebooks; the run that it started is finished."""
        self.finish()
        current.config = ResolvedConfig()
        current.switch_off(False)
        if self._is_strict:
            errors.set_strict(False)
        self.__init__()  # type: ignore[misc]


def _configured(exporter: Exporter | Configured) -> Configured:
    return exporter if isinstance(exporter, Configured) else Configured(exporter)


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
