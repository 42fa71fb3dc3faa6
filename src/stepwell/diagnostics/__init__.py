"""Diagnostics: whether and how a model learns, from a call at the end of every batch.

Here live the families of numbers (gradients, weights, learning rates, holdout, batches) and what
collects them. Imports telemetry; PyTorch only when something is collected; never a reader or a backend.
"""

from __future__ import annotations

from stepwell.diagnostics.config import TelemetryConfig
from stepwell.diagnostics.families import families, family, remove_family
from stepwell.diagnostics.frames import to_dataframe
from stepwell.diagnostics.telemetry import TrainingTelemetry

__all__ = [
    "TelemetryConfig",
    "TrainingTelemetry",
    "families",
    "family",
    "remove_family",
    "to_dataframe",
]
