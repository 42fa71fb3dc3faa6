"""Attributes of spans and events as Weights & Biases metrics, with one-logger's metric names.

These exporters run in a separate process. ``stepwell.loggers.WandBLogger`` is for values that you log.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from stepwell.telemetry.exporter import EventRecord, Exporter, Record, Source

LAST_TIME = "app_last_log_time"
"""Metric with the time of the latest record, in seconds since the epoch."""


@dataclass
class WandBConfig:
    """Where metrics are sent. Prefer ``WANDB_API_KEY`` or ``~/.netrc`` to ``api_key``."""

    entity: str | None = None
    host: str | None = None
    api_key: str | None = field(default=None, repr=False)
    project: str = "one-logger-tracking"
    run_name: str | None = None
    save_dir: str | os.PathLike[str] = "./wandb"
    tags: Sequence[str] = ("e2e_metrics_enabled",)


@dataclass
class HierarchicalMetricNamingStrategy:
    """Metrics are named ``span.attribute`` and ``span.event.attribute``."""

    separator: str | None = "."


@dataclass
class FlatMetricNamingStrategy:
    """Metrics are named after the attribute."""

    separator: None = None


class WandBExporter(Exporter):
    """Logs the attributes of each span and event as a row of a W&B run."""

    name = "wandb"
    out_of_process: ClassVar[bool] = True

    def __init__(
        self,
        config: WandBConfig | Mapping[str, Any] | None = None,
        metric_naming_strategy: HierarchicalMetricNamingStrategy
        | FlatMetricNamingStrategy
        | None = None,
        *,
        separator: str | None = ".",
    ) -> None:
        given = config if isinstance(config, WandBConfig) else WandBConfig(**(config or {}))
        self.config = given
        naming = metric_naming_strategy
        self.separator = separator if naming is None else naming.separator
        # The sending process inherits the environment; options may be written to disk.
        for variable, value in (
            ("WANDB_API_KEY", given.api_key),
            ("WANDB_BASE_URL", given.host),
        ):
            if value:
                os.environ[variable] = value

    def description(self) -> dict[str, Any]:
        """Return how to create the same exporter in another process."""
        config = self.config
        options = {
            "config": {
                "entity": config.entity,
                "project": config.project,
                "run_name": config.run_name,
                "save_dir": os.path.abspath(config.save_dir),
                "tags": list(config.tags),
            },
            "separator": self.separator,
        }
        kind = WandBExporter
        return {"class": f"{kind.__module__}.{kind.__qualname__}", "options": options}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WandBExporter) and other.description() == self.description()

    def __hash__(self) -> int:
        return hash((self.config.project, self.config.run_name))

    def open(self, source: Source) -> None:
        """Start a W&B run. Without an API key it stays offline."""
        from stepwell.loggers.backends.wandb.session import mode_of, start

        config = self.config
        settings = {
            "id": _run_id(source, config.project),
            "project": config.project,
            "entity": config.entity,
            "name": config.run_name or f"{source.application}-{source.run}-{source.rank}",
            "tags": list(config.tags) or None,
            "mode": mode_of({})[0],
        }
        self._names: dict[int, str] = {}
        self._run = start(settings, Path(config.save_dir))

    def export(self, records: Sequence[Record]) -> None:
        """Log one row per record."""
        for record in records:
            if isinstance(record, EventRecord):
                span = self._names.get(record.span or 0, "")
                path, time_ns = [span, record.name], record.time_ns
            else:
                self._names[record.id] = record.name
                path, time_ns = [record.name], record.end_ns or record.start_ns
            row = {
                self._named(*path, name): value
                for name, value in record.attributes.items()
                if isinstance(value, str | int | float)
            }
            self._run.log({**row, LAST_TIME: time_ns / 1e9, "_timestamp": time_ns / 1e9})

    def _named(self, *words: str) -> str:
        return words[-1] if self.separator is None else self.separator.join(filter(None, words))

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()


class WandBExporterSync(WandBExporter):
    """The same exporter: training never waits for a stepwell exporter."""


class WandBExporterAsync(WandBExporter):
    """The same exporter."""


Config = WandBConfig


def _run_id(source: Source, project: str) -> str:
    """Return the W&B run id of a process. A restarted sidecar gets the same id."""
    text = f"{source.run} {source.attempt} {source.process} {project}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]
