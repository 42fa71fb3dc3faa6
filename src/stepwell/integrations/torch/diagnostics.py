"""The diagnostics that every integration has by default: gradient norms and learning rates."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stepwell.diagnostics.config import TelemetryConfig
from stepwell.diagnostics.gradients import innermost
from stepwell.diagnostics.sharding import is_sharded
from stepwell.integrations.torch.watching_diagnostics import Diagnostics
from stepwell.journal.errors import report

if TYPE_CHECKING:
    from stepwell.training.training_loop import TrainingLoop

EVERY = 200
"""Steps from one collection to the next."""
Choice = bool | TelemetryConfig


def light_config(every: int = EVERY, gradients: bool = True) -> TelemetryConfig:
    """Return a configuration with only the cheap diagnostics."""
    return TelemetryConfig(
        collect_every_n=every,
        track_gradients=gradients,
        track_weight_delta=False,
        track_holdout_logits=False,
        track_batch_stats=False,
    )


class TrainerDiagnostics:
    """The diagnostics of a loop that a trainer runs.

    Attributes:
        due: the step at the end of which ``look`` has to be called.
    """

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._diagnostics: Diagnostics | None = None
        self._model: Any = None
        self._optimizer: Any = None
        self.due = sys.maxsize

    def begin(self, model: Any, optimizer: Any) -> None:
        """Start a loop with this model and this optimizer, which may be wrapped."""
        self.end()
        if not self._choice or model is None or optimizer is None:
            return
        config = self._choice
        if not isinstance(config, TelemetryConfig):
            # If one rank did not record, the others would wait for it.
            config = light_config(gradients=not is_sharded(model))
        self._model = model
        self._optimizer = innermost(optimizer)
        self._diagnostics = Diagnostics(config)
        self.due = 0

    def look(self, loop: TrainingLoop, batch: Any = None) -> None:
        """Record what is due at the end of the optimizer step that is under way."""
        if self._diagnostics is None:
            self.due = sys.maxsize
            return
        try:
            self.due = self._diagnostics.look(self._model, self._optimizer, loop._step, batch)
        except Exception as error:
            self.due = sys.maxsize
            report("diagnostics", error)

    def end(self) -> None:
        """Release the model and the optimizer."""
        diagnostics, self._diagnostics = self._diagnostics, None
        self._model = self._optimizer = None
        self.due = sys.maxsize
        if diagnostics is not None:
            diagnostics.close()
