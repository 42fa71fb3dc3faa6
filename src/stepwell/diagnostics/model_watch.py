"""What is kept of one model from one collection to the next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.diagnostics.foresight import Foresight
from stepwell.diagnostics.gradients import Gradients
from stepwell.diagnostics.weights import WeightBaseline
from stepwell.journal.errors import StepwellError, misuse, report

if TYPE_CHECKING:
    import torch

    from stepwell.diagnostics.config import TelemetryConfig
    from stepwell.diagnostics.context import Context

FROM_STEP = "step"
FROM_PRESENT = "present"
"""Where gradient norms come from: the optimizer's own step, or what was there when it was over."""


class ModelWatch:
    """A model and its optimizer: gradients of the latest step, weights of the last collection.

    Attributes:
        model: the model.
        optimizer: its optimizer.
        config: the configuration.
        number: 0 for the first model that was seen, 1 for the next.
        memories: what families keep from one collection to the next, by their names.
        foresight: which steps are going to be asked about.
    """

    def __init__(self, model: Any, optimizer: Any, config: TelemetryConfig, number: int) -> None:
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.number = number
        self.memories: dict[str, dict[str, Any]] = {}
        self.foresight = Foresight(config.collect_every_n)
        self._gradients = Gradients(model, optimizer, config.groups)
        self._baseline: WeightBaseline | None = None
        self._seen: Any = None
        self._is_armed = False
        self._stepped = self._is_trusted = False

    # Gradients

    def batch_ends(self, optimizer: Any, batch_idx: int) -> None:
        """See whether the optimizer has stepped."""
        if optimizer is not self.optimizer:
            self.close()
            self.optimizer = optimizer
            self._gradients = Gradients(self.model, optimizer, self.config.groups)
            self.foresight = Foresight(self.config.collect_every_n)
        self._stepped = self._has_stepped()
        self._is_trusted = self.foresight.trusts(batch_idx, self._stepped)

    def batch_ended(self, batch_idx: int) -> None:
        """Ask for the gradients of the next step, when they are going to be needed."""
        if self.foresight.passes(batch_idx, self._stepped):
            self._seen = self._gradients.latest()
            self._gradients.take_next()
            self._is_armed = True
        elif not self._is_armed:
            self._gradients.close()

    def _has_stepped(self) -> bool:
        if not self._is_armed:
            return False
        if not self._gradients.is_taking:
            self._is_armed = False
            return False
        try:
            found = self._gradients.latest() is not self._seen
        except Exception as error:  # inside the optimizer's step it was only kept
            if isinstance(error, StepwellError):
                misuse(
                    "diagnostic family gradient_norm", f"gradient_norm is not collected: {error}"
                )
            else:
                report("diagnostic family gradient_norm", error)
            # It was a step all the same: other ranks, where nothing failed, have to foresee alike.
            found = True
        self._is_armed = not found
        return found

    def note_clipping(self, norm: Any) -> None:
        """Keep the norm before clipping."""
        self._gradients.note_clipping(norm)

    def gradient_norms(self, context: Context) -> dict[str, torch.Tensor] | None:
        """Those of the latest step; where that was not foreseen, those of the gradients that are there."""
        found = self._gradients.latest() if self._is_trusted else None
        source = FROM_STEP
        # Gradients that are there are added up over the ranks: all of them look at these, or none.
        if not self._gradients.is_on_all_ranks(found is not None):
            found, source = self._gradients.present(), FROM_PRESENT
        if not found:
            return None
        context.notes["gradient_source"] = source
        before = self._gradients.before_clipping
        if before is not None:
            context.notes["gradient_norm_before_clipping"] = before
        return found

    # Weights

    def keep_baseline(self, path: Path | None, identity: str) -> None:
        """Say where the weights of a collection are kept, and what they belong to."""
        if path is not None and self.number:
            path = path.with_name(f"{path.stem}.model-{self.number}{path.suffix}")
        mode: Any = self.config.weight_delta
        if path is None and mode == "disk":
            mode = "memory"
        self._baseline = WeightBaseline(path, mode, identity)

    def weight_delta(self, context: Context) -> dict[str, torch.Tensor] | None:
        """Norms of the change since the last time; None the first time."""
        return None if self._baseline is None else self._baseline.delta(context.groups)

    def close(self) -> None:
        """Leave the optimizer alone."""
        self._is_armed = False
        self._gradients.close()
