"""Diagnostics: whether and how a model learns, measured by a call at the end of every batch.

Contains the families of metrics (gradients, weights, learning rates, holdout, batches) and their collector.
Imports telemetry, and PyTorch only when something is collected; never a reader or a backend.
"""

from __future__ import annotations

from stepwell.diagnostics.config import TelemetryConfig
from stepwell.diagnostics.families import families, family, remove_family
from stepwell.diagnostics.records import to_dataframe
from stepwell.diagnostics.telemetry import TrainingTelemetry

__all__ = [
    "TelemetryConfig",
    "TrainingTelemetry",
    "families",
    "family",
    "remove_family",
    "to_dataframe",
]
