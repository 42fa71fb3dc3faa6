"""``ModelWatch``: the state of one model between collections, and ``StepPredictor``.

After a step, its gradients may be gone: ``zero_grad`` may come before ``on_batch_end``. So they are measured
while the optimizer steps, but only in steps that a collection needs. In the first batches every step is
measured. This shows how many batches make one step (gradient accumulation). From then on the hook is added
that many batches before a collection.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell._core.errors import StepwellError, report, report_misuse
from stepwell.diagnostics.gradients import Gradients
from stepwell.diagnostics.weights import WeightBaseline

if TYPE_CHECKING:
    import torch

    from stepwell.diagnostics.config import TelemetryConfig
    from stepwell.diagnostics.context import CollectionContext

FROM_STEP = "step"
FROM_PRESENT = "present"
"""Sources of gradient norms: inside the optimizer's step, or the gradients that remain after it."""


class ModelWatch:
    """A model and its optimizer, with the gradients of the last step and the weights of the last collection.

    Attributes:
        model: the model.
        optimizer: its optimizer.
        config: the configuration.
        number: 0 for the first model that was seen, 1 for the next.
        memories: the ``memory`` of each family, by name.
        gradients: the gradients that the optimizer used.
        predictor: predicts which steps the next collection needs.
    """

    def __init__(self, model: Any, optimizer: Any, config: TelemetryConfig, number: int) -> None:
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.number = number
        self.memories: dict[str, dict[str, Any]] = {}
        self.predictor = StepPredictor(config.collect_every_n)
        self.gradients = Gradients(model, optimizer, config.groups)
        self._baseline: WeightBaseline | None = None
        self._seen: Any = None
        self._is_armed = False
        self._stepped = self._is_trusted = False

    # Gradients

    def batch_ends(self, optimizer: Any, batch_idx: int) -> None:
        """Before a collection: check whether the optimizer has stepped."""
        if optimizer is not self.optimizer:
            self.close()
            self.optimizer = optimizer
            self.gradients = Gradients(self.model, optimizer, self.config.groups)
            self.predictor = StepPredictor(self.config.collect_every_n)
        self._stepped = self._has_stepped()
        self._is_trusted = self.predictor.is_current(batch_idx, self._stepped)

    def batch_ended(self, batch_idx: int) -> None:
        """After a collection: measure the gradients of the next step, if they will be needed."""
        if self.predictor.should_arm(batch_idx, self._stepped):
            self._seen = self.gradients.latest()
            self.gradients.take_next()
            self._is_armed = True
        elif not self._is_armed:
            self.gradients.close()

    def _has_stepped(self) -> bool:
        if not self._is_armed:
            return False
        if not self.gradients.is_taking:
            self._is_armed = False
            return False
        try:
            has_stepped = self.gradients.latest() is not self._seen
        except Exception as error:  # an error inside the optimizer's step is raised here
            if isinstance(error, StepwellError):
                report_misuse(
                    "diagnostic family gradient_norm", f"gradient_norm is not collected: {error}"
                )
            else:
                report("diagnostic family gradient_norm", error)
            # It was a step nevertheless: all ranks must predict alike, also those without the error.
            has_stepped = True
        self._is_armed = not has_stepped
        return has_stepped

    def gradient_norms(self, context: CollectionContext) -> dict[str, torch.Tensor] | None:
        """Return the norms of the last step; if it was not measured, those of the current gradients."""
        norms = self.gradients.latest() if self._is_trusted else None
        source = FROM_STEP
        # Norms of the current gradients are summed over the ranks, so all ranks use them, or none.
        if not self.gradients.is_on_all_ranks(norms is not None):
            norms, source = self.gradients.present(), FROM_PRESENT
        if not norms:
            return None
        context.notes["gradient_source"] = source
        before = self.gradients.before_clipping
        if before is not None:
            context.notes["gradient_norm_before_clipping"] = before
        return norms

    # Weights

    def keep_baseline(self, path: Path | None, identity: str) -> None:
        """Set where the weights of a collection are stored, and their identity."""
        if path is not None and self.number:
            path = path.with_name(f"{path.stem}.model-{self.number}{path.suffix}")
        mode: Any = self.config.weight_delta
        if path is None and mode == "disk":
            mode = "memory"
        self._baseline = WeightBaseline(path, mode, identity)

    def weight_delta(self, context: CollectionContext) -> dict[str, torch.Tensor] | None:
        """Return the norms of the change since the last call; None at the first call."""
        return None if self._baseline is None else self._baseline.delta(context.groups)

    def close(self) -> None:
        """Remove the hook from the optimizer."""
        self._is_armed = False
        self.gradients.close()


MAX_LEARNING = 1024
"""Batches without any step. After these, each batch counts as a step."""


class StepPredictor:
    """Predicts when the step before a collection happens.

    Attributes:
        every: collections happen at batches whose index is a multiple of this.
        period: the number of batches per step; None until it is known.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.period: int | None = None
        self._last: int | None = None
        self._step_at: int | None = None
        self._armed_at: int | None = None
        self._calls = 0
        self._has_taken = False

    @property
    def sees_all_batches(self) -> bool:
        """Whether every batch must be seen: the period is unknown, or steps are rarer than collections."""
        return self.period is None or self.period >= self.every

    def is_current(self, batch_idx: int, stepped: bool) -> bool:
        """Return whether the last measured gradients are those of the last step.

        Args:
            batch_idx: the batch that ends.
            stepped: whether a step was measured since the hook was added.
        """
        if self.sees_all_batches:
            # A batch that was not seen may have made a step.
            is_next = self._last is not None and batch_idx - self._last <= 1
            return is_next and (stepped or self._has_taken)
        if self._armed_at is None or self.period is None:
            return False
        has_taken = stepped or self._has_taken
        return has_taken and batch_idx - self._armed_at <= self.period

    def should_arm(self, batch_idx: int, stepped: bool) -> bool:
        """Note the end of a batch. Return whether the gradients of the next step must be measured."""
        if not self.sees_all_batches:
            self._has_taken = self._has_taken or stepped
            return self._is_time(batch_idx)
        is_first = self._last is None
        is_next = self._last is not None and batch_idx - self._last <= 1
        self._has_taken = is_next and (self._has_taken or stepped)
        self._last = batch_idx
        self._learn(batch_idx, stepped, is_next)
        if not self.sees_all_batches:
            return self._is_time(batch_idx)
        return is_first or stepped

    def _learn(self, batch_idx: int, stepped: bool, is_next: bool) -> None:
        self._calls += 1
        if stepped:
            if self._step_at is not None and batch_idx > self._step_at:
                self.period = batch_idx - self._step_at
                if self.period >= self.every and not is_next:
                    # Only batches with a collection are seen, so there is none to prepare in.
                    self.period = 1
            self._step_at = batch_idx
        elif self.period is None and self._calls > MAX_LEARNING:
            self.period = 1

    def _is_time(self, batch_idx: int) -> bool:
        """Return whether the next collection needs the next step."""
        assert self.period is not None
        left = self.every - batch_idx % self.every
        if self._last is not None:
            # The period was learned just now, at a step. A collection before the next step needs this step.
            self._last = None
            if left < self.period:
                self._armed_at = batch_idx
                return False
        if left != self.period:
            return False
        self._armed_at = batch_idx
        self._has_taken = False
        return True
