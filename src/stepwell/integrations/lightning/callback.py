"""The callback: what Lightning calls, and what users call for all that Lightning does not show."""

from __future__ import annotations

import weakref
from multiprocessing import parent_process
from typing import Any

from stepwell.integrations.lightning.configuration import record_arguments
from stepwell.integrations.lightning.explicit import Told
from stepwell.integrations.lightning.packages import CALLBACK, base_classes, join_packages
from stepwell.integrations.lightning.parts import WHERE
from stepwell.integrations.lightning.recording import Recording
from stepwell.integrations.lightning.saving import Saves
from stepwell.integrations.torch.diagnostics import Choice
from stepwell.journal.errors import report
from stepwell.journal.state import current_lane, state
from stepwell.telemetry.live import Span, find_open
from stepwell.training import calls
from stepwell.training.checkpoints import SPANS, PathLike
from stepwell.training.current import current, current_job
from stepwell.training.provider import TrainingTelemetryProvider
from stepwell.training.standard_spans import WORDS
from stepwell.training.values import CheckPointStrategy
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

UNUSED = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
"""Hooks of every batch that are of no use here. Lightning does not call one that is None."""
RECORDING = "_stepwell_recording"


class TelemetryCallback(*base_classes(CALLBACK)):  # type: ignore[misc]
    """Records a training job of Lightning.

    Give it to a Trainer of ``lightning`` or ``pytorch_lightning`` in ``callbacks=``, or have it given by
    ``hook_trainer_cls``. Making it starts the application, and a run where none is active.

    Args:
        provider: says how it is recorded; that of this process by default.
        call_on_app_start: whether the application starts now; else when ``on_app_start`` is called.
        diagnostics: record gradient norms and learning rates; a ``TelemetryConfig`` for others.
    """

    def __init__(
        self,
        provider: TrainingTelemetryProvider | None = None,
        call_on_app_start: bool = True,
        *,
        diagnostics: Choice = True,
    ) -> None:
        super().__init__()
        self.diagnostics = diagnostics
        self._begin_here()
        if call_on_app_start:
            _start_application(provider)

    def _begin_here(self) -> None:
        """Prepare what belongs to this process."""
        join_packages(TelemetryCallback, CALLBACK)
        self.told = Told()
        self.saves = Saves()
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        bases = base_classes(CALLBACK)
        for name in UNUSED:
            if any(getattr(type(self), name) is getattr(base, name) for base in bases):
                setattr(self, name, None)

    def __getstate__(self) -> dict[str, Any]:
        mine = ("told", "saves", "_models")
        return {name: value for name, value in self.__dict__.items() if name not in mine}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        # For processes that Lightning spawns: there the application starts with the first run.
        self.__dict__.update(kept)
        self._begin_here()

    def is_new_model(self, model: Any) -> bool:
        """Whether this model has not been seen yet; from now on it has."""
        is_new = model not in self._models
        self._models.add(model)
        return is_new

    # What users call

    def on_app_start(self, start_time_msec: float | None = None) -> None:
        """The application starts, unless it has started already."""
        _start_application(None, start_time_msec)

    def on_app_end(self, finish_time_msec: float | None = None) -> None:
        """The application ends; without this, it ends with the process."""
        calls.end_application(finish_time_msec)

    def on_distributed_init_start(self, start_time_msec: float | None = None) -> Span:
        """Setting up communication between ranks starts."""
        return self.told.start(Name.DIST_INIT, start_time_msec)

    def on_distributed_init_end(self, finish_time_msec: float | None = None) -> None:
        """Setting up communication between ranks ends."""
        self.told.end(Name.DIST_INIT, finish_time_msec)

    def on_model_init_start(self, start_time_msec: float | None = None) -> Span:
        """Making the model starts."""
        return self.told.start(Name.MODEL_INIT, start_time_msec)

    def on_model_init_end(self, finish_time_msec: float | None = None) -> None:
        """Making the model ends."""
        self.told.end(Name.MODEL_INIT, finish_time_msec)

    def on_dataloader_init_start(self, start_time_msec: float | None = None) -> Span:
        """Making the data loaders starts."""
        return self.told.start(Name.DATA_LOADER_INIT, start_time_msec)

    def on_dataloader_init_end(self, finish_time_msec: float | None = None) -> None:
        """Making the data loaders ends."""
        self.told.end(Name.DATA_LOADER_INIT, finish_time_msec)

    def on_optimizer_init_start(self, start_time_msec: float | None = None) -> Span:
        """Making the optimizer starts."""
        return self.told.start(Name.OPTIMIZER_INIT, start_time_msec)

    def on_optimizer_init_end(self, finish_time_msec: float | None = None) -> None:
        """Making the optimizer ends."""
        self.told.end(Name.OPTIMIZER_INIT, finish_time_msec)

    def on_load_checkpoint_start(self, start_time_msec: float | None = None) -> Span:
        """Loading a checkpoint starts."""
        return self.told.start(Name.CHECKPOINT_LOAD, start_time_msec)

    def on_load_checkpoint_end(self, finish_time_msec: float | None = None) -> None:
        """Loading a checkpoint ends."""
        self.told.end(Name.CHECKPOINT_LOAD, finish_time_msec)
        # Lightning may load another one by itself.
        self.told.drop(Name.CHECKPOINT_LOAD)

    def on_testing_start(self, start_time_msec: float | None = None) -> Span | None:
        """A testing loop starts, unless one is under way."""
        job = current_job()
        if job is not None and job.testing.span is not None:
            return job.testing.span
        return calls.start_evaluation("testing", start_time_msec)

    def on_testing_end(self, finish_time_msec: float | None = None) -> None:
        """The testing loop ends, unless it has ended by itself."""
        job = current_job()
        if job is not None and job.testing.span is not None:
            calls.end_evaluation("testing", finish_time_msec)

    def on_save_checkpoint_start(
        self,
        global_step: int,
        start_time_msec: float | None = None,
        *,
        path: PathLike | None = None,
        strategy: CheckPointStrategy | str | None = None,
    ) -> Span:
        """Saving the checkpoint of this step starts, by other means than the trainer's."""
        return calls.start_save(global_step, start_time_msec, path, strategy)

    def on_save_checkpoint_success(
        self, global_step: int, time_msec: float | None = None, *, path: PathLike | None = None
    ) -> None:
        """The checkpoint of this step is complete; of those that the trainer saves this is known."""
        if not self._is_known(global_step):
            calls.succeed(global_step, time_msec, path)

    def on_save_checkpoint_failure(
        self,
        global_step: int,
        error: BaseException | str | None = None,
        time_msec: float | None = None,
    ) -> None:
        """The checkpoint of this step could not be saved."""
        if not self._is_known(global_step):
            calls.fail(global_step, error, time_msec)

    def on_save_checkpoint_end(self, finish_time_msec: float | None = None) -> None:
        """Training goes on after a save."""
        is_open = any(find_open(WORDS[name]) for name in SPANS.values())
        if is_open or not self.saves.has_seen_any:
            calls.end_save(finish_time_msec)

    def _is_known(self, step: Any) -> bool:
        """Whether a save was recorded by itself, and what became of it too."""
        job = current_job()
        return (
            job is not None and self.saves.has_seen(step) and not job.checkpoints.is_pending(step)
        )

    # Runs of a trainer

    def begin(self, trainer: Any) -> Recording | None:
        """A trainer begins to run; None when it is recorded already, or nothing is."""
        try:
            if _recording_of(trainer) is not None or current.is_off:
                return None
            has_started = _start_application(None)
            if current_job() is None:
                return None
            recording = Recording(trainer, self)
            # A process that Lightning has made for this run ends with it, and without further notice.
            recording.is_application = has_started and parent_process() is not None
            vars(trainer)[RECORDING] = recording
            return recording
        except Exception as error:
            report(WHERE, error)
            return None

    def end(self, trainer: Any, error: BaseException | None = None) -> None:
        """It has ended."""
        recording = vars(trainer).get(RECORDING)
        if recording is None or recording.callback is not self:
            return
        try:
            recording.end(error)
            if recording.is_application:
                calls.end_application(None, error)
        except Exception as problem:
            report(WHERE, problem)
        finally:
            del vars(trainer)[RECORDING]

    def save(self, trainer: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint as ``original`` does, and record it."""
        recording = self._mine(trainer)
        if recording is not None:
            # A checkpoint at the end of a validation is no part of it.
            recording.evaluations.finish()
        return self.saves.save(trainer, original, *args, **kwargs)

    # What Lightning calls

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        recording = self.begin(trainer)
        if recording is not None:
            recording.wrap_save()
        if self._mine(trainer) is not None:
            record_arguments(trainer, pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        recording = _recording_of(trainer)
        if recording is not None and not recording.is_hooked:
            self.end(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.end(trainer, exception)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        recording = self._mine(trainer)
        try:
            if recording is not None:
                recording.training.start()
        except Exception as error:
            report(WHERE, error)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        recording = self._mine(trainer)
        if recording is not None:
            recording.training.start_epoch()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        recording = self._mine(trainer)
        if recording is not None:
            recording.evaluations.end("validation")

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        recording = self._mine(trainer)
        if recording is not None:
            recording.evaluations.start_iteration("validation")

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        recording = self._mine(trainer)
        if recording is not None:
            recording.evaluations.end_iteration("validation")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        recording = self._mine(trainer)
        if recording is not None:
            recording.evaluations.end("testing")

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        recording = self._mine(trainer)
        if recording is not None:
            recording.evaluations.start_iteration("testing")

    def on_test_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        recording = self._mine(trainer)
        if recording is not None:
            recording.evaluations.end_iteration("testing")

    def _mine(self, trainer: Any) -> Recording | None:
        """What this callback records of the trainer; None where another one does, or nobody."""
        recording = _recording_of(trainer)
        return recording if recording is not None and recording.callback is self else None


def _recording_of(trainer: Any) -> Recording | None:
    found: Recording | None = vars(trainer).get(RECORDING)
    return found


def _start_application(
    provider: TrainingTelemetryProvider | None, msec: float | None = None
) -> bool:
    """Start the application unless it runs, in a new run where none is active; whether it started."""
    if current.is_off:
        return False
    if not state.enabled:
        (provider or TrainingTelemetryProvider.instance()).configure()
    # In a child process what is recorded first opens the journal, and with that the job begins.
    current_lane()
    job = current_job()
    if job is None or (job.application is not None and job.application.active):
        return False
    calls.start_application(msec)
    return True
