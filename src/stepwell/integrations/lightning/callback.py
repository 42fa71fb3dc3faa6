"""``TelemetryCallback``: hooks that Lightning calls, and methods for phases that it does not show."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import Any

from stepwell._core.errors import report
from stepwell.integrations.lightning.configuration import record_arguments
from stepwell.integrations.lightning.packages import (
    CALLBACK,
    WHERE,
    base_classes,
    join_packages,
)
from stepwell.integrations.lightning.recorder import LightningRecorder
from stepwell.integrations.lightning.saves import Saves
from stepwell.integrations.torch.diagnostics import DiagnosticsOption
from stepwell.integrations.wrappers import is_saving, recorded_span
from stepwell.journal.state import current_lane, state
from stepwell.telemetry.span_handle import NO_SPAN, Span, find_open
from stepwell.training import callbacks, calls
from stepwell.training.calls import current, current_job
from stepwell.training.checkpoints import PathLike
from stepwell.training.config import CheckPointStrategy
from stepwell.training.provider import TrainingTelemetryProvider
from stepwell.training.standard_spans import WORDS
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

UNUSED = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
"""Hooks of every batch that are not needed. Lightning skips hooks that are None."""
RECORDING = "_stepwell_recording"


def _phase(name: str, span: Name) -> tuple[Callable[..., Span], Callable[..., None]]:
    """Return the methods with which users start and end a setup phase, like those in ``callbacks``."""

    def start(self: TelemetryCallback, start_time_msec: float | None = None) -> Span:
        return self.declared.start(span, start_time_msec)

    def end(self: TelemetryCallback, finish_time_msec: float | None = None) -> None:
        self.declared.end(span, finish_time_msec)

    for method, moment in ((start, "start"), (end, "end")):
        _name(method, f"on_{name}_{moment}")
        method.__doc__ = getattr(callbacks, method.__name__).__doc__
    return start, end


def _name(method: Callable[..., Any], name: str) -> None:
    """Set the name that ``help`` shows, and by which ``inspect`` finds the docstring of the base class."""
    method.__name__ = name
    method.__qualname__ = f"TelemetryCallback.{name}"


def _evaluation(part: calls.EvaluationKind, name: str) -> tuple[Callable[..., None], ...]:
    """Return the hooks that Lightning calls when a batch begins and ends, and when the loop ends."""

    def batch_start(
        self: TelemetryCallback,
        trainer: Any,
        pl_module: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        recording = self._mine(trainer)
        if recording is not None:
            recording.evaluations.start_iteration(part)

    def batch_end(
        self: TelemetryCallback,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        recording = self._mine(trainer)
        if recording is not None:
            recording.evaluations.end_iteration(part)

    def end(self: TelemetryCallback, trainer: Any, pl_module: Any) -> None:
        recording = self._mine(trainer)
        if recording is not None:
            recording.evaluations.end(part)

    _name(batch_start, f"on_{name}_batch_start")
    _name(batch_end, f"on_{name}_batch_end")
    _name(end, f"on_{name}_end")
    return batch_start, batch_end, end


class TelemetryCallback(*base_classes(CALLBACK)):  # type: ignore[misc]
    """Records a training job of Lightning.

    Pass it to a Trainer of ``lightning`` or ``pytorch_lightning`` in ``callbacks=``, or use
    ``hook_trainer_cls``. Creating it starts the application, and a run if none is active.

    Args:
        provider: the provider to use. Default: that of this process.
        call_on_app_start: start the application now; otherwise when ``on_app_start`` is called.
        diagnostics: record gradient norms and learning rates; a ``TelemetryConfig`` for other diagnostics.
    """

    def __init__(
        self,
        provider: TrainingTelemetryProvider | None = None,
        call_on_app_start: bool = True,
        *,
        diagnostics: DiagnosticsOption = True,
    ) -> None:
        super().__init__()
        self.diagnostics = diagnostics
        self._begin_here()
        if call_on_app_start:
            _start_application(provider)

    def _begin_here(self) -> None:
        """Create the state that belongs to this process."""
        join_packages(TelemetryCallback, CALLBACK)
        self.declared = DeclaredPhases()
        self.saves = Saves()
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        bases = base_classes(CALLBACK)
        for name in UNUSED:
            if any(getattr(type(self), name) is getattr(base, name) for base in bases):
                setattr(self, name, None)

    def __getstate__(self) -> dict[str, Any]:
        mine = ("declared", "saves", "_models")
        return {name: value for name, value in self.__dict__.items() if name not in mine}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        # In processes that Lightning spawns, the application starts with the first run.
        self.__dict__.update(kept)
        self._begin_here()

    def is_new_model(self, model: Any) -> bool:
        """Return whether this is the first call with this model."""
        is_new = model not in self._models
        self._models.add(model)
        return is_new

    # Methods that users call

    def on_app_start(self, start_time_msec: float | None = None) -> None:
        """Start the application, unless it has started already."""
        _start_application(None, start_time_msec)

    def on_app_end(self, finish_time_msec: float | None = None) -> None:
        """End the application. Without this call, it ends with the process."""
        calls.end_application(finish_time_msec)

    on_distributed_init_start, on_distributed_init_end = _phase("distributed_init", Name.DIST_INIT)
    on_model_init_start, on_model_init_end = _phase("model_init", Name.MODEL_INIT)
    on_dataloader_init_start, on_dataloader_init_end = _phase(
        "dataloader_init", Name.DATA_LOADER_INIT
    )
    on_optimizer_init_start, on_optimizer_init_end = _phase("optimizer_init", Name.OPTIMIZER_INIT)

    def on_load_checkpoint_start(self, start_time_msec: float | None = None) -> Span:
        """Start loading a checkpoint."""
        return self.declared.start(Name.CHECKPOINT_LOAD, start_time_msec)

    def on_load_checkpoint_end(self, finish_time_msec: float | None = None) -> None:
        """End loading a checkpoint."""
        self.declared.end(Name.CHECKPOINT_LOAD, finish_time_msec)
        # Lightning may load another checkpoint by itself, which is recorded.
        self.declared.drop(Name.CHECKPOINT_LOAD)

    def on_testing_start(self, start_time_msec: float | None = None) -> Span | None:
        """Start a testing loop, unless one is running."""
        job = current_job()
        if job is not None and job.testing.span is not None:
            return job.testing.span
        return calls.start_evaluation("testing", start_time_msec)

    def on_testing_end(self, finish_time_msec: float | None = None) -> None:
        """End the testing loop, unless it has ended by itself."""
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
        """Start saving the checkpoint of this step, by other means than the trainer."""
        return calls.start_save(global_step, start_time_msec, path, strategy)

    def on_save_checkpoint_success(
        self, global_step: int, time_msec: float | None = None, *, path: PathLike | None = None
    ) -> None:
        """Report that the checkpoint of this step is complete. Ignored for saves by the trainer."""
        if not self._is_recorded(global_step):
            calls.succeed(global_step, time_msec, path)

    def on_save_checkpoint_failure(
        self,
        global_step: int,
        error: BaseException | str | None = None,
        time_msec: float | None = None,
    ) -> None:
        """Report that the checkpoint of this step could not be saved."""
        if not self._is_recorded(global_step):
            calls.fail(global_step, error, time_msec)

    def on_save_checkpoint_end(self, finish_time_msec: float | None = None) -> None:
        """End a save: training continues."""
        if is_saving() or not self.saves.has_seen_any:
            calls.end_save(finish_time_msec)

    def _is_recorded(self, step: Any) -> bool:
        """Return whether a save and its outcome were recorded automatically."""
        job = current_job()
        return (
            job is not None and self.saves.has_seen(step) and not job.checkpoints.is_pending(step)
        )

    # Runs of a trainer

    def begin(self, trainer: Any) -> LightningRecorder | None:
        """Begin a run of a trainer. Return its recorder; None if it has one already, or recording is off."""
        try:
            if _recording_of(trainer) is not None or current.is_off:
                return None
            has_started = _start_application(None)
            if current_job() is None:
                return None
            recording = LightningRecorder(trainer, self)
            # A process that Lightning created for this run ends with it, without further calls.
            recording.is_application = has_started and parent_process() is not None
            vars(trainer)[RECORDING] = recording
            return recording
        except Exception as error:
            report(WHERE, error)
            return None

    def end(self, trainer: Any, error: BaseException | None = None) -> None:
        """End a run of a trainer."""
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
        """Call ``original`` to save a checkpoint, and record it."""
        recording = self._mine(trainer)
        if recording is not None:
            # A checkpoint at the end of a validation is not part of it.
            recording.evaluations.finish()
        return self.saves.save(trainer, original, *args, **kwargs)

    # Hooks that Lightning calls

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

    on_validation_batch_start, on_validation_batch_end, on_validation_end = _evaluation(
        "validation", "validation"
    )
    on_test_batch_start, on_test_batch_end, on_test_end = _evaluation("testing", "test")

    def _mine(self, trainer: Any) -> LightningRecorder | None:
        """Return the recorder of a trainer, None if this callback does not record it."""
        recording = _recording_of(trainer)
        return recording if recording is not None and recording.callback is self else None


def _recording_of(trainer: Any) -> LightningRecorder | None:
    recorder: LightningRecorder | None = vars(trainer).get(RECORDING)
    return recorder


def _start_application(
    provider: TrainingTelemetryProvider | None, msec: float | None = None
) -> bool:
    """Start the application, and a run if none is active. Return False if the application was running."""
    if current.is_off:
        return False
    if not state.enabled:
        (provider or TrainingTelemetryProvider.instance()).configure()
    # In a child process, the first record opens the journal, which starts the job.
    current_lane()
    job = current_job()
    if job is None or (job.application is not None and job.application.active):
        return False
    calls.start_application(msec)
    return True


class DeclaredPhases:
    """Setup phases that the user records by calling ``on_…_start`` and ``on_…_end``.

    A phase that the user declared before a run of the trainer is not recorded again in that run. A call of
    the user while the phase is recorded automatically refers to that record.
    """

    def __init__(self) -> None:
        self._declared: set[Name] = set()
        self._recorded: dict[Name, Span] = {}

    def start(self, name: Name, msec: float | None = None) -> Span:
        """Start a phase, called by the user."""
        self._declared.add(name)
        span = self._recorded.get(name, NO_SPAN)
        return span if span.active else calls.start(name, msec)

    def end(self, name: Name, msec: float | None = None) -> None:
        """End a phase, called by the user."""
        span = self._recorded.get(name)
        if span is None or find_open(WORDS[name]) not in (None, span):
            calls.end(name, msec)

    def is_declared(self, name: Name) -> bool:
        """Return whether the user declared a phase since the last run of the trainer, or has it open."""
        return name in self._declared or find_open(WORDS[name]) is not None

    @contextmanager
    def record(self, name: Name, **attributes: Any) -> Iterator[None]:
        """Record a phase automatically, unless the user declared it."""
        if self.is_declared(name):
            yield
            return
        with recorded_span(name, **attributes) as span:
            self._recorded[name] = span
            yield

    def note(self, name: Name) -> None:
        """Treat a phase as declared."""
        self._declared.add(name)

    def drop(self, name: Name) -> None:
        """Treat a phase as not declared: the next one is another phase."""
        self._declared.discard(name)

    def forget(self) -> None:
        """Reset after a run of the trainer."""
        self._declared.clear()
        self._recorded.clear()
