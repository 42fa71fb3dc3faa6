"""``StepwellCallback``: the methods that the Trainer calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformers.trainer_callback import TrainerCallback

from stepwell._core.errors import report
from stepwell.integrations.configuration import model_size, record_config
from stepwell.integrations.torch.diagnostics import DiagnosticsOption
from stepwell.integrations.transformers.recorder import RECORDING, TrainerRecorder
from stepwell.integrations.transformers.training import WHERE
from stepwell.journal.state import state
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.start import init
from stepwell.training import calls
from stepwell.training.calls import current, current_job
from stepwell.training.config import script_name
from stepwell.training.job import TrainingJob

DEPTH = 12
"""Number of stack frames in which the calling trainer is searched."""


class StepwellCallback(TrainerCallback):  # type: ignore[misc]
    """Records a training job of a Trainer. Pass it in ``callbacks=[StepwellCallback()]``.

    When training, evaluation or prediction begins, it starts a run if none is active. That run continues
    until ``finish()`` or the end of the process, so that ``train()``, ``evaluate()`` and ``predict()`` are
    in one run. A run that was active before is not finished.

    Args:
        name: name of the run. Default: ``run_name`` of the arguments, else the name of the script.
        dir: folder of the runs. Default: ``STEPWELL_DIR``, else ``./runs``.
        diagnostics: record gradient norms and learning rates; a ``TelemetryConfig`` for other diagnostics.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        dir: str | os.PathLike[str] | None = None,
        diagnostics: DiagnosticsOption = True,
    ) -> None:
        self.name = name
        self.dir = dir
        self.diagnostics = diagnostics
        self._run: Run | None = None
        # The recorder of the running trainer. Not kept longer: it would keep the trainer in memory.
        self._recorder: TrainerRecorder | None = None
        self._described: tuple[str, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Another process has another run.
        return {**self.__dict__, "_run": None, "_recorder": None, "_described": None}

    @property
    def run(self) -> Run | None:
        """The active run, None if there is none."""
        return active_run()

    def finish(self, status: str = "finished") -> None:
        """Finish the run, if this callback started it."""
        run, self._run = self._run, None
        if run is not None:
            run.finish(status)

    # Run and trainer

    def start(self, args: Any, trainer: Any, model: Any) -> TrainingJob | None:
        """Return the job to record to, with its application started; None if nothing is recorded."""
        if current.is_off:
            return None
        if not state.enabled and active_run() is None:
            if self._run is not None and self._run.disabled:
                return None
            self._run = init(self.name or _name_of(args), dir=self.dir)
        job = current_job()
        if job is None:
            return None
        if job.application is None or not job.application.active:
            calls.start_application()
        if job.config.ask("world_size") is None:
            # The arguments know the number of ranks, however they were started.
            job.world_size = max(job.world_size, int(getattr(args, "world_size", 1)))
        self._describe(args, trainer, model)
        return job

    def _describe(self, args: Any, trainer: Any, model: Any) -> None:
        """Record the arguments and the configuration of the model, once per model."""
        run = active_run()
        if run is None or self._described == (run.id, id(model)):
            return
        self._described = (run.id, id(model))
        record_config(_config_of(args, model))
        run.label(**_labels_of(trainer, model))

    @contextmanager
    def recording_trainer(self, recorder: TrainerRecorder) -> Iterator[None]:
        """Make this the recorder of the running trainer, inside the block."""
        before, self._recorder = self._recorder, recorder
        try:
            yield
        finally:
            self._recorder = before

    def _attach(self) -> TrainerRecorder | None:
        """Return the recorder of the calling trainer, None if another callback records it."""
        trainer = self._calling_trainer()
        before = self._recorder
        if trainer is None:
            # Only the calls of the callback can be recorded then.
            is_same = before is not None and before.trainer is None
            return before if is_same else TrainerRecorder(self)
        recorder = vars(trainer).get(RECORDING) or TrainerRecorder(self, trainer)
        return recorder if recorder.callback is self else None

    def _calling_trainer(self) -> Any:
        # The Trainer does not pass itself, but it is on the call stack.
        frame: FrameType | None = sys._getframe(1)
        for _ in range(DEPTH):
            if frame is None:
                return None
            owner = frame.f_locals.get("self")
            handler = getattr(owner, "callback_handler", None)
            if handler is not None and self in getattr(handler, "callbacks", ()):
                return owner
            frame = frame.f_back
        return None

    # Methods that the Trainer calls

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        try:
            self._attach()
        except Exception as error:
            report(WHERE, error)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        try:
            # Attached already, unless the callback was added later.
            recorder = self._recorder = self._attach()
            if recorder is not None:
                recorder.start_training(args, state, kwargs.get("model"), kwargs.get("optimizer"))
        except Exception as error:
            report(WHERE, error)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recorder is not None:
            self._recorder.training.end(None)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recorder is not None:
            self._recorder.training.start_epoch(int(state.epoch or 0))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recorder is not None:
            self._recorder.training.end_epoch(state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recorder is not None:
            self._recorder.training.start_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recorder is not None:
            self._recorder.training.end_step(state)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recorder is not None:
            self._recorder.training.start_update()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recorder is not None:
            self._recorder.training.end_update(None)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recorder is not None:
            self._recorder.end_prediction(None)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        try:
            recorder = self._recorder
            if recorder is None and current.job is not None:
                # The user logs outside of training.
                recorder = self._attach()
            if recorder is not None:
                recorder.log(state, logs)
        except Exception as error:
            report(WHERE, error)

    def on_predict(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        # The Trainer logs the metrics of an evaluation itself, but not those of a prediction.
        if self._recorder is not None:
            self._recorder.log(state, metrics)


def _name_of(args: Any) -> str:
    """Return ``run_name`` of the arguments, else the name of the script."""
    name = getattr(args, "run_name", None)
    # Some versions set ``run_name`` to the output folder if the user gives none.
    is_given = isinstance(name, str) and name and name != getattr(args, "output_dir", None)
    return str(name) if is_given else script_name()


def _config_of(args: Any, model: Any) -> dict[str, Any]:
    """Return the training arguments and the model configuration, for run.json (which masks tokens)."""
    run_config: dict[str, Any] = {"training_arguments": args.to_dict()}
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        run_config["model_config"] = config.to_dict()
    if hasattr(model, "parameters"):
        size = model_size(model)
        run_config["model_parameters"] = size["parameters"]
        run_config["model_trainable_parameters"] = size["trainable_parameters"]
    return run_config


def _labels_of(trainer: Any, model: Any) -> dict[str, Any]:
    """Return the labels of the run: the classes of trainer and model."""
    labels = {"trainer": "Trainer" if trainer is None else type(trainer).__name__}
    if model is not None:
        labels["model"] = type(model).__name__
    return labels
