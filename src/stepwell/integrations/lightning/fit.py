"""The training loop of a fit: iterations, loss and samples, with automatic or manual optimization."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns as _now
from typing import TYPE_CHECKING, Any

import torch

from stepwell._core import clock
from stepwell._core.errors import report
from stepwell.integrations.configuration import samples_in
from stepwell.integrations.lightning import configuration
from stepwell.integrations.lightning.configuration import loop_attributes, record_parts
from stepwell.integrations.lightning.packages import WHERE
from stepwell.integrations.timing import LOSS, Timed, TrainingThread
from stepwell.integrations.torch.diagnostics import DiagnosticsOption, TrainerDiagnostics
from stepwell.integrations.torch.watcher.loss import OptimizerLosses, StepLoss
from stepwell.integrations.torch.watcher.watch import optimizer_names
from stepwell.integrations.wrappers import BACKWARD, BACKWARD_TIME, FORWARD, FORWARD_TIME, UPDATE
from stepwell.journal.metrics import set_context
from stepwell.telemetry.span_handle import is_failure, open_span
from stepwell.training import calls
from stepwell.training.calls import current
from stepwell.training.job import TrainingJob
from stepwell.training.standard_spans import WORDS
from stepwell.training.training_loop import TrainingLoop
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.journal.lane import Lane


class FitRecorder:
    """Records one fit of a trainer. Its state belongs to the training thread."""

    def __init__(
        self, trainer: Any, thread: TrainingThread, diagnostics: DiagnosticsOption = True
    ) -> None:
        self.trainer = trainer
        self.manual = ManualSteps(thread)
        self._diagnostics = TrainerDiagnostics(diagnostics)
        self._thread = thread
        self._steps_always = True
        self._counts_samples = False
        self._is_automatic = True
        # Samples of one rank in an iteration of the usual size, None while unknown.
        self._usual_samples: int | None = None
        self._world_size = 1
        # The sum of losses, and the number of passes, since the last optimizer step.
        self._partial: torch.Tensor | None = None
        self._passes = 0

    def start(self) -> None:
        """Start the training loop."""
        job = current.job
        if job is None:
            return
        trainer = self.trainer
        self._is_automatic = configuration.is_automatic(trainer)
        size = job.config.ask("global_batch_size")
        self._counts_samples = size is None
        self._note_accumulation()
        start = configuration.iterations_done(trainer)
        target = None
        if job.config.ask("train_iterations_target") is None:
            target = configuration.iterations_target(trainer)
        size = size or configuration.samples_per_iteration(trainer)
        samples_target = None
        if size and target and job.config.ask("train_samples_target") is None:
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
            # The optimizers of a strategy, such as DeepSpeed, may differ from those of torch.
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
        """Make this the usual batch size, whose iterations are counted by the fast path."""
        if self._steps_always and samples:
            loop.expect_samples(samples * self._world_size)
            self._usual_samples = samples

    def start_epoch(self) -> None:
        """Start an epoch."""
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
        """End the fit."""
        self._partial = None
        self._diagnostics.end()
        self.manual.end()
        self._thread.end()

    def around_batch(self, original: Any) -> Callable[..., Any]:
        """Wrap the method that trains on a batch. It is an iteration if it makes an optimizer step."""
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
                # Neither a failure nor the end of the batches is a step.
                if is_failure(error):
                    calls.end_iteration(error=error)
                else:
                    calls.skip_iteration()
                raise
            if current.job is not job:
                # The run has ended in between, and the open spans with it.
                return outputs
            try:
                self._end_batch(loop, before, outputs, args)
            except Exception as problem:
                report(WHERE, problem)
            return outputs

        return run

    def _end_batch(self, loop: TrainingLoop, before: int, outputs: Any, args: Any) -> None:
        """End the training on a batch. One function, because it runs in every step."""
        stepped = before < 0 or self.trainer.global_step > before
        # The outputs of a training step are a dict, which is empty if it returned no loss.
        loss = outputs.get(LOSS)
        if type(loss) is torch.Tensor:
            if before >= 0 and self._is_automatic:
                loss = self._accumulated(loss, stepped)
            if stepped:
                self._thread.log_loss(loss)
        elif stepped and not self._is_automatic:
            self.manual.write_loss(loop.step, self._thread.lane)
        if stepped and loop.step >= self._diagnostics.due:
            self._diagnostics.look(loop)
        samples = None
        if self._counts_samples:
            # The last argument is the dict of the training step's arguments.
            samples = samples_in(args[-1].get("batch"))
        if stepped and samples == self._usual_samples:
            loop.end_usual(self._thread.lane)
        else:
            self._end_unusual(loop, samples, stepped)

    def _end_unusual(self, loop: TrainingLoop, samples: int | None, stepped: bool) -> None:
        loop.end(None if samples is None else samples * self._world_size, None, stepped)
        if self._usual_samples is None and samples:
            # The loader has no batch size: expect all batches to be like the first one.
            self._expect(loop, samples)

    def _accumulated(self, loss: torch.Tensor, stepped: bool) -> torch.Tensor:
        """Return the sum of the losses since the last step; with the step, their mean."""
        # Lightning has divided each loss by accumulate_grad_batches.
        self._passes += 1
        loss = loss if self._partial is None else self._partial + loss
        self._partial = None if stepped else loss
        if stepped:
            loss = loss * (self.trainer.accumulate_grad_batches / self._passes)
            self._passes = 0
        return loss


class ManualSteps:
    """Records training steps with manual optimization, which call backward and the optimizers themselves.

    All code before backward counts as forward. The loss is the argument of ``manual_backward()``. With
    several optimizers, each has its own metric ``loss/<name>``, named after the part of the module that it
    trains.
    """

    def __init__(self, thread: TrainingThread) -> None:
        self._thread = thread
        # One of them is set: with one optimizer, or with several.
        self._loss: StepLoss | None = None
        self._losses: OptimizerLosses | None = None
        self._is_forward = False
        # The end of an optimizer step, when the next forward may have begun.
        self._since = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the trainer gets a new, empty one.
        return ManualSteps, (self._thread,)

    def begin(self, module: Any, optimizers: list[Any]) -> None:
        """Start a fit with these optimizers."""
        self.end()
        if len(optimizers) == 1:
            self._loss = StepLoss(True)
            self._loss.begin(True)
        elif optimizers:
            parts = dict(module.named_children())
            names = optimizer_names(parts, list(parts.values()), None, optimizers)
            self._losses = OptimizerLosses(True, dict(zip(names, optimizers, strict=True)))
            self._losses.begin(True)

    def end(self) -> None:
        """End the fit."""
        for losses in (self._loss, self._losses):
            if losses is not None:
                losses.finish()
        self._loss = self._losses = None

    def write_loss(self, step: int, lane: Lane | None) -> None:
        """Write the loss of a step whose training step returned none."""
        if self._loss is not None:
            self._loss.write(step, lane)

    def step(self, original: Any) -> Callable[..., Any]:
        """Wrap the training step."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if current.job is None:
                return original(*args, **kwargs)
            self._since = self._thread.enter(FORWARD)
            self._is_forward = True
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._leave(error)
                raise
            self._leave()
            return result

        return call

    def _leave(self, error: BaseException | None = None) -> None:
        if self._is_forward:
            self._is_forward = False
            FORWARD.__exit__(None if error is None else type(error), error, None)
            if current.job is not None:
                current.job.count_time(FORWARD_TIME, _now() - self._since)
        self._since = 0

    def backward(self, original: Any) -> Callable[..., Any]:
        """Wrap backward, which ends a forward."""
        recorded = Timed(original, self._thread, BACKWARD, BACKWARD_TIME)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_forward:
                self._leave()
            elif self._since and current.job is not None:
                open_span(WORDS[Name.MODEL_FORWARD], None, self._since).stop()
                self._since = 0
            looked = self._backward_begins(args, kwargs)
            result = recorded(*args, **kwargs)
            if looked is not None:
                self._backward_ends(looked)
            return result

        return call

    def _backward_begins(self, args: Any, kwargs: Any) -> Any:
        """Record the loss. The result is for ``_backward_ends``."""
        try:
            loss = args[0] if args else kwargs.get("closure_loss")
            if current.job is None or not isinstance(loss, torch.Tensor):
                return None
            if self._loss is not None:
                self._loss.backward_begins((loss,))
            return None if self._losses is None else self._losses.backward_begins((loss,))
        except Exception as error:
            report(WHERE, error)
            return None

    def _backward_ends(self, looked: Any) -> None:
        try:
            if self._losses is not None:
                self._losses.backward_ends(looked)
        except Exception as error:
            report(WHERE, error)

    def _write_losses(self, optimizer: Any) -> None:
        """Write the loss of a step of this optimizer, one of several."""
        try:
            loop = None if current.job is None else current.job.loop
            if self._losses is not None and loop is not None:
                self._losses.write(loop.step, self._thread.lane, optimizer)
        except Exception as error:
            report(WHERE, error)

    def update(self, original: Any) -> Callable[..., Any]:
        """Wrap an optimizer step, after which the next forward may begin."""
        recorded = optimizer_step(self._thread)(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._leave()
            result = recorded(*args, **kwargs)
            self._since = _now()
            if self._losses is not None:
                self._write_losses(args[0])
            return result

        return call


def optimizer_step(thread: TrainingThread) -> Callable[[Any], Callable[..., Any]]:
    """Return a wrapper that records the optimizer step without its closure (forward and backward)."""

    def around(original: Any) -> Callable[..., Any]:
        def call(optimizer: Any, closure: Any, *args: Any, **kwargs: Any) -> Any:
            if current.job is None:
                return original(optimizer, closure, *args, **kwargs)
            entered = False

            def then_step(*args: Any, **kwargs: Any) -> Any:
                nonlocal entered
                result = closure(*args, **kwargs)
                # Some optimizers call the closure several times: the later calls are part of the step.
                if not entered:
                    entered = True
                    thread.enter(UPDATE)
                return result

            try:
                result = original(optimizer, then_step, *args, **kwargs)
            except BaseException as error:
                if entered:
                    UPDATE.__exit__(type(error), error, None)
                raise
            if entered:
                thread.leave(UPDATE)
            return result

        return call

    return around


clock.follow(globals())
