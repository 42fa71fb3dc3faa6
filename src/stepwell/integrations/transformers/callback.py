"""The callback: what the Trainer calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformers.trainer_callback import TrainerCallback

from stepwell.integrations.configuration import record_config
from stepwell.integrations.torch.diagnostics import Choice
from stepwell.integrations.transformers.describing import config_of, labels_of, name_of
from stepwell.integrations.transformers.recording import RECORDING, Recording
from stepwell.integrations.transformers.training import WHERE
from stepwell.journal.errors import report
from stepwell.journal.state import state
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.start import init
from stepwell.training import calls
from stepwell.training.current import current, current_job
from stepwell.training.job import TrainingJob

DEPTH = 12
"""So many callers up the trainer is looked for."""


class StepwellCallback(TrainerCallback):  # type: ignore[misc]
    """Records a training job of a Trainer; give it in ``callbacks=[StepwellCallback()]``.

    A run is started when none is active: when training, evaluation or prediction begins. It goes on until
    ``finish()``, or the end of the process, so that ``train()``, ``evaluate()`` and ``predict()`` are in one.
    A run that was active before is left as it is.

    Args:
        name: what the run is called; else ``run_name`` of the arguments, else the script.
        dir: where run folders are; else ``STEPWELL_DIR``, else ``./runs``.
        diagnostics: record gradient norms and learning rates; a ``TelemetryConfig`` for others.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        dir: str | os.PathLike[str] | None = None,
        diagnostics: Choice = True,
    ) -> None:
        self.name = name
        self.dir = dir
        self.diagnostics = diagnostics
        self._run: Run | None = None
        # Of the trainer that is at work; no longer, for it would be kept in memory.
        self._recording: Recording | None = None
        self._described: tuple[str, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # In another process there is another run.
        return {**self.__dict__, "_run": None, "_recording": None, "_described": None}

    @property
    def run(self) -> Run | None:
        """The run that is recorded into, None when there is none."""
        return active_run()

    def finish(self, status: str = "finished") -> None:
        """Finish the run, if this callback has started it."""
        run, self._run = self._run, None
        if run is not None:
            run.finish(status)

    # Where it is

    def start(self, args: Any, trainer: Any, model: Any) -> TrainingJob | None:
        """The job to record into, with its application running; None when nothing is recorded."""
        if current.is_off:
            return None
        if not state.enabled and active_run() is None:
            if self._run is not None and self._run.disabled:
                return None
            self._run = init(self.name or name_of(args), dir=self.dir)
        job = current_job()
        if job is None:
            return None
        if job.application is None or not job.application.active:
            calls.start_application()
        if job.ask("world_size") is None:
            # It knows how many ranks there are, whoever has started them.
            job.world_size = max(job.world_size, int(getattr(args, "world_size", 1)))
        self._describe(args, trainer, model)
        return job

    def _describe(self, args: Any, trainer: Any, model: Any) -> None:
        """Keep the arguments and the configuration of the model with the run, once for each model."""
        run = active_run()
        if run is None or self._described == (run.id, id(model)):
            return
        self._described = (run.id, id(model))
        record_config(config_of(args, model))
        run.label(**labels_of(trainer, model))

    @contextmanager
    def at_work(self, recording: Recording) -> Iterator[None]:
        """In here it is this trainer that calls."""
        before, self._recording = self._recording, recording
        try:
            yield
        finally:
            self._recording = before

    def _attach(self) -> Recording | None:
        """What is recorded of the trainer that is calling; None where another callback does that."""
        trainer = self._calling_trainer()
        known = self._recording
        if trainer is None:
            # Then only what it calls by itself is seen.
            recording = known if known is not None and known.trainer is None else Recording(self)
        else:
            recording = vars(trainer).get(RECORDING) or Recording(self, trainer)
            if recording.callback is not self:
                return None
        return recording

    def _calling_trainer(self) -> Any:
        # A callback is not told whose it is, but only a trainer calls it.
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

    # What the Trainer calls

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        try:
            self._attach()
        except Exception as error:
            report(WHERE, error)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        try:
            # It is known already, unless the callback was added later.
            recording = self._recording = self._attach()
            if recording is not None:
                recording.start_training(args, state, kwargs.get("model"), kwargs.get("optimizer"))
        except Exception as error:
            report(WHERE, error)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recording is not None:
            self._recording.training.end(None)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recording is not None:
            self._recording.training.start_epoch(int(state.epoch or 0))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recording is not None:
            self._recording.training.end_epoch(state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recording is not None:
            self._recording.training.start_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recording is not None:
            self._recording.training.end_step(state)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recording is not None:
            self._recording.training.start_update()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recording is not None:
            self._recording.training.end_update(None)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._recording is not None:
            self._recording.end_prediction(None)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        try:
            recording = self._recording
            if recording is None and current.job is not None:
                # A user logs when nothing is under way.
                recording = self._attach()
            if recording is not None:
                recording.log(state, logs)
        except Exception as error:
            report(WHERE, error)

    def on_predict(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        # The Trainer logs those of an evaluation itself.
        if self._recording is not None:
            self._recording.log(state, metrics)
