"""The recorder of one Trainer: entry points, setup, evaluation, metrics and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stepwell._core.errors import report
from stepwell.integrations.timing import LOSS, timer
from stepwell.integrations.transformers.training import WHERE, TrainingRecorder
from stepwell.integrations.wrappers import (
    BACKWARD,
    BACKWARD_TIME,
    FORWARD,
    FORWARD_TIME,
    Wrappings,
    record_save,
    standard_span,
)
from stepwell.journal import metrics
from stepwell.telemetry.span_handle import find_open
from stepwell.training import calls
from stepwell.training.calls import current
from stepwell.training.standard_spans import WORDS
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.integrations.transformers.callback import StepwellCallback

RECORDING = "_stepwell_recording"
LOGGED_LOSS = "logged_loss"
"""The loss that the Trainer logs: the mean over ranks and over the steps since its last log."""
PREDICTION = "Prediction"
"""The description of an evaluation loop in ``predict``."""


class TrainerRecorder:
    """Records one trainer: steps through its callback, the rest by wrapping methods of this object."""

    def __init__(self, callback: StepwellCallback, trainer: Any = None) -> None:
        self.callback = callback
        self.trainer = trainer
        self._wrappings = Wrappings()
        self.training = TrainingRecorder(trainer, callback.diagnostics)
        self._part: calls.EvaluationKind | None = None
        self._is_predicting = False
        if trainer is not None:
            vars(trainer)[RECORDING] = self
            self._wrap()

    def _wrap(self) -> None:
        trainer, wrap = self.trainer, self._wrappings.wrap
        for name in ("train", "evaluate", "predict"):
            wrap(trainer, name, self._around_entry)
        wrap(trainer, "_inner_training_loop", self._around_training)
        # For a callback that is added during training.
        wrap(trainer, "_run_epoch", self._around_epoch)
        wrap(trainer, "call_model_init", self._around_model_init)
        wrap(trainer, "create_optimizer", self._around_optimizer_init)
        wrap(trainer, "get_train_dataloader", self._around_loader("train"))
        wrap(trainer, "get_eval_dataloader", self._around_loader("val"))
        wrap(trainer, "get_test_dataloader", self._around_loader("test"))
        wrap(trainer, "_load_from_checkpoint", self._around_load)
        wrap(trainer, "_load_optimizer_and_scheduler", self._around_load_optimizer)
        wrap(trainer, "_load_best_model", self._around_load_best)
        wrap(trainer, "get_batch_samples", self.training.around_batches)
        wrap(trainer, "training_step", self.training.around_pass)
        forward = timer(self.training.thread, FORWARD, FORWARD_TIME)
        self._wrappings.replace(trainer, "compute_loss", forward)
        wrap(trainer, "evaluation_loop", self._around_evaluation)
        wrap(trainer, "prediction_step", self._around_prediction)
        wrap(trainer, "_save_checkpoint", self._around_save)
        wrap(trainer, "save_model", self._around_save_model)

    # Entry points

    def _around_entry(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            trainer = self.trainer
            if self.callback not in trainer.callback_handler.callbacks:
                # The callback was removed.
                self._detach()
                return original(*args, **kwargs)
            self.callback.start(trainer.args, trainer, trainer.model)
        except Exception as error:
            report(WHERE, error)
        with self.callback.recording_trainer(self):
            return original(*args, **kwargs)

    def _detach(self) -> None:
        self._wrappings.remove()
        vars(self.trainer).pop(RECORDING, None)

    # Setting up

    def _around_model_init(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        with standard_span(Name.MODEL_INIT):
            return original(*args, **kwargs)

    def _around_optimizer_init(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self.trainer.optimizer is not None:
            return original(*args, **kwargs)
        with standard_span(Name.OPTIMIZER_INIT):
            return original(*args, **kwargs)

    def _around_loader(self, stage: str) -> Callable[..., Any]:
        def around(original: Any, *args: Any, **kwargs: Any) -> Any:
            with standard_span(Name.DATA_LOADER_INIT, stage=stage):
                return original(*args, **kwargs)

        return around

    def _around_load(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else kwargs.get("resume_from_checkpoint")
        with standard_span(Name.CHECKPOINT_LOAD, checkpoint_path=str(path), part="model"):
            return original(*args, **kwargs)

    def _around_load_optimizer(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else kwargs.get("checkpoint")
        if path is None:
            return original(*args, **kwargs)
        with standard_span(Name.CHECKPOINT_LOAD, checkpoint_path=str(path), part="optimizer"):
            return original(*args, **kwargs)

    def _around_load_best(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        path = self.trainer.state.best_model_checkpoint
        with standard_span(Name.CHECKPOINT_LOAD, checkpoint_path=str(path), part="best model"):
            return original(*args, **kwargs)

    # Training

    def start_training(self, args: Any, state: Any, model: Any, optimizer: Any) -> None:
        """Start the training loop."""
        job = self.callback.start(args, self.trainer, model)
        if job is None:
            return
        # Not earlier: the accelerator may have been replaced since the trainer was created.
        accelerator = getattr(self.trainer, "accelerator", None)
        backward = timer(self.training.thread, BACKWARD, BACKWARD_TIME)
        self._wrappings.replace(accelerator, "backward", backward)
        self.training.start(job, args, state, model, optimizer)

    def _around_training(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            self.training.end(error)
            raise

    def _around_epoch(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        epoch = kwargs.get("epoch")
        if isinstance(epoch, int):
            self.training.start_epoch(epoch)
        return self._around_training(original, *args, **kwargs)

    # Evaluation and prediction

    def _around_evaluation(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if current.job is None or self._part is not None:
            return original(*args, **kwargs)
        description = args[1] if len(args) > 1 else kwargs.get("description")
        part: calls.EvaluationKind = "testing" if description == PREDICTION else "validation"
        loop = Name.TESTING_LOOP if part == "testing" else Name.VALIDATION_LOOP
        is_ours = find_open(WORDS[loop]) is None
        self._part = part
        if is_ours:
            calls.start_evaluation(part)
        # Forward passes of the evaluation do not count in the averages of training.
        thread = self.training.thread
        phases, thread.phases = thread.phases, None
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            self._end_evaluation(is_ours, error)
            raise
        finally:
            thread.phases = phases
        self._end_evaluation(is_ours, None)
        return result

    def _end_evaluation(self, is_ours: bool, error: BaseException | None) -> None:
        self.end_prediction(error)
        part, self._part = self._part, None
        if is_ours and part is not None:
            calls.end_evaluation(part, None, error)

    def _around_prediction(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Begin a batch. The callback ends it."""
        if self._part is not None:
            self.end_prediction(None)
            self._is_predicting = True
            calls.start_evaluation_iteration(self._part)
        return original(*args, **kwargs)

    def end_prediction(self, error: BaseException | None) -> None:
        """End a batch of an evaluation."""
        if self._is_predicting and self._part is not None:
            calls.end_evaluation_iteration(self._part, None, error)
        self._is_predicting = False

    # Metrics

    def log(self, state: Any, logs: Any) -> None:
        """Record the values that the Trainer logs, on rank 0 only: all ranks log the same."""
        try:
            if (
                current.job is None
                or not isinstance(logs, Mapping)
                or not state.is_world_process_zero
            ):
                return
            values = dict(logs)
            if LOSS in values and self.training.has_loss:
                values[LOGGED_LOSS] = values.pop(LOSS)
            metrics.log(values, max(0, int(state.global_step) - 1))
        except Exception as error:
            report(WHERE, error)

    # Checkpoints

    def _around_save(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        trial = args[1] if len(args) > 1 else kwargs.get("trial")
        path = None
        try:
            folder = f"checkpoint-{self.trainer.state.global_step}"
            path = os.path.join(self.trainer._get_output_dir(trial), folder)
        except Exception as error:
            report(WHERE, error)
        return self._save(path, True, original, args, kwargs)

    def _around_save_model(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        # The folder may contain other files, checkpoints in particular.
        path = (args[0] if args else kwargs.get("output_dir")) or self.trainer.args.output_dir
        return self._save(path, False, original, args, kwargs)

    def _save(self, path: Any, is_whole: bool, original: Any, args: Any, kwargs: Any) -> Any:
        trainer = self.trainer
        is_writer = bool(getattr(trainer.args, "should_save", True))
        return record_save(
            original,
            args,
            kwargs,
            step=int(trainer.state.global_step),
            path=path,
            is_whole=is_whole and is_writer,
        )
