"""The current job, and guarded calls of it for callbacks and context managers.

Each function calls a method of the current job, with the same arguments, and does nothing without a job.
Problems are reported here and never raised into training (except in strict mode).
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
from stepwell.training.checkpoints import Checkpoints
from stepwell.training.evaluation import Evaluation
from stepwell.training.job import PHASES, TrainingJob
from stepwell.training.resolved_config import ResolvedConfig
from stepwell.training.standard_spans import WORDS
from stepwell.training.training_loop import TrainingLoop

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


def _of_checkpoints(
    method: Callable[Concatenate[Checkpoints, P], T],
) -> Callable[Concatenate[TrainingJob, P], T]:
    """Return a function that calls this method of the job's checkpoints."""

    @functools.wraps(method)
    def call(job: TrainingJob, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(job.checkpoints, *args, **kwargs)

    call.__name__ = f"checkpoint {method.__name__}"
    return call


# The application

start_application = _with_job(NO_SPAN, alone=True)(TrainingJob.start_application)
enter_application = _with_job(NO_SPAN, alone=True)(TrainingJob.enter_application)


@_with_job(None)
def end_application(
    job: TrainingJob, msec: float | None = None, error: BaseException | None = None
) -> None:
    """End the application."""
    with job.lock:
        job.end_application(msec, error)
    _flush(job)


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


# Spans

start = _with_job(NO_SPAN)(TrainingJob.start)
end = _with_job(None)(TrainingJob.end)
close_since = _with_job(None, alone=True)(TrainingJob.close_since)

start_training = _with_job(NO_SPAN, alone=True)(TrainingJob.start_training)
end_training = _with_job(None, alone=True)(TrainingJob.end_training)
start_iteration = _with_job(NO_SPAN)(TrainingJob.start_iteration)
end_iteration = _with_job(None)(TrainingJob.end_iteration)


@_with_job(None)
def skip_iteration(job: TrainingJob) -> None:
    """End the training iteration without counting it."""
    if job.loop is not None:
        job.loop.skip()


def _part(job: TrainingJob, part: EvaluationKind) -> Evaluation:
    return job.validation if part == "validation" else job.testing


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


start_save = _with_job(NO_SPAN, alone=True)(_of_checkpoints(Checkpoints.start))
end_save = _with_job(None, alone=True)(_of_checkpoints(Checkpoints.end))
conclude_save = _with_job(None, alone=True)(_of_checkpoints(Checkpoints.conclude))
settle_save = _with_job(None, alone=True)(_of_checkpoints(Checkpoints.settle))
succeed = _with_job(None, alone=True)(_of_checkpoints(Checkpoints.succeed))
fail = _with_job(None, alone=True)(_of_checkpoints(Checkpoints.fail))


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
        current.job.count_time(attribute, span.end - span.start)


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
