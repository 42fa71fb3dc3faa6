"""The current job, and guarded calls of it for callbacks and context managers.

Each function calls the method of the current job, and does nothing without a job. Problems are reported
here and never raised into training (except in strict mode).
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Concatenate, Literal, ParamSpec, TypeVar

from stepwell._core.errors import StepwellError, report, report_misuse
from stepwell.journal.state import state
from stepwell.telemetry.run import active_run
from stepwell.telemetry.span_handle import NO_SPAN, Span, end_listeners
from stepwell.training.checkpoints import PathLike
from stepwell.training.evaluation import Evaluation
from stepwell.training.job import PHASES, TrainingJob
from stepwell.training.resolved_config import ResolvedConfig
from stepwell.training.standard_spans import WORDS
from stepwell.training.training_loop import Count, TrainingLoop
from stepwell.training.values import CheckPointStrategy
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

P = ParamSpec("P")
T = TypeVar("T")
EvaluationKind = Literal["validation", "testing"]
FLUSH_TIMEOUT = 5.0
"""Seconds that the end of the application waits for exporters. The end of the run waits for the rest."""


def _with_job(
    otherwise: T, *, alone: bool = False
) -> Callable[[Callable[Concatenate[TrainingJob, P], T]], Callable[P, T]]:
    """Pass the current job to a function. Without a job, or if it fails, the result is ``otherwise``.

    ``alone`` holds the lock of the job during the call: for rare calls that change its open loops.
    """

    def decorate(function: Callable[Concatenate[TrainingJob, P], T]) -> Callable[P, T]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                job = current.job or current_job()
                if job is None:
                    return otherwise
                if alone:
                    with job.lock:
                        return function(job, *args, **kwargs)
                return function(job, *args, **kwargs)
            except StepwellError as error:
                report_misuse(function.__name__, str(error))
            except Exception as error:
                report(f"training {function.__name__}", error)
            return otherwise

        return guarded

    return decorate


@_with_job(NO_SPAN, alone=True)
def start_application(job: TrainingJob, msec: float | None = None) -> Span:
    """Start the application."""
    return job.start_application(msec)


@_with_job(None)
def end_application(
    job: TrainingJob, msec: float | None = None, error: BaseException | None = None
) -> None:
    """End the application."""
    with job.lock:
        job.end_application(msec, error)
    _flush(job)


@_with_job(NO_SPAN, alone=True)
def enter_application(job: TrainingJob) -> Span:
    """Start an application block."""
    return job.enter_application()


@_with_job(None)
def leave_application(job: TrainingJob, error: BaseException | None) -> None:
    """End an application block; the outermost one ends the application."""
    with job.lock:
        job.leave_application(error)
    _flush(job)


def _flush(job: TrainingJob) -> None:
    # The files of exporters are complete from here on.
    application = job.application
    run = job.run
    if run is None or application is None or application.active:
        return
    if run.exporters:
        from stepwell.telemetry.deliveries import finish_timeout

        run.flush(min(FLUSH_TIMEOUT, finish_timeout()))
    else:
        run.flush()


@_with_job(NO_SPAN)
def start(job: TrainingJob, name: Name, msec: float | None = None) -> Span:
    """Start a simple span."""
    return job.start(name, msec)


@_with_job(None)
def end(
    job: TrainingJob, name: Name, msec: float | None = None, error: BaseException | None = None
) -> None:
    """End a simple span."""
    job.end(name, msec, error)


@_with_job(NO_SPAN, alone=True)
def start_training(
    job: TrainingJob,
    iterations: int = 0,
    samples: int | None = None,
    iterations_target: Count | None = None,
    samples_target: Count | None = None,
    msec: float | None = None,
) -> Span:
    """Start a training loop."""
    return job.start_training(iterations, samples, iterations_target, samples_target, msec)


@_with_job(None, alone=True)
def end_training(
    job: TrainingJob, msec: float | None = None, error: BaseException | None = None
) -> None:
    """End the training loop."""
    job.end_training(msec, error)


@_with_job(NO_SPAN)
def start_iteration(job: TrainingJob, msec: float | None = None) -> Span:
    """Start a training iteration."""
    return job.start_iteration(msec)


@_with_job(None)
def end_iteration(
    job: TrainingJob,
    samples: int | None = None,
    tokens: int | None = None,
    optimizer_step: bool = True,
    error: BaseException | None = None,
    msec: float | None = None,
) -> None:
    """End the training iteration."""
    job.end_iteration(samples, tokens, optimizer_step, error, msec)


@_with_job(None)
def skip_iteration(job: TrainingJob) -> None:
    """End the training iteration without counting it."""
    if job.loop is not None:
        job.loop.skip()


@_with_job(None, alone=True)
def close_since(job: TrainingJob, start: int, error: BaseException | None = None) -> None:
    """End all spans that this thread has opened since ``start``."""
    job.close_since(start, error)


@_with_job(NO_SPAN, alone=True)
def start_evaluation(job: TrainingJob, part: EvaluationKind, msec: float | None = None) -> Span:
    """Start a validation or testing loop."""
    return _part(job, part).start(msec)


@_with_job(None, alone=True)
def end_evaluation(
    job: TrainingJob,
    part: EvaluationKind,
    msec: float | None = None,
    error: BaseException | None = None,
) -> None:
    """End the validation or testing loop."""
    _part(job, part).end(msec, error)


@_with_job(NO_SPAN)
def start_evaluation_iteration(
    job: TrainingJob, part: EvaluationKind, msec: float | None = None
) -> Span:
    """Start an iteration of the validation or testing loop."""
    return _part(job, part).start_iteration(msec)


@_with_job(None)
def end_evaluation_iteration(
    job: TrainingJob,
    part: EvaluationKind,
    msec: float | None = None,
    error: BaseException | None = None,
) -> None:
    """End an iteration of the validation or testing loop."""
    _part(job, part).end_iteration(msec, error)


def _part(job: TrainingJob, part: EvaluationKind) -> Evaluation:
    return job.validation if part == "validation" else job.testing


@_with_job(NO_SPAN, alone=True)
def start_save(
    job: TrainingJob,
    step: int,
    msec: float | None = None,
    path: PathLike | None = None,
    strategy: CheckPointStrategy | str | None = None,
) -> Span:
    """Start saving a checkpoint."""
    return job.checkpoints.start(step, msec, path, strategy)


@_with_job(None, alone=True)
def end_save(
    job: TrainingJob,
    msec: float | None = None,
    error: BaseException | None = None,
    span: Span | None = None,
) -> None:
    """End the save of this span, else that of this thread."""
    job.checkpoints.end(msec, error, span)


@_with_job(None, alone=True)
def conclude_save(job: TrainingJob, error: BaseException | None) -> None:
    """End the save of this thread, and record its outcome if it is known."""
    job.checkpoints.conclude(error)


@_with_job(None, alone=True)
def succeed(
    job: TrainingJob, step: int, msec: float | None = None, path: PathLike | None = None
) -> None:
    """Record that a checkpoint is complete."""
    job.checkpoints.succeed(step, msec, path)


@_with_job(None, alone=True)
def fail(
    job: TrainingJob,
    step: int,
    error: BaseException | str | None = None,
    msec: float | None = None,
) -> None:
    """Record that a checkpoint could not be saved."""
    job.checkpoints.fail(step, error, msec)


@_with_job(None, alone=True)
def settle_save(
    job: TrainingJob,
    span: Span,
    error: BaseException | None = None,
    path: PathLike | None = None,
) -> None:
    """Record the success or failure of a background save that began with this span."""
    job.checkpoints.settle(span, error, path)


# The current job

Switch = Callable[[bool, TrainingLoop | None], None]
"""Called with whether training is recorded, and with the open training loop."""


class Current:
    """The current job of this process.

    Attributes:
        job: the job, None if there is none yet.
        config: the configuration of the next job.
        is_off: whether this rank does not record training.
    """

    def __init__(self) -> None:
        self.job: TrainingJob | None = None
        self.config = ResolvedConfig()
        self.is_off = False
        self.lock = threading.RLock()
        self._switches: list[Switch] = []

    def add_switch(self, switch: Switch) -> None:
        """Call a function now, and whenever recording is switched or a loop begins or ends."""
        self._switches.append(switch)
        switch(state.enabled and not self.is_off, None)

    def switch_off(self, is_off: bool) -> None:
        """Set whether this rank does not record training."""
        if is_off != self.is_off:
            self.is_off = is_off
            self._switch(state.enabled)

    def _switch(self, enabled: bool) -> None:
        # Another run begins, or none is active: the job belongs to the previous one.
        self.job = None
        self._notify(enabled, None)

    def _notify(self, enabled: bool, loop: TrainingLoop | None) -> None:
        for switch in self._switches:
            switch(enabled and not self.is_off, loop)

    def note_loop(self, loop: TrainingLoop | None) -> None:
        """Notify the switches that a training loop begins, or (None) has ended."""
        self._notify(state.enabled, loop)

    def after_fork(self) -> None:
        """Reset in a forked child, which records its own spans but is not in the loops of its parent."""
        # Another thread of the parent may have held the lock.
        self.lock = threading.RLock()
        if self.job is not None:
            self.job = TrainingJob(self.config, None, self.note_loop)
            self.note_loop(None)


current = Current()
state.switches.append(current._switch)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=current.after_fork)


def _count_phase(attribute: str, span: Span) -> None:
    if current.job is not None:
        current.job.count_phase(attribute, span)


for _name, _attribute in PHASES.items():
    end_listeners[WORDS[_name]] = partial(_count_phase, _attribute)


def current_job() -> TrainingJob | None:
    """Return the job of the active run, None if nothing is recorded."""
    if current.job is None and state.enabled and not current.is_off:
        # Two threads may get here at the same time: both must get the same job.
        with current.lock:
            if current.job is None:
                current.job = _new_job()
    return current.job


def _new_job() -> TrainingJob:
    run = active_run()
    job = TrainingJob(current.config, run, current.note_loop)
    if run is not None:
        run.before_finish(job.close)
    return job
