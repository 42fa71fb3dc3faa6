"""The recorder of one Lightning trainer while it fits, validates or tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stepwell._core import clock
from stepwell._core.errors import report
from stepwell.integrations.lightning import configuration
from stepwell.integrations.lightning.fit import FitRecorder, optimizer_step
from stepwell.integrations.lightning.logger import StepwellLogger
from stepwell.integrations.lightning.packages import WHERE
from stepwell.integrations.timing import LOSS, TrainingThread, timer
from stepwell.integrations.wrappers import (
    BACKWARD,
    BACKWARD_TIME,
    FORWARD,
    FORWARD_TIME,
    LOADING,
    LOADING_TIME,
    Wrappings,
)
from stepwell.journal.metrics import log
from stepwell.journal.span import withdraw
from stepwell.telemetry.span_handle import NO_SPAN, Span
from stepwell.training import calls
from stepwell.training.calls import current
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.integrations.lightning.callback import TelemetryCallback

STAGES = {"fit_loop": "train", "validate_loop": "val", "test_loop": "test"}
STAGES["predict_loop"] = "predict"
PARTS: dict[str, calls.EvaluationKind] = {"val": "validation", "test": "testing"}


class LightningRecorder:
    """Records one run of a trainer. Wraps only objects of that trainer, and only while it runs."""

    def __init__(self, trainer: Any, callback: TelemetryCallback) -> None:
        self.trainer = trainer
        self.callback = callback
        self._declared = callback.declared
        self._wrappings = Wrappings()
        self._thread = TrainingThread()
        self._begun = clock.now()
        self.training = FitRecorder(trainer, self._thread, callback.diagnostics)
        self.evaluations = Evaluations(trainer)
        # Whether the trainer's class is hooked: it then calls begin and end, and records saves.
        self.is_hooked = False
        # Whether the application ends with this run of the trainer.
        self.is_application = False
        self._wrap()

    def wrap_save(self) -> None:
        """Record the saves of a trainer whose class is not hooked."""
        save = partial(self.callback.save, self.trainer)
        self._wrappings.wrap(self.trainer, "save_checkpoint", save)

    def end(self, error: BaseException | None = None) -> None:
        """End the run of the trainer, with or without an error."""
        self._wrappings.remove()
        self.training.end()
        self.evaluations.forget()
        calls.close_since(self._begun, error)
        self._declared.forget()

    # What is wrapped

    def _wrap(self) -> None:
        trainer, wrap, replace = self.trainer, self._wrappings.wrap, self._wrappings.replace
        strategy = trainer.strategy
        wrap(strategy, "setup_environment", self._set_up_environment)
        wrap(strategy, "model_sharded_context", self._model_context)
        wrap(strategy, "model_to_device", self._move_model)
        wrap(strategy, "setup_optimizers", partial(self._record, Name.OPTIMIZER_INIT))
        connector = getattr(trainer, "_checkpoint_connector", None)
        wrap(connector, "_restore_modules_and_callbacks", self._restore)
        wrap(getattr(trainer, "_logger_connector", None), "log_metrics", self._log_metrics)
        wrap(trainer.fit_loop, "on_run_end", self._end_run)
        for name, stage in STAGES.items():
            self._wrap_loop(getattr(trainer, name, None), stage)
        self._wrap_loop(trainer.fit_loop.epoch_loop.val_loop, "val")
        self._wrap_fetches(trainer.fit_loop.epoch_loop, True)
        # Forward passes of an evaluation do not count in the averages of training.
        evaluating = timer(TrainingThread(), FORWARD, FORWARD_TIME)
        for step in ("validation_step", "test_step"):
            replace(strategy, step, evaluating)
        batches = trainer.fit_loop.epoch_loop
        replace(batches.automatic_optimization, "run", self.training.around_batch)
        replace(batches.manual_optimization, "run", self.training.around_batch)
        if configuration.is_automatic(trainer):
            replace(strategy, "training_step", timer(self._thread, FORWARD, FORWARD_TIME))
            replace(strategy, "backward", timer(self._thread, BACKWARD, BACKWARD_TIME))
            replace(strategy, "optimizer_step", optimizer_step(self._thread))
        else:
            manual = self.training.manual
            replace(strategy, "training_step", manual.step)
            replace(strategy, "backward", manual.backward)
            replace(strategy, "optimizer_step", manual.update)

    def _wrap_loop(self, loop: Any, stage: str) -> None:
        if loop is None:
            return
        self._wrappings.wrap(loop, "setup_data", partial(self._set_up_data, loop, stage))
        part = PARTS.get(stage)
        if part is not None:
            self._wrap_fetches(loop, False)
            self._wrappings.wrap(loop, "run", partial(self.evaluations.run, part))
            self._wrappings.wrap(loop, "reset", self.evaluations.reset)

    def _wrap_fetches(self, loop: Any, is_counted: bool) -> None:
        fetches = Fetches(self._thread, is_counted)
        self._wrappings.replace(loop, "_on_before_fetch", fetches.before)
        self._wrappings.replace(loop, "_on_after_fetch", fetches.after)

    # Called in place of Lightning's methods

    def _record(self, name: Name, original: Any, *args: Any, **kwargs: Any) -> Any:
        with self._declared.record(name):
            return original(*args, **kwargs)

    def _set_up_environment(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        is_distributed = hasattr(self.trainer.strategy, "cluster_environment")
        if is_distributed and not _is_initialized():
            result = self._record(Name.DIST_INIT, original, *args, **kwargs)
        else:
            result = original(*args, **kwargs)
        self._note_world_size()
        return result

    def _note_world_size(self) -> None:
        """Take the number of ranks from Lightning, which may have started them itself."""
        job, trainer = current.job, self.trainer
        if job is None:
            return
        size, rank = int(trainer.world_size), int(trainer.global_rank)
        recorded = (0, 1) if job.run is None else (job.run.rank, job.run.world_size)
        if job.application is not None and recorded != (rank, size):
            job.application.add_attributes({"rank": rank, "world_size": size})
        if job.config.ask("world_size") is None:
            job.world_size = max(job.world_size, size)

    @contextmanager
    def _model_context(self, original: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with self._declared.record(Name.MODEL_INIT), original(*args, **kwargs) as result:
            yield result
        self._declared.note(Name.MODEL_INIT)

    def _move_model(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.callback.is_new_model(self.trainer.lightning_module):
            return original(*args, **kwargs)
        return self._record(Name.MODEL_INIT, original, *args, **kwargs)

    def _set_up_data(self, loop: Any, stage: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        if not _will_load(self.trainer, loop, stage):
            return original(*args, **kwargs)
        with self._declared.record(Name.DATA_LOADER_INIT, stage=stage):
            return original(*args, **kwargs)

    def _restore(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else kwargs.get("checkpoint_path")
        if not path:
            return original(*args, **kwargs)
        with self._declared.record(Name.CHECKPOINT_LOAD, checkpoint_path=str(path)):
            return original(*args, **kwargs)

    def _end_run(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        # After the callbacks, some of which save the last checkpoint here.
        result = original(*args, **kwargs)
        if current.job is not None and current.job.loop is not None:
            calls.end_training()
        return result

    # Metrics

    def _log_metrics(self, original: Any, metrics: Any, step: Any = None) -> Any:
        self._record_metrics(metrics, step)
        return original(metrics, step)

    def _record_metrics(self, metrics: Any, step: int | None) -> None:
        """Record the values that the model logs, unless a StepwellLogger does."""
        try:
            trainer = self.trainer
            if not metrics or not isinstance(metrics, Mapping) or trainer.sanity_checking:
                return
            if any(isinstance(logger, StepwellLogger) for logger in trainer.loggers):
                return
            values = {name: value for name, value in metrics.items() if name != LOSS}
            if step is None and "step" in values:
                step = int(values.pop("step"))
            elif step is None:
                step = trainer.fit_loop.epoch_loop._batches_that_stepped
            log(values, step)
        except Exception as error:
            report(WHERE, error)


def _is_initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _will_load(trainer: Any, loop: Any, stage: str) -> bool:
    """Return whether the loop is about to create its loaders, rather than reuse them."""
    if getattr(trainer, f"limit_{stage}_batches", 1) == 0:
        return False
    if getattr(loop, "_combined_loader", None) is None:
        return True
    if stage == "train":
        return bool(getattr(loop, "_should_reload_train_dl", False))
    is_fitting = loop is trainer.fit_loop.epoch_loop.val_loop
    return not is_fitting or bool(getattr(loop, "_should_reload_val_dl", False))


class Fetches:
    """Records the fetch of each batch, between two methods that a loop calls before and after it.

    ``is_counted``: whether the time is added to the phases of training.
    """

    __slots__ = ("_is_counted", "_start", "_thread")

    def __init__(self, thread: TrainingThread, is_counted: bool) -> None:
        self._thread = thread
        self._is_counted = is_counted
        self._start = 0

    def before(self, original: Any) -> Callable[[], None]:
        """Wrap the method that is called before a fetch."""

        def call() -> None:
            original()
            if current.job is not None:
                self._start = self._thread.enter(LOADING)

        return call

    def after(self, original: Any) -> Callable[[], None]:
        """Wrap the method that is called after a fetch, even if the fetch failed."""

        def call() -> None:
            start, self._start = self._start, 0
            error = sys.exc_info()[1] if start else None
            if start and (error is None or not _is_passing(error, sys._getframe(1))):
                end = self._thread.leave(LOADING)
                phases = self._thread.phases
                if phases is not None and self._is_counted:
                    phases[LOADING_TIME] = phases.get(LOADING_TIME, 0) + end - start
            elif isinstance(error, StopIteration):
                # There was no further batch.
                withdraw(LOADING)
            elif error is not None:
                LOADING.__exit__(type(error), error, None)
            original()

        return call


def _is_passing(error: BaseException, frame: Any) -> bool:
    """Return whether an exception passes through this frame, rather than being handled farther out."""
    trace = error.__traceback__
    return trace is not None and trace.tb_frame is frame


class Evaluations:
    """Records the validation and testing loops of one trainer, and the sanity check before training."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._sanity: list[tuple[Name, Span]] = []
        self._evaluating: dict[str, bool] = {}
        self._is_mode_known = False
        # The kind of the running loop, and of the loop whose end hooks are being called.
        self._running: calls.EvaluationKind | None = None
        self._ending: calls.EvaluationKind | None = None

    def forget(self) -> None:
        """Reset at the end of a run of the trainer."""
        self._sanity.clear()
        self._running = self._ending = None

    def run(self, part: calls.EvaluationKind, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``run`` of a loop, which creates the loaders first."""
        self._running = part
        try:
            result = original(*args, **kwargs)
            self.finish()
            return result
        finally:
            self._running = None

    def reset(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``reset`` of a loop, which creates the iterators: the evaluation begins here."""
        if self._running is not None:
            self._start(self._running)
        return original(*args, **kwargs)

    def _start(self, part: calls.EvaluationKind) -> None:
        if current.job is None:
            return
        if self.trainer.sanity_checking:
            self._start_sanity(Name.VALIDATION_LOOP)
            return
        # An evaluation that the user started is ended by the user.
        self._evaluating[part] = not _is_open(part)
        self._is_mode_known = False
        if self._evaluating[part]:
            calls.start_evaluation(part)

    def end(self, part: calls.EvaluationKind) -> None:
        """Note that the metrics are complete. The work of other callbacks is still part of the loop."""
        self._ending = part

    def finish(self) -> None:
        """End the loop, unless it has ended: when it returns, or when a checkpoint is saved at its end."""
        part, self._ending = self._ending, None
        if part is None:
            return
        if self._sanity:
            self._end_sanity()
        elif self._evaluating.pop(part, False) and _is_open(part):
            calls.end_evaluation(part)

    def start_iteration(self, part: calls.EvaluationKind) -> None:
        """Start a batch of an evaluation."""
        if self._sanity:
            self._start_sanity(Name.VALIDATION_SINGLE_ITERATION)
        elif part in self._evaluating:
            if not self._is_mode_known:
                self._note_mode(part)
            calls.start_evaluation_iteration(part)

    def end_iteration(self, part: calls.EvaluationKind) -> None:
        """End a batch of an evaluation."""
        if self._sanity:
            self._end_sanity()
        elif part in self._evaluating:
            calls.end_evaluation_iteration(part)

    def _note_mode(self, part: calls.EvaluationKind) -> None:
        """Record if a model is evaluated in training mode, which a module can cause by overriding hooks."""
        self._is_mode_known = True
        span = _span_of(part)
        if span is not None and self.trainer.lightning_module.training:
            span.add_attribute("model_mode", "train")

    def _start_sanity(self, name: Name) -> None:
        """Record the sanity check before training, which does not count as a validation in any average."""
        span = calls.start(name)
        if span is not NO_SPAN:
            span.add_attribute("is_sanity_check", True)
        self._sanity.append((name, span))

    def _end_sanity(self) -> None:
        name, _ = self._sanity.pop()
        calls.end(name)


def _is_open(part: calls.EvaluationKind) -> bool:
    return _span_of(part) is not None


def _span_of(part: calls.EvaluationKind) -> Span | None:
    job = current.job
    if job is None:
        return None
    return (job.validation if part == "validation" else job.testing).span
