"""The training loop of a Trainer: its optimizer steps, their loss, samples and tokens."""

from __future__ import annotations

import math
from typing import Any

from stepwell._core import clock
from stepwell._core.errors import report
from stepwell.integrations.configuration import (
    optimizer_settings,
    parameter_counts,
    record_config,
    samples_in,
    tokens_in,
)
from stepwell.integrations.timing import RecordedBatches, TrainingThread
from stepwell.integrations.torch.diagnostics import DiagnosticsOption, TrainerDiagnostics
from stepwell.integrations.wrappers import UPDATE
from stepwell.journal import metrics
from stepwell.telemetry.span_handle import is_failure
from stepwell.training import calls
from stepwell.training.calls import current
from stepwell.training.counters import plus
from stepwell.training.job import TrainingJob
from stepwell.training.training_loop import TrainingLoop

WHERE = "transformers"


class TrainingRecorder:
    """Records the training loop of one trainer. Its state belongs to the training thread."""

    def __init__(self, trainer: Any, diagnostics: DiagnosticsOption = True) -> None:
        self.trainer = trainer
        self._diagnostics = TrainerDiagnostics(diagnostics)
        self.thread = TrainingThread()
        self.loop: TrainingLoop | None = None
        self.has_loss = False
        self._begun = 0
        self._schedule = Schedule(None, None)
        self._counts_samples = True
        self._batches: RecordedBatches | None = None
        self._samples: int | None = None
        self._tokens: int | None = None
        self._tokens_seen = 0
        self._loss: Any = None
        self._is_updating = False

    def start(self, job: TrainingJob, args: Any, state: Any, model: Any, optimizer: Any) -> None:
        """Start the training loop."""
        if self.loop is not None and self.loop is job.loop:
            # The loop of an earlier call that failed unnoticed.
            self.end(None)
        self._begun = clock.now()
        schedule = self._schedule = Schedule(self.trainer, args)
        start, target = int(state.global_step), int(state.max_steps) or None
        self._counts_samples = job.config.ask("global_batch_size") is None
        is_known = job.last is not None and job.last.overall == start
        samples = samples_target = None
        if self._counts_samples and start and not is_known:
            samples = schedule.samples_after(start)
        if (
            target is not None
            and job.config.ask("train_samples_target") is None
            and self._counts_samples
        ):
            samples_target = schedule.samples_after(target)
        if job.config.ask("train_iterations_target") is not None:
            target = None
        span = calls.start_training(start, samples, target, samples_target)
        if getattr(state, "trial_params", None):
            span.add_attributes({"trial_params": dict(state.trial_params)})
        if model is not None and optimizer is not None:
            span.add_attributes(parameter_counts([model], [optimizer]))
            record_config({"optimizer": optimizer_settings(optimizer)})
        self._begin(job, state)
        self._diagnostics.begin(model, optimizer)

    def _begin(self, job: TrainingJob, state: Any) -> None:
        loop = self.loop = job.loop
        self.thread.begin(loop)
        if loop is not None and self._counts_samples and self._schedule.batch_size:
            loop.expect_samples(self._schedule.batch_size)
        self._tokens_seen = int(getattr(state, "num_input_tokens_seen", 0))
        self._samples = self._tokens = self._loss = None

    def end(self, error: BaseException | None) -> None:
        """End the training loop, with or without an error."""
        loop, self.loop = self.loop, None
        self._batches = None
        self._diagnostics.end()
        job = current.job
        try:
            if loop is None or job is None or job.loop is not loop:
                return
            self.end_update(error)
            self._drop_step(loop, error)
            if error is None:
                calls.end_training()
            else:
                calls.close_since(self._begun, error)
        except Exception as problem:
            report(WHERE, problem)
        finally:
            self.thread.end()

    def start_epoch(self, epoch: int) -> None:
        """Start an epoch."""
        if self.loop is not None and current.job is not None:
            metrics.set_context(None, epoch)

    def end_epoch(self, state: Any) -> None:
        """End an epoch, possibly between the passes of one step (gradient accumulation).

        The gradients of these passes are kept, so their samples count towards the next step.
        """
        self._batches = None
        loop = self.loop
        if loop is None or loop.inside is None or current.job is None:
            return
        if self._loss is None:
            self._drop_step(loop, None)
            return
        try:
            samples, tokens = self._sizes(state)
            loop.end(samples, tokens, optimizer_step=False)
        except Exception as error:
            report(WHERE, error)

    def _drop_step(self, loop: TrainingLoop, error: BaseException | None) -> None:
        """End an incomplete step without counting it."""
        if loop.inside is None:
            return
        if error is not None and is_failure(error):
            calls.end_iteration(error=error)
        else:
            calls.skip_iteration()

    def start_step(self) -> None:
        """Start an optimizer step, with its first pass."""
        loop = self.loop
        if loop is None or current.job is None:
            return
        if loop.inside is not None:
            self._drop_step(loop, None)
            self._loss = None
        lane = self.thread.lane
        loop.enter(None if lane is None or lane.frames else lane)

    def end_step(self, state: Any) -> None:
        """End an optimizer step."""
        loop = self.loop
        if loop is None or current.job is None:
            return
        try:
            loss, self._loss = self._loss, None
            if loss is not None:
                self.thread.log_loss(loss)
            samples, tokens = self._sizes(state)
            if tokens is None and samples == self._schedule.batch_size:
                loop.end_usual(self.thread.lane)
            else:
                loop.end(samples, tokens)
        except Exception as error:
            report(WHERE, error)

    def _sizes(self, state: Any) -> tuple[int | None, int | None]:
        """Return the samples and tokens of all ranks in the step, None if unknown."""
        samples, tokens = self._samples, self._tokens
        self._samples = self._tokens = None
        replicas = self._schedule.replicas
        seen = int(getattr(state, "num_input_tokens_seen", 0))
        if seen > self._tokens_seen:
            # The Trainer counts tokens if it is configured to.
            tokens = seen - self._tokens_seen
            self._tokens_seen = seen
        elif tokens is not None:
            tokens *= replicas
        if not self._counts_samples or samples is None:
            return None, tokens
        return samples * replicas, tokens

    def around_batches(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Wrap the method that fetches the batches of a step."""
        if self.loop is None:
            return original(*args, **kwargs)
        if args:
            args = (self._recorded(args[0]), *args[1:])
        elif "epoch_iterator" in kwargs:
            kwargs["epoch_iterator"] = self._recorded(kwargs["epoch_iterator"])
        result = original(*args, **kwargs)
        try:
            samples = tokens = None
            for batch in result[0]:
                more, more_tokens = samples_in(batch), tokens_in(batch)
                samples = more if samples is None else plus(samples, more)
                tokens = more_tokens if tokens is None else plus(tokens, more_tokens)
            if result[0]:
                self._samples, self._tokens = samples, tokens
        except Exception as error:
            report(WHERE, error)
        return result

    def _recorded(self, items: Any) -> RecordedBatches:
        """Return the recorded iterator: the same object for all steps of an epoch."""
        batches = self._batches
        if batches is None or batches.items is not items:
            batches = self._batches = RecordedBatches(items, self.thread)
        return batches

    def around_pass(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Wrap forward and backward of a batch. The loss of a step is the sum over its batches."""
        loss = original(*args, **kwargs)
        try:
            if self.loop is not None and hasattr(loss, "is_cpu") and loss.numel() == 1:
                here = loss.detach()
                if here.ndim:
                    here = here.reshape(())
                self._loss = here if self._loss is None else self._loss + here
                self.has_loss = True
        except Exception as error:
            report(WHERE, error)
        return loss

    def start_update(self) -> None:
        """Start the optimizer update."""
        if self.loop is not None and self.loop.inside is not None:
            self._is_updating = True
            self.thread.enter(UPDATE)

    def end_update(self, error: BaseException | None) -> None:
        """End the optimizer update."""
        if not self._is_updating:
            return
        self._is_updating = False
        if error is None:
            self.thread.leave(UPDATE)
            loop = self.loop
            if loop is not None and loop.step >= self._diagnostics.due:
                self._diagnostics.look(loop)
        else:
            UPDATE.__exit__(type(error), error, None)


class Schedule:
    """The number of samples after each optimizer step, computed from the loader and the arguments."""

    def __init__(self, trainer: Any, args: Any) -> None:
        self.batch_size: int | None = None
        """Samples of all ranks in an optimizer step, None if unknown."""
        self.replicas = max(1, int(getattr(args, "world_size", 1)))
        """Number of ranks with their own batches."""
        self._steps = self._samples = 0
        if trainer is None:
            return
        size = trainer.get_total_train_batch_size(args)
        accumulation = max(1, int(args.gradient_accumulation_steps))
        self.batch_size = int(size)
        self.replicas = max(1, self.batch_size // (trainer._train_batch_size * accumulation))
        self._read_loader(trainer, accumulation)

    def _read_loader(self, trainer: Any, accumulation: int) -> None:
        loader = trainer.callback_handler.train_dataloader
        try:
            batches = len(loader)
            if self.replicas == 1 and not getattr(loader, "drop_last", True):
                self._samples = int(trainer.num_examples(loader))
        except Exception:
            # The loader has no length.
            return
        self._steps = max(1, math.ceil(batches / accumulation))

    def samples_after(self, steps: int) -> int | None:
        """Return the samples after this many steps, None if unknown."""
        if self.batch_size is None:
            return None
        if not self._samples or not self._steps:
            return steps * self.batch_size
        # The last batch of an epoch may be smaller.
        epochs, rest = divmod(steps, self._steps)
        return epochs * self._samples + rest * self.batch_size
