"""The training loop that a watch counts in: how it begins, and what its updates tell."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stepwell.diagnostics.config import TelemetryConfig
from stepwell.integrations.torch.watching_epochs import Epochs, nothing
from stepwell.integrations.torch.watching_flops import Operations, reconfigure
from stepwell.integrations.torch.watching_loss import Loss, Losses
from stepwell.integrations.torch.watching_times import Times
from stepwell.journal.metrics import context
from stepwell.training import calls
from stepwell.training.current import current_job
from stepwell.training.job import TrainingJob
from stepwell.training.training_loop import TrainingLoop


@dataclass(frozen=True)
class Options:
    """What a watch was asked for."""

    step: int = 0
    epoch: int = 0
    target_steps: int | None = None
    replicas: int | None = None
    loss: bool = True
    flops: bool | float = True
    peak: float | None = None
    diagnostics: TelemetryConfig | None = None
    describe: Callable[[], dict[str, int]] = dict


class InLoop:
    """What has a training loop around it. ``step`` counts optimizer steps, those before included."""

    # With what is derived from it no more than 30 attributes: they are read faster than more would be.
    def __init__(self, options: Options, models: list[torch.nn.Module]) -> None:
        self._options = options
        self._model: Callable[[], Any] = weakref.ref(models[0]) if models else nothing
        self._loss: Loss | Losses = Loss(options.loss)
        self._operations = Operations(options.flops, options.peak, self._model)
        self._epochs = Epochs(options.epoch)
        self._times = Times()
        self._job: TrainingJob | None = None
        self._loop: TrainingLoop | None = None
        self._first_size: int | None = None
        self._replicas = 1
        self._every = 50
        self.step = options.step

    def _find_loop(self) -> TrainingLoop | None:
        """The loop that iterations are counted in, which begins with the first batch."""
        job = current_job()
        if job is None:
            return None
        if job is not self._job:
            self._job = job
            self._loop = None
            self._loss.begin(self._options.loss)
            self._first_size = None
            self._replicas = self._options.replicas or job.world_size
            self._every = job.config.log_every_n_train_iterations
            if self._epochs.number >= 0 and context.epoch is None:
                self._epochs.tell()
        if job.loop is None:
            calls.start_training(self.step, iterations_target=self._options.target_steps)
            self._loop = job.loop
            self._operations.begin(job, self._loop)
            if self._loop is not None:
                self._times.begin(self._loop)
                for name, value in self._options.describe().items():
                    self._loop.span.add_attribute(name, value)
        elif job.loop is not self._loop:
            # The user's own: its iterations are theirs to count.
            return job.loop if job.loop.inside is not None else None
        return self._loop

    def _before_update(self, loop: TrainingLoop, step: int) -> None:
        """An update tells the times of all steps before this one."""
        self._times.tell(loop, step)

    def _look(self, loop: TrainingLoop) -> None:
        """Every so many steps, and at the end: what is not counted step by step."""
        progress = loop.progress
        progress.count_waiting()
        for name, value in self._epochs.describe().items():
            loop.span.add_attribute(name, value)
        job = self._job
        if self._first_size is None and job is not None:
            self._first_size = progress.samples
            if progress.samples and progress.completed == 1 and not job.ask("global_batch_size"):
                reconfigure(job, global_batch_size_or_fn=progress.samples)
            if self.step % self._every:
                return
        if job is not None:
            self._operations.log_utilisation(job, loop)
