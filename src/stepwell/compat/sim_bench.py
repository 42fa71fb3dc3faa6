"""sim_bench's telemetry names for ``stepwell.diagnostics``.

from stepwell.compat.sim_bench import TelemetryConfig, TrainingTelemetry
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stepwell.diagnostics import TelemetryConfig as _TelemetryConfig
from stepwell.diagnostics import TrainingTelemetry

__all__ = ["TelemetryConfig", "TrainingTelemetry", "init", "record"]

FIELD_NAMES = {
    "track_weight_snapshots": "track_snapshots",
    "track_per_layer_stats": "track_weight_stats",
}
"""Undocumented field names of sim_bench, and the fields of stepwell they set."""
SNAPSHOT_BATCHES = "weight_snapshot_every_n"


class SimBenchConfig(_TelemetryConfig):
    """A ``TelemetryConfig`` that also accepts sim_bench's names for weight snapshots and statistics."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **_renamed(fields))

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> _TelemetryConfig:
        """Return the configuration described by a dict, for example read from YAML."""
        is_dict = isinstance(config_dict, Mapping)
        return super().from_dict(_renamed(config_dict) if is_dict else config_dict)


TelemetryConfig = SimBenchConfig


def _renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    ours = {FIELD_NAMES.get(name, name): value for name, value in fields.items()}
    batches = ours.pop(SNAPSHOT_BATCHES, None)
    if batches is not None:
        every = ours.get("collect_every_n", _TelemetryConfig.collect_every_n)
        ours["snapshot_every"] = max(1, round(batches / every))
    return ours


class _Current:
    """Holds the telemetry that ``record`` uses."""

    telemetry: TrainingTelemetry | None = None


def init(config: Mapping[str, Any], val_loader: Iterable[Any]) -> None:
    """Configure ``record`` from the ``telemetry`` section of a configuration; without one, disable it.

    Args:
        config: the whole configuration. Files are written to ``telemetry`` in its ``output_dir``.
        val_loader: the batches of the holdout set.
    """
    before, _Current.telemetry = _Current.telemetry, None
    if before is not None:
        before.close()
    fields = dict(config.get("telemetry") or {})
    if not fields.get("enabled", False):
        return
    if config.get("output_dir") is not None:
        fields["output_dir"] = Path(config["output_dir"]) / "telemetry"
    _Current.telemetry = TrainingTelemetry(TelemetryConfig.from_dict(fields))
    _Current.telemetry.set_holdout_data(val_loader)


def record(
    model: Any, optimizer: Any, batch_idx: int, epoch: int, device: Any, batch: Any = None
) -> None:
    """Collect diagnostics if they are due after this batch. Does nothing before ``init``."""
    if _Current.telemetry is not None:
        _Current.telemetry.on_batch_end(model, optimizer, batch_idx, epoch, device, batch)
