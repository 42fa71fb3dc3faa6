"""The training loop of a fit: its iterations, their loss and samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stepwell.integrations.batches import samples_in
from stepwell.integrations.lightning import progress
from stepwell.integrations.lightning.configuration import loop_attributes, record_parts
from stepwell.integrations.lightning.manual import ManualSteps
from stepwell.integrations.lightning.parts import WHERE
from stepwell.integrations.timing import LOSS, TrainingThread
from stepwell.integrations.torch.diagnostics import Choice, TrainerDiagnostics
from stepwell.journal.errors import report
from stepwell.journal.metrics import set_context
from stepwell.telemetry.live import is_failure
from stepwell.training import calls
from stepwell.training.current import current
from stepwell.training.job import TrainingJob
from stepwell.training.training_loop import TrainingLoop


class Training:
    """One fit of a trainer. Its state belongs to the thread that trains."""

    def __init__(self, trainer: Any, thread: TrainingThread, diagnostics: Choice = True) -> None:
        self.trainer = trainer
        self.manual = ManualSteps(thread)
        self._diagnostics = TrainerDiagnostics(diagnostics)
        self._thread = thread
        self._steps_always = True
        self._counts_samples = False
        self._is_automatic = True
        # Samples of one rank in an iteration of the usual size; None while that is not known.
        self._usual_samples: int | None = None
        self._world_size = 1
        # The loss of passes that have not come to an optimizer step yet, and how many they are.
        self._partial: torch.Tensor | None = None
        self._passes = 0

    def start(self) -> None:
        """The training loop starts."""
        job = current.job
        if job is None:
            return
        trainer = self.trainer
        self._is_automatic = progress.is_automatic(trainer)
        size = job.ask("global_batch_size")
        self._counts_samples = size is None
        self._note_accumulation()
        start = progress.iterations_done(trainer)
        target = None
        if job.ask("train_iterations_target") is None:
            target = progress.iterations_target(trainer)
        size = size or progress.samples_per_iteration(trainer)
        samples_target = None
        if size and target and job.ask("train_samples_target") is None:
            samples_target = target * size
        is_known = job.last is not None and job.last.overall == start
        samples = None if size is None or is_known or not start else start * size
        span = calls.start_training(start, samples, target, samples_target)
        span.add_attributes(loop_attributes(trainer))
        record_parts(trainer)
        self._begin(job, size)

    def _begin(self, job: TrainingJob, size: int | None) -> None:
        trainer = self.trainer
        self._thread.begin(job.loop)
        try:
            # Optimizers of a strategy, such as DeepSpeed, may be unlike those of torch.
            self._diagnostics.begin(trainer.lightning_module, next(iter(trainer.optimizers), None))
            if not self._is_automatic:
                self.manual.begin(trainer.lightning_module, trainer.optimizers)
        except Exception as error:
            report(WHERE, error)
        self._world_size = job.world_size
        self._usual_samples = None
        if self._counts_samples and size and job.loop is not None:
            self._expect(job.loop, size // self._world_size)

    def _expect(self, loop: TrainingLoop, samples: int) -> None:
        """Take batches of this size for the usual ones, which are counted more quickly."""
        if self._steps_always and samples:
            loop.expect_samples(samples * self._world_size)
            self._usual_samples = samples

    def start_epoch(self) -> None:
        """An epoch starts."""
        self._note_accumulation()
        if current.job is not None:
            set_context(None, int(self.trainer.current_epoch))

    def _note_accumulation(self) -> None:
        self._steps_always = (
            self._is_automatic
            and self.trainer.accumulate_grad_batches == 1
            and not getattr(self.trainer.strategy, "handles_gradient_accumulation", False)
        )

    def end(self) -> None:
        """The fit is over."""
        self._partial = None
        self._diagnostics.end()
        self.manual.end()
        self._thread.end()

    def around_batch(self, original: Any) -> Callable[..., Any]:
        """Around what trains on a batch; an optimizer step if there is one in it."""
        thread = self._thread

        def run(*args: Any, **kwargs: Any) -> Any:
            job = current.job
            loop = None if job is None else job.loop
            if loop is None:
                return original(*args, **kwargs)
            before = -1 if self._steps_always else self.trainer.global_step
            lane = thread.lane
            loop.enter(None if lane is None or lane.frames else lane)
            try:
                outputs = original(*args, **kwargs)
            except BaseException as error:
                # What has failed is no step, nor is what found that there is no batch any more.
                if is_failure(error):
                    calls.end_iteration(error=error)
                else:
                    calls.skip_iteration()
                raise
            if current.job is not job:
                # The run has ended meanwhile, and what was open with it.
                return outputs
            try:
                self._end_batch(loop, before, outputs, args)
            except Exception as problem:
                report(WHERE, problem)
            return outputs

        return run

    def _end_batch(self, loop: TrainingLoop, before: int, outputs: Any, args: Any) -> None:
        """Training on a batch is done. One function for what happens in every step."""
        stepped = before < 0 or self.trainer.global_step > before
        # What a training step gives comes as a dict, empty when it gave no loss.
        loss = outputs.get(LOSS)
        if type(loss) is torch.Tensor:
            if before >= 0 and self._is_automatic:
                loss = self._accumulated(loss, stepped)
            if stepped:
                self._thread.log_loss(loss)
        elif stepped and not self._is_automatic:
            self.manual.write_loss(loop._step, self._thread.lane)
        if stepped and loop._step >= self._diagnostics.due:
            self._diagnostics.look(loop)
        samples = None
        if self._counts_samples:
            # The last argument has what the training step is called with.
            samples = samples_in(args[-1].get("batch"))
        if stepped and samples == self._usual_samples:
            loop.end_usual(self._thread.lane)
        else:
            self._end_unusual(loop, samples, stepped)

    def _end_unusual(self, loop: TrainingLoop, samples: int | None, stepped: bool) -> None:
        loop.end(None if samples is None else samples * self._world_size, None, stepped)
        if self._usual_samples is None and samples:
            # The loader does not tell; most of its batches are going to be as the first one.
            self._expect(loop, samples)

    def _accumulated(self, loss: torch.Tensor, stepped: bool) -> torch.Tensor:
        """The loss of the passes so far; with the step, their mean."""
        # Lightning has divided each by the number of batches that usually make up a step.
        self._passes += 1
        loss = loss if self._partial is None else self._partial + loss
        self._partial = None if stepped else loss
        if stepped:
            loss = loss * (self.trainer.accumulate_grad_batches / self._passes)
            self._passes = 0
        return loss
