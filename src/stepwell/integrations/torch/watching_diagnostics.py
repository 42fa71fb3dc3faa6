"""Diagnostics of a watched training: a look at the model every so many steps."""

from __future__ import annotations

import sys
from typing import Any

from stepwell.diagnostics.config import TelemetryConfig
from stepwell.diagnostics.telemetry import TrainingTelemetry
from stepwell.journal.metrics import context

OF_BATCHES = (
    "batch_stats",
    "activations",
    "dead_units",
    "embeddings",
    "gradient_noise",
    "class_balance",
)


class Diagnostics:
    """What is told of the model, from its first step on.

    Attributes:
        keeps_batch: whether the batch has to be at hand.
    """

    def __init__(self, config: TelemetryConfig | None) -> None:
        self._config = config
        self._telemetry: TrainingTelemetry | None = None
        if config is not None:
            # Now, because importing it in the first step would make that one slow.
            import stepwell.diagnostics.collecting  # noqa: F401
        self.keeps_batch = config is not None and any(
            getattr(config, f"track_{name}") for name in OF_BATCHES
        )

    def look(self, model: Any, optimizer: Any, step: int, batch: Any) -> int:
        """This step was made; returns the next one that is to be told of."""
        if self._config is None or model is None:
            return sys.maxsize
        telemetry = self._telemetry
        if telemetry is None:
            # Where no step is made there is nothing to be said, not even that.
            telemetry = self._telemetry = TrainingTelemetry(self._config)
        telemetry.on_batch_end(model, optimizer, step, context.epoch or 0, None, batch)
        lead, every = telemetry._lead, telemetry._every
        # The next one that it would look at.
        behind = (step + 1 + lead) % every
        return step + 1 + (every - behind if behind > lead else 0)

    def close(self) -> None:
        """Let go of model and optimizer."""
        if self._telemetry is not None:
            self._telemetry.close()
