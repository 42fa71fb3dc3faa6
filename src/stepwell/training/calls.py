"""What callbacks and context managers call: the current job, behind the one boundary for problems.

Each finds the job of the active run and calls the method of that name. Without a job nothing happens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, Literal, ParamSpec, TypeVar

from stepwell.journal.errors import StepwellError, misuse, report
from stepwell.telemetry.live import NO_SPAN, Span
from stepwell.training.checkpoints import PathLike
from stepwell.training.current import current, current_job
from stepwell.training.evaluation import Evaluation
from stepwell.training.job import TrainingJob
from stepwell.training.training_loop import Count
from stepwell.training.values import CheckPointStrategy
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

P = ParamSpec("P")
T = TypeVar("T")
Part = Literal["validation", "testing"]
FLUSH_TIMEOUT = 5.0
"""Seconds that the end of the application waits for exporters; the end of the run waits for the rest."""


def _with_job(
    otherwise: T, *, alone: bool = False
) -> Callable[[Callable[Concatenate[TrainingJob, P], T]], Callable[P, T]]:
    """Give a function the current job; what it gives without one, or when it fails, is ``otherwise``.

    ``alone`` keeps other threads out meanwhile: for what is rare and changes what the job is inside of.
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
                misuse(function.__name__, str(error))
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
    """Start the application as a block of code."""
    return job.enter_application()


@_with_job(None)
def leave_application(job: TrainingJob, error: BaseException | None) -> None:
    """End the application, if this is the outermost such block."""
    with job.lock:
        job.leave_application(error)
    _flush(job)


def _flush(job: TrainingJob) -> None:
    # Whoever looks at the files of an exporter now is to find them complete.
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
    """Start one of the spans without further meaning."""
    return job.start(name, msec)


@_with_job(None)
def end(
    job: TrainingJob, name: Name, msec: float | None = None, error: BaseException | None = None
) -> None:
    """End one of the spans without further meaning."""
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
    """End all that this thread has opened since then and that is still open."""
    job.close_since(start, error)


@_with_job(NO_SPAN, alone=True)
def start_evaluation(job: TrainingJob, part: Part, msec: float | None = None) -> Span:
    """Start a validation or testing loop."""
    return _part(job, part).start(msec)


@_with_job(None, alone=True)
def end_evaluation(
    job: TrainingJob, part: Part, msec: float | None = None, error: BaseException | None = None
) -> None:
    """End the validation or testing loop."""
    _part(job, part).end(msec, error)


@_with_job(NO_SPAN)
def start_evaluation_iteration(job: TrainingJob, part: Part, msec: float | None = None) -> Span:
    """Start one of its iterations."""
    return _part(job, part).start_iteration(msec)


@_with_job(None)
def end_evaluation_iteration(
    job: TrainingJob, part: Part, msec: float | None = None, error: BaseException | None = None
) -> None:
    """End one of its iterations."""
    _part(job, part).end_iteration(msec, error)


def _part(job: TrainingJob, part: Part) -> Evaluation:
    return job.validation if part == "validation" else job.testing


@_with_job(NO_SPAN, alone=True)
def start_save(
    job: TrainingJob,
    step: int,
    msec: float | None = None,
    path: PathLike | None = None,
    strategy: CheckPointStrategy | str | None = None,
) -> Span:
    """Start to save a checkpoint."""
    return job.checkpoints.start(step, msec, path, strategy)


@_with_job(None, alone=True)
def end_save(
    job: TrainingJob,
    msec: float | None = None,
    error: BaseException | None = None,
    span: Span | None = None,
) -> None:
    """End the save: that of this span, else the one that this thread is in."""
    job.checkpoints.end(msec, error, span)


@_with_job(None, alone=True)
def conclude_save(job: TrainingJob, error: BaseException | None) -> None:
    """End the save that this thread is in, and say what became of it if that is known by now."""
    job.checkpoints.conclude(error)


@_with_job(None, alone=True)
def succeed(
    job: TrainingJob, step: int, msec: float | None = None, path: PathLike | None = None
) -> None:
    """A checkpoint is complete."""
    job.checkpoints.succeed(step, msec, path)


@_with_job(None, alone=True)
def fail(
    job: TrainingJob,
    step: int,
    error: BaseException | str | None = None,
    msec: float | None = None,
) -> None:
    """A checkpoint could not be saved."""
    job.checkpoints.fail(step, error, msec)


@_with_job(None, alone=True)
def settle_save(
    job: TrainingJob,
    span: Span,
    error: BaseException | None = None,
    path: PathLike | None = None,
) -> None:
    """A save in the background, begun with this span, is complete or has failed, however late."""
    job.checkpoints.settle(span, error, path)
