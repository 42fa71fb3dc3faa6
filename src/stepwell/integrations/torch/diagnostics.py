"""Diagnostics that every integration records by default: gradient norms and learning rates.

In each of the first ``DENSE`` steps, both are recorded directly as metrics, within a time budget. All other
diagnostics are collected every ``collect_every_n`` steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from stepwell._core.errors import report
from stepwell.diagnostics.config import TelemetryConfig
from stepwell.diagnostics.early_steps import DENSE, EarlySteps
from stepwell.diagnostics.gradients import innermost
from stepwell.diagnostics.sharding import is_sharded
from stepwell.diagnostics.telemetry import TrainingTelemetry
from stepwell.integrations.torch.patches import Patch, Patches
from stepwell.journal import metrics
from stepwell.journal.metrics import context
from stepwell.telemetry.run import active_run

if TYPE_CHECKING:
    from stepwell.training.training_loop import TrainingLoop

EVERY = 200
"""Steps between two collections."""
DiagnosticsOption = bool | TelemetryConfig


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
        due: the step after which ``look`` must be called next.
    """

    def __init__(self, option: DiagnosticsOption) -> None:
        self._option = option
        self._diagnostics: Diagnostics | None = None
        self._model: Any = None
        self._optimizer: Any = None
        self.due = sys.maxsize

    def begin(self, model: Any, optimizer: Any) -> None:
        """Begin a loop with this model and optimizer, which may be wrapped."""
        self.end()
        if not self._option or model is None or optimizer is None:
            return
        config = self._option
        if not isinstance(config, TelemetryConfig):
            # Norms of sharded gradients need all ranks: if one did not record, the others would wait for it.
            config = light_config(gradients=not is_sharded(model))
        self._model = model
        self._optimizer = innermost(optimizer)
        self._diagnostics = Diagnostics(config)
        self.due = 0

    def look(self, loop: TrainingLoop, batch: Any = None) -> None:
        """Record the diagnostics that are due at the end of the current optimizer step."""
        if self._diagnostics is None:
            self.due = sys.maxsize
            return
        try:
            self.due = self._diagnostics.look(self._model, self._optimizer, loop.step, batch)
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


OF_BATCHES = (
    "batch_stats",
    "activations",
    "dead_units",
    "embeddings",
    "gradient_noise",
    "class_balance",
)
OF_EARLY_STEPS = ("track_gradients", "track_learning_rates")
SCHEDULER_STEPS = "scheduler_steps"
FEWEST_STEPS = 10
"""Number of steps after which an attached scheduler should have been called."""
_is_traced = torch.compiler.is_dynamo_compiling
_active: list[Diagnostics] = []
"""The diagnostics that receive the calls of gradient clipping and schedulers."""


class Diagnostics:
    """The diagnostics of one model, from its first step on.

    Attributes:
        keeps_batch: whether ``look`` needs the batch.
        clipped: id of the first gradient that was clipped before the step, and the norm of all clipped
            gradients.
        has_scheduled: whether a scheduler of the optimizer has made a step.
    """

    def __init__(self, config: TelemetryConfig | None) -> None:
        self._config = config
        self._telemetry: TrainingTelemetry | None = None
        if config is not None:
            # Imported now, so that the first step is not slow.
            import stepwell.diagnostics.collector  # noqa: F401
        self._early: EarlySteps | None = None
        self._due = 0
        self._end = 0
        self._first = (0, 0)
        self._latest: tuple[Any, int] | None = None
        self._is_noted = False
        self._remove: Callable[[], None] | None = None
        self.clipped: tuple[int, Any] | None = None
        self.has_scheduled = False
        self.keeps_batch = config is not None and any(
            getattr(config, f"track_{name}") for name in OF_BATCHES
        )

    def look(self, model: Any, optimizer: Any, step: int, batch: Any) -> int:
        """Record the diagnostics that are due after an optimizer step. Return the next step that has any."""
        if self._config is None or model is None:
            return sys.maxsize
        telemetry = self._telemetry
        if telemetry is None:
            # Not earlier: it prints a message if nothing was collected, even if no step was made.
            telemetry = self._telemetry = TrainingTelemetry(self._config)
            if not _needs_collection(self._config):
                telemetry.expect_nothing()
            self._begin(model, optimizer, step)
        self._latest = optimizer, step
        clipped, self.clipped = self.clipped, None
        early = self._early
        before = None if early is None or clipped is None else early.norm_of_own(*clipped)
        is_collected = step >= self._due and step % self._config.collect_every_n == 0
        if is_collected and before is not None:
            telemetry.note_clipping(before)
        elif early is not None and step < self._end and not is_collected:
            early.record(step, before)
        if step >= self._due:
            telemetry.on_batch_end(model, optimizer, step, context.epoch or 0, None, batch)
            lead, every = telemetry._lead, telemetry._every
            # The next step that needs a call.
            behind = (step + 1 + lead) % every
            self._due = step + 1 + (every - behind if behind > lead else 0)
            if is_collected and early is not None:
                early.record_weights(step)
                if (context.epoch or 0) > self._first[1]:
                    self._note_scheduler()
        if step + 1 < self._end:
            return step + 1
        if early is not None:
            early.close()
        return self._due

    def _begin(self, model: Any, optimizer: Any, step: int) -> None:
        assert self._config is not None
        self._first = step, context.epoch or 0
        self._end = step + DENSE
        self._early = EarlySteps(model, optimizer, self._config)
        self._remove = CALLS.install()
        _active.append(self)
        run = active_run()
        if run is not None:
            run.before_finish(lambda status: self._note_scheduler())

    def _note_scheduler(self) -> None:
        """Record it if a scheduler is attached to the optimizer but has not been called so far."""
        if self._latest is None or self._is_noted or self.has_scheduled:
            return
        optimizer, step = self._latest
        if step - self._first[0] + 1 < FEWEST_STEPS:
            return
        groups = optimizer.param_groups
        try:
            if all(
                "initial_lr" in group and group["lr"] == group["initial_lr"] for group in groups
            ):
                self._is_noted = True
                metrics.log({SCHEDULER_STEPS: 0.0}, step if context.step is None else context.step)
        except Exception as error:
            report("watch", error)

    def close(self) -> None:
        """Release the model and the optimizer."""
        self._note_scheduler()
        if self._early is not None:
            self._early.close()
        self._latest = self._early = self.clipped = None
        if self in _active:
            _active.remove(self)
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()
        if self._telemetry is not None:
            self._telemetry.close()

    @property
    def optimizer(self) -> Any:
        """The optimizer that made the latest step."""
        return None if self._latest is None else self._latest[0]


def _needs_collection(config: TelemetryConfig) -> bool:
    """Return whether a configuration asks for more than the diagnostics of the first steps."""
    return any(
        getattr(config, field.name)
        for field in fields(config)
        if field.name.startswith("track_") and field.name not in OF_EARLY_STEPS
    )


def _total_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the function that ``clip_grad_norm_`` calls for the norm, however that was imported."""

    @wraps(original)
    def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
        norm = original(tensors, norm_type, *args, **kwargs)
        if norm_type == 2 and not _is_traced() and isinstance(tensors, (list, tuple)) and tensors:
            for diagnostics in _active:
                # The id only: a reference would keep the gradient in memory.
                diagnostics.clipped = id(tensors[0]), norm
        return norm

    return get_total_norm


def _scheduler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The constructor makes the first step.
        if getattr(self, "_step_count", 1):
            groups = getattr(getattr(self, "optimizer", None), "param_groups", None)
            for diagnostics in _active:
                # Compare groups, not optimizers: the optimizer may be wrapped, as Accelerate does.
                if groups is getattr(diagnostics.optimizer, "param_groups", groups):
                    diagnostics.has_scheduled = True
        return original(self, *args, **kwargs)

    return step


def _find() -> Iterator[Patch]:
    yield Patch(torch.nn.utils.clip_grad, "_get_total_norm", _total_norm)
    kinds = [torch.optim.lr_scheduler.LRScheduler]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if "step" in vars(kind):
            yield Patch(kind, "step", _scheduler_step)


CALLS = Patches(_find)
"""Patches of gradient clipping and learning rate schedulers."""
