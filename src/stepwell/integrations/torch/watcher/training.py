"""The observer of a watched training: iterations, samples, epochs, loss, operations and diagnostics.

An iteration is an optimizer step. It begins when its batch has arrived and ends when the next one is
requested, so it includes the whole body of the loop but not the time waiting for data. Without a loader, it
begins with the forward pass and ends with the optimizer step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

import torch

from stepwell._core.errors import report
from stepwell.diagnostics.isolation import unwrapped
from stepwell.integrations.configuration import samples_in
from stepwell.integrations.torch.diagnostics import Diagnostics
from stepwell.integrations.torch.fast_path import fast_path
from stepwell.integrations.torch.observer import active
from stepwell.integrations.torch.recording import is_checkpointed, is_recomputing, is_running
from stepwell.integrations.torch.watcher.asyncio_context import continue_inside
from stepwell.integrations.torch.watcher.epochs import nothing
from stepwell.integrations.torch.watcher.flops import COUNTED_STEP
from stepwell.integrations.torch.watcher.loop import LoopRecorder, WatchOptions
from stepwell.integrations.torch.watcher.loss import OptimizerLosses
from stepwell.integrations.torch.watcher.validation import Validation
from stepwell.journal.lane import Lane
from stepwell.journal.metrics import set_context
from stepwell.telemetry.span_handle import Span
from stepwell.training import calls
from stepwell.training.calls import current
from stepwell.training.training_loop import TrainingLoop

WHERE = "watch"


class WatchedTraining(LoopRecorder):
    """The ``TrainingObserver`` of one watch. Its state belongs to the training thread."""

    def __init__(
        self,
        options: WatchOptions,
        models: list[torch.nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        loaders: list[Any],
    ) -> None:
        super().__init__(options, models)
        first = next(iter(optimizers.values()), None)
        self._optimizer: Callable[[], Any] = nothing if first is None else weakref.ref(first)
        if len(optimizers) > 1:
            self._loss = OptimizerLosses(options.loss, optimizers)
        self._loaders = {id(loader) for loader in loaders}
        self._diagnostics = Diagnostics(options.diagnostics)
        self._keeps_batch = self._diagnostics.keeps_batch
        self._batch: Any = None
        self._next_look = 0
        self._validation = Validation(unwrapped(models[0]) if models else None)
        # The loop with an open iteration of ours.
        self._open: TrainingLoop | None = None
        # Whether the user records the iterations.
        self._is_theirs = False
        # The training thread; at first, the one that calls ``watch``.
        self._thread = get_ident()
        self._by_batch = False
        self.wants_forward = True
        self.is_counting = False
        self._stepped = False
        self._in_step = False
        self._backwards = 0
        # Passes since the last optimizer step (gradient accumulation).
        self._partial: list[Span] = []
        self._samples: int | None = None

    @property
    def steps_made(self) -> int:
        """Optimizer steps so far, including that of the open iteration."""
        return self.step + (self._open is not None and self._stepped)

    # Events of the loader

    def follows(self, loader: Any) -> bool:
        return id(loader) in self._loaders

    def is_led_by(self, batches: Any) -> bool:
        try:
            if self._is_evaluated() and self._thread == get_ident():
                self.other_loader_begins()
                return False
            if self._validation.span is not None:
                if self._epochs.is_led:
                    return False
                self._validation.end()
            return self._epochs.lead(batches, self._inside(), self.steps_made)
        except Exception as error:
            report(WHERE, error)
            return False

    def is_in_another_task(self) -> None:
        if self._loop is not None:
            continue_inside(self._loop.span)

    def batch_requested(self, thread: int) -> None:
        if thread != self._thread:
            # Another thread prefetches.
            return
        if self._open is not None:
            if self._by_batch:
                self._end(lane=fast_path.lane if thread == fast_path.thread else None)
        else:
            try:
                if self._validation.span is not None:
                    self._validation.end()
                if self._loop is None:
                    # Waiting for the first batch is part of the loop.
                    self._find_loop()
            except Exception as error:
                report(WHERE, error)

    def batch_ready(self, batch: Any, thread: int) -> None:
        try:
            if thread != self._thread:
                return
            if self._open is not None:
                self._end()
            job, loop = current.job, self._loop
            if job is None or loop is None or job.loop is not loop or loop.inside is not None:
                self._begin()
            else:
                # The usual case of ``_begin``, inlined.
                self._is_theirs = self._stepped = False
                lane = fast_path.lane
                # The lane of a thread that runs asyncio tasks has frames.
                is_known = lane is not None and thread == fast_path.thread and not lane.frames
                loop.enter(lane if is_known else None)
                self._open = loop
            self._by_batch = True
            self._samples = samples_in(batch)
            if self._keeps_batch:
                self._batch = batch
            # The forward passes of this batch are in this iteration, unless they are a validation.
            self.wants_forward = (
                self._validation.span is not None
                or not self._operations.is_settled
                or self._open is None
            )
        except Exception as error:
            report(WHERE, error)

    def epoch_is_left(self, batches: int | None) -> None:
        self._epochs.leave(batches)
        if self._stepped or not self._backwards:
            if self._open is not None and not self._stepped:
                self._epochs.left_at = self.step
            self._epoch_is_over()

    def epoch_ends(self) -> None:
        self._epochs.complete += 1
        self._epoch_is_over()

    def _epoch_is_over(self) -> None:
        if get_ident() == self._thread:
            self._batch = None
            if self._open is not None and self._by_batch:
                self._end()
            self._epochs.retract(self.step)

    # Events of the model

    def _is_evaluated(self) -> bool:
        """Return whether the model is in evaluation mode."""
        model = self._validation.model()
        return model is not None and not model.training

    def is_evaluating(self) -> bool:
        return self._validation.span is not None

    def evaluation_continues(self) -> None:
        if self._validation.span is not None and get_ident() == self._thread:
            self._validation.note_batch()

    def other_loader_begins(self) -> bool:
        try:
            if get_ident() != self._thread or self._is_theirs:
                return False
            if self._open is None or self._stepped:
                is_evaluated = self._is_evaluated()
                self._validation.note(self.steps_made, is_evaluated)
                if is_evaluated:
                    if self._open is not None:
                        self._end()
                    self._validation.begin(self.step)
                return True
        except Exception as error:
            report(WHERE, error)
        return False

    def mode_changes(self, module: Any, mode: bool) -> None:
        if module is not self._validation.model() and module is not self._model():
            # Frequent: the mode is also set on each submodule.
            return
        try:
            if get_ident() != self._thread or self._is_theirs:
                return
            if mode:
                self._validation.end(is_put_into_training=True)
            elif module.training and (self._open is None or self._stepped):
                if self._open is not None:
                    # The rest of the loop's body is not part of the iteration.
                    self._end()
                self._validation.note(self.step, True)
        except Exception as error:
            report(WHERE, error)

    def forward_begins(self, model: Any, args: Any) -> bool | None:
        if is_recomputing():
            # Part of the backward pass, and counted there.
            return None
        is_trained = model.training and (torch.is_grad_enabled() or is_checkpointed())
        if not is_trained:
            if get_ident() != self._thread:
                # Another thread evaluates the model during training.
                return None
            # Only the first model: others may be teachers.
            is_looked_at = (
                not model.training
                and model is self._model()
                and self._by_batch
                and not self._backwards
            )
            if self._open is not None and (self._stepped or is_looked_at):
                # An evaluation between two batches, or on this one, is not part of an iteration.
                self._end()
            if self._open is not None or self._is_theirs:
                return None
            if not model.training:
                self._validation.forward_begins(model, self.step, None)
            elif self._validation.is_noted(self.step) or self._validation.span is not None:
                self._validation.forward_begins(model, self.step, "train")
            else:
                # For example a rollout: not a forward pass of training.
                return False
            return None
        if self._validation.span is not None:
            self._validation.end()
        if self._open is None:
            self._begin()
            self._by_batch = False
            self._samples = samples_in(args)
        elif not self._by_batch and not (self._backwards and self._is_in_step()):
            # If the optimizer calls its closure several times, only the first call counts.
            size = samples_in(args)
            if size is not None:
                self._samples = size + (self._samples or 0)
        operations = self._operations
        if not operations.is_settled and self.step >= self._options.step + COUNTED_STEP:
            operations.start(model, None if self._open is None else self._job)
            self.is_counting = operations.count is not None
        if operations.count is not None:
            operations.count.begin_forward()
        return None

    def forward_ends(self, model: Any) -> None:
        if self._operations.count is not None:
            self._operations.count.end_forward()
        if self._validation.span is not None:
            self._validation.forward_ends(model)

    def loss_is_scaled(self, scaled: Any, plain: Any) -> None:
        try:
            if self._loss.is_on:
                self._loss.note_scaled(scaled, plain)
        except Exception as error:
            report(WHERE, error)

    def gradients_are_dropped(self, owner: Any) -> None:
        # The gradients of the losses since the last step are not used.
        loss = self._loss
        try:
            if isinstance(loss, OptimizerLosses):
                if not self._is_in_step():
                    loss.drop(owner)
            elif (
                self._backwards
                and (owner is self._optimizer() or owner is self._model())
                and not self._is_in_step()
            ):
                loss.forget()
        except Exception as error:
            report(WHERE, error)

    def backward_begins(self, outputs: Any) -> Any:
        self._backwards += 1
        try:
            if self._loss.is_on and not (self._backwards > 1 and self._is_in_step()):
                return self._loss.backward_begins(outputs)
        except Exception as error:
            report(WHERE, error)
        return None

    def backward_ends(self, looked: Any) -> None:
        try:
            if isinstance(self._loss, OptimizerLosses):
                self._loss.backward_ends(looked)
        except Exception as error:
            report(WHERE, error)

    def count_backward(self) -> Any:
        count = self._operations.count
        return None if count is None else count.counter

    # Events of the optimizer

    def step_begins(self, optimizer: Any) -> None:
        if optimizer is not self._optimizer():
            return
        self._in_step = True
        self._thread = get_ident()
        if self._open is None:
            if self._validation.span is not None:
                self._validation.end()
            self._begin()
            self._by_batch = False
            self._samples = None
        elif self._stepped:
            # Another step with the same batch.
            before = self._inside()
            self._end()
            self._begin()
            self._samples = 0
            self._epochs.continue_batch(before, self._inside())

    def step_ends(self, optimizer: Any) -> None:
        if optimizer is not self._optimizer():
            if isinstance(self._loss, OptimizerLosses):
                self._write_other_loss(self._loss, optimizer)
            return
        self._in_step = False
        self._stepped = self.wants_forward = True
        loop = self._open
        if loop is not None:
            self._backwards = 0
            if self._loss.is_on:
                lane = fast_path.lane if fast_path.thread == self._thread else None
                self._loss.write(loop.step, lane, optimizer)
        if self.step >= self._next_look:
            self._diagnose(optimizer)
        if self._is_theirs:
            self.step += 1
            self._stepped = False
            self._backwards = 0
            self._loss.forget()
        elif not self._by_batch:
            self._end()

    def _write_other_loss(self, losses: OptimizerLosses, optimizer: Any) -> None:
        """Write the loss of an optimizer whose steps are not the iterations."""
        loop = self._loop
        if loop is None or self._is_theirs or current.job is None or current.job.loop is not loop:
            losses.forget()
            return
        step = loop.step
        if not self._by_batch and losses.is_first_first:
            # The iteration ended with the first optimizer's step, before this one.
            step = max(loop.progress.start, step - 1)
        losses.write(step, None, optimizer)

    def _is_in_step(self) -> bool:
        """Return whether the optimizer is in a step. After a failed step no hook is called."""
        if self._in_step and not is_running(self._optimizer()):
            self._in_step = False
        return self._in_step

    def _diagnose(self, optimizer: Any) -> None:
        self._next_look = self._diagnostics.look(self._model(), optimizer, self.step, self._batch)

    def save_begins(self) -> int | None:
        job, loop = current.job, self._loop
        if loop is None or job is None or job.loop is not loop or get_ident() != self._thread:
            return None
        if self._validation.span is not None:
            self._validation.end()
        return self.steps_made

    # Iterations

    def _begin(self) -> None:
        job = current.job
        loop = None if job is None else job.loop
        if loop is None or loop is not self._loop:
            loop = self._find_loop()
        self._is_theirs = loop is None or loop.inside is not None
        self._stepped = False
        if loop is None or self._is_theirs:
            return
        loop.enter()
        self._open = loop

    def _inside(self) -> int:
        """Return the id of the open iteration, 0 for none."""
        span = None if self._open is None else self._open.inside
        return 0 if span is None else span.id

    def _end(self, error: BaseException | None = None, lane: Lane | None = None) -> None:
        """End the open pass, which is an iteration if the optimizer has made a step."""
        try:
            loop, self._open = self._open, None
            self.wants_forward = True
            job = current.job
            if loop is None or job is None or job.loop is not loop:
                # The run has ended in between, and the open spans with it.
                self._loss.forget()
                return
            samples = self._samples
            if self._operations.count is not None:
                is_trained = self._stepped or self._backwards
                self._operations.finish(job, loop, samples if is_trained else None)
                self.is_counting = False
            if samples is not None:
                samples *= self._replicas
            if error is not None and not self._stepped:
                loop.end(samples, None, False, error)
            elif self._stepped:
                if self._partial:
                    if self._first_size is None:
                        loop.span.add_attribute("batches_per_step", len(self._partial) + 1)
                    self._partial.clear()
                if loop.step + 1 >= loop._look:
                    self._times.report(loop, loop.step + 1)
                loop.end_sized(samples, lane)
                self.step += 1
                if self.step % self._every == 0 or self._first_size is None:
                    self._look(loop)
            elif self._backwards:
                if loop.inside is not None:
                    self._partial.append(loop.inside)
                loop.end(samples, None, False)
            else:
                # The batch was inspected, not trained on.
                loop.skip()
        except Exception as problem:
            report(WHERE, problem)

    # The end

    def _withdraw_partial(self) -> None:
        """Withdraw accumulated passes that were not followed by an optimizer step."""
        loop, job = self._loop, current.job
        partial, self._partial = self._partial, []
        if partial and loop is not None and job is not None and job.loop is loop:
            loop.withdraw(partial)

    def run_ends(self, status: str) -> None:
        """Write the results so far: the run ends while training is watched."""
        if self._validation.span is not None:
            self._validation.end()
        if self._open is not None and (self._stepped or status == "finished"):
            self._end()
        self._withdraw_partial()
        if status in ("failed", "interrupted") and self._epochs.left_at == self.step:
            # An exception left the loop before a step was trained: the run failed at this step.
            set_context(self.step, None)
        self._loss.finish()
        job, loop = current.job, self._loop
        if job is not None and loop is not None and job.loop is loop:
            self._times.report(loop, loop.step)

    def close(self, error: BaseException | None = None) -> None:
        """End the open iteration, the validation and the training loop."""
        if active.observer is self:
            active.observer = None
        self._operations.abort()
        self._epochs.end()
        self._batch = None
        if self._validation.span is not None:
            self._validation.end()
        if self._open is not None:
            self._end(error)
        self._withdraw_partial()
        self._loss.finish()
        job, loop = self._job, self._loop
        self._loop = None
        if job is not None and loop is not None and job is current.job and job.loop is loop:
            self._times.report(loop, loop.step)
            self._look(loop)
            calls.end_training(error=error)
        self._diagnostics.close()
