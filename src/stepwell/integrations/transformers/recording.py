"""What is recorded of one trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwell.integrations.checkpoints import record_save
from stepwell.integrations.timing import LOSS, timer
from stepwell.integrations.transformers.training import WHERE, Training
from stepwell.integrations.wrapping import (
    BACKWARD,
    BACKWARD_TIME,
    FORWARD,
    FORWARD_TIME,
    Wrapped,
    Wrappings,
    standard_span,
)
from stepwell.journal import metrics
from stepwell.journal.errors import report
from stepwell.journal.span import Span
from stepwell.telemetry.live import find_open
from stepwell.training import calls
from stepwell.training.current import current
from stepwell.training.standard_spans import WORDS
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.integrations.transformers.callback import StepwellCallback

RECORDING = "_stepwell_recording"
LOGGED_LOSS = "logged_loss"
"""The loss that the Trainer logs: a mean of the steps since it last did, and of all ranks."""
PREDICTION = "Prediction"
"""How the Trainer describes an evaluation loop that ``predict`` runs."""


class Recording:
    """One trainer: its callback tells of steps, and methods of this one object are wrapped for the rest."""

    def __init__(self, callback: StepwellCallback, trainer: Any = None) -> None:
        self.callback = callback
        self.trainer = trainer
        self._wrappings = Wrappings()
        self.training = Training(trainer, callback.diagnostics)
        self._part: calls.Part | None = None
        self._is_predicting = False
        if trainer is not None:
            vars(trainer)[RECORDING] = self
            self._wrap()

    def _wrap(self) -> None:
        trainer, wrap = self.trainer, self._wrappings.wrap
        for name in ("train", "evaluate", "predict"):
            wrap(trainer, name, self._around_entry)
        wrap(trainer, "_inner_training_loop", self._around_training)
        # In case that the callback was added when training was under way.
        wrap(trainer, "_run_epoch", self._around_epoch)
        wrap(trainer, "call_model_init", self._around_model_init)
        wrap(trainer, "create_optimizer", self._around_optimizer_init)
        wrap(trainer, "get_train_dataloader", self._around_train_loader)
        wrap(trainer, "get_eval_dataloader", self._around_eval_loader)
        wrap(trainer, "get_test_dataloader", self._around_test_loader)
        wrap(trainer, "_load_from_checkpoint", self._around_load)
        wrap(trainer, "_load_optimizer_and_scheduler", self._around_load_optimizer)
        wrap(trainer, "_load_best_model", self._around_load_best)
        wrap(trainer, "get_batch_samples", self.training.around_batches)
        wrap(trainer, "training_step", self.training.around_pass)
        self._wrap_timed(trainer, "compute_loss", FORWARD, FORWARD_TIME)
        wrap(trainer, "evaluation_loop", self._around_evaluation)
        wrap(trainer, "prediction_step", self._around_prediction)
        wrap(trainer, "_save_checkpoint", self._around_save)
        wrap(trainer, "save_model", self._around_save_model)

    def _wrap_timed(self, owner: Any, name: str, span: Span, attribute: str) -> None:
        if not isinstance(getattr(owner, name, None), Wrapped):
            self._wrappings.replace(owner, name, timer(self.training.thread, span, attribute))

    # What a user calls

    def _around_entry(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            trainer = self.trainer
            if self.callback not in trainer.callback_handler.callbacks:
                # It was taken away.
                self._detach()
                return original(*args, **kwargs)
            self.callback.start(trainer.args, trainer, trainer.model)
        except Exception as error:
            report(WHERE, error)
        with self.callback.at_work(self):
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

    def _around_train_loader(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        with standard_span(Name.DATA_LOADER_INIT, stage="train"):
            return original(*args, **kwargs)

    def _around_eval_loader(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        with standard_span(Name.DATA_LOADER_INIT, stage="val"):
            return original(*args, **kwargs)

    def _around_test_loader(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        with standard_span(Name.DATA_LOADER_INIT, stage="test"):
            return original(*args, **kwargs)

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
        """The training loop starts."""
        job = self.callback.start(args, self.trainer, model)
        if job is None:
            return
        # Here at the latest: the accelerator may be another one than when the trainer was made.
        accelerator = getattr(self.trainer, "accelerator", None)
        self._wrap_timed(accelerator, "backward", BACKWARD, BACKWARD_TIME)
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
        part: calls.Part = "testing" if description == PREDICTION else "validation"
        is_ours = find_open(WORDS[_loop_name(part)]) is None
        self._part = part
        if is_ours:
            calls.start_evaluation(part)
        # Forward of these batches is not in the averages of training.
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
        """A batch begins; the callback tells when it is done."""
        if self._part is not None:
            self.end_prediction(None)
            self._is_predicting = True
            calls.start_evaluation_iteration(self._part)
        return original(*args, **kwargs)

    def end_prediction(self, error: BaseException | None) -> None:
        """The batch is done."""
        if self._is_predicting and self._part is not None:
            calls.end_evaluation_iteration(self._part, None, error)
        self._is_predicting = False

    # Metrics

    def log(self, state: Any, logs: Any) -> None:
        """Record what the Trainer logs; on one rank, for it is the same on all."""
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
        # The folder may have much else in it, the checkpoints above all.
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


def _loop_name(part: calls.Part) -> Name:
    return Name.TESTING_LOOP if part == "testing" else Name.VALIDATION_LOOP
