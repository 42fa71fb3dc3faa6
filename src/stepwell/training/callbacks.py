"""Callbacks: a start and an end for every standard span, and the outcome of checkpoint saves.

A start takes ``start_time_msec`` and returns the span; an end takes ``finish_time_msec``. Both are in
milliseconds since the epoch; the default is now. Without a run nothing is recorded, and a start returns a
span that does nothing. Calls in a wrong order are reported, not raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from stepwell.telemetry.span_handle import Span
from stepwell.training import calls
from stepwell.training.checkpoints import PathLike
from stepwell.training.config import CheckPointStrategy
from stepwell.training.training_loop import Count
from stepwell.vocabulary import StandardTrainingJobSpanName as Name


class StartCallback(Protocol):
    """The callback at the start of a span."""

    def __call__(self, start_time_msec: float | None = None) -> Span: ...


class EndCallback(Protocol):
    """The callback at the end of a span."""

    def __call__(self, finish_time_msec: float | None = None) -> None: ...


def _callbacks(
    name: str,
    of: Name | calls.EvaluationKind,
    meaning: str,
    start: Callable[[Any, float | None], Span] = calls.start,
    end: Callable[[Any, float | None], None] = calls.end,
) -> tuple[StartCallback, EndCallback]:
    """Return ``on_<name>_start`` and ``on_<name>_end``, which call ``start`` and ``end`` with ``of``."""

    def on_start(start_time_msec: float | None = None) -> Span:
        return start(of, start_time_msec)

    def on_end(finish_time_msec: float | None = None) -> None:
        end(of, finish_time_msec)

    for function, moment in ((on_start, "start"), (on_end, "end")):
        function.__name__ = function.__qualname__ = f"on_{name}_{moment}"
        function.__doc__ = f"{moment.capitalize()} {meaning}."
    return on_start, on_end


EVALUATION = (calls.start_evaluation, calls.end_evaluation)
EVALUATION_ITERATION = (calls.start_evaluation_iteration, calls.end_evaluation_iteration)

# The application


def on_app_start(start_time_msec: float | None = None) -> Span:
    """Start the application."""
    return calls.start_application(start_time_msec)


def on_app_end(finish_time_msec: float | None = None) -> None:
    """End the application and all open spans in it."""
    calls.end_application(finish_time_msec)


# Setting up

on_distributed_init_start, on_distributed_init_end = _callbacks(
    "distributed_init", Name.DIST_INIT, "the setup of communication between ranks"
)
on_model_init_start, on_model_init_end = _callbacks(
    "model_init", Name.MODEL_INIT, "creating the model"
)
on_dataloader_init_start, on_dataloader_init_end = _callbacks(
    "dataloader_init", Name.DATA_LOADER_INIT, "creating the data loaders"
)
on_optimizer_init_start, on_optimizer_init_end = _callbacks(
    "optimizer_init", Name.OPTIMIZER_INIT, "creating the optimizer"
)
on_load_checkpoint_start, on_load_checkpoint_end = _callbacks(
    "load_checkpoint", Name.CHECKPOINT_LOAD, "loading a checkpoint"
)


# Training


def on_train_start(
    train_iterations_start: int = 0,
    train_samples_start: int | None = None,
    train_iterations_target_or_fn: Count | None = None,
    train_samples_target_or_fn: Count | None = None,
    start_time_msec: float | None = None,
) -> Span:
    """Start a training loop at this iteration (not 0 if training is resumed)."""
    return calls.start_training(
        train_iterations_start,
        train_samples_start,
        train_iterations_target_or_fn,
        train_samples_target_or_fn,
        start_time_msec,
    )


def on_train_end(finish_time_msec: float | None = None) -> None:
    """End the training loop, with a final update if iterations are not reported yet."""
    calls.end_training(finish_time_msec)


def on_training_single_iteration_start(start_time_msec: float | None = None) -> Span:
    """Start a training iteration."""
    return calls.start_iteration(start_time_msec)


def on_training_single_iteration_end(
    finish_time_msec: float | None = None,
    *,
    samples: int | None = None,
    tokens: int | None = None,
    optimizer_step: bool = True,
) -> None:
    """End a training iteration.

    Args:
        finish_time_msec: end time. Default: now.
        samples: samples of all ranks, if not always the global batch size.
        tokens: tokens of all ranks, if not samples times sequence length.
        optimizer_step: False if it only accumulated gradients: it then counts as part of the next iteration.
    """
    calls.end_iteration(samples, tokens, optimizer_step, None, finish_time_msec)


on_data_loading_start, on_data_loading_end = _callbacks(
    "data_loading", Name.DATA_LOADING, "loading a batch"
)
on_model_forward_start, on_model_forward_end = _callbacks(
    "model_forward", Name.MODEL_FORWARD, "the forward pass"
)
on_zero_grad_start, on_zero_grad_end = _callbacks(
    "zero_grad", Name.ZERO_GRAD, "clearing the gradients"
)
on_model_backward_start, on_model_backward_end = _callbacks(
    "model_backward", Name.MODEL_BACKWARD, "the backward pass"
)
on_optimizer_update_start, on_optimizer_update_end = _callbacks(
    "optimizer_update", Name.OPTIMIZER_UPDATE, "the optimizer step"
)


# Validation and testing

on_validation_start, on_validation_end = _callbacks(
    "validation", "validation", "a validation loop", *EVALUATION
)
on_validation_single_iteration_start, on_validation_single_iteration_end = _callbacks(
    "validation_single_iteration", "validation", "a validation iteration", *EVALUATION_ITERATION
)
on_testing_start, on_testing_end = _callbacks("testing", "testing", "a testing loop", *EVALUATION)
on_testing_single_iteration_start, on_testing_single_iteration_end = _callbacks(
    "testing_single_iteration", "testing", "a testing iteration", *EVALUATION_ITERATION
)


# Saving checkpoints


def on_save_checkpoint_start(
    global_step: int,
    start_time_msec: float | None = None,
    *,
    path: PathLike | None = None,
    strategy: CheckPointStrategy | str | None = None,
) -> Span:
    """Start saving the checkpoint of this step.

    Args:
        global_step: iterations so far, which identifies the checkpoint.
        start_time_msec: start time. Default: now.
        path: file or folder of the checkpoint. Its size is reported with the success.
        strategy: "sync" or "async". Default: that of the configuration.
    """
    return calls.start_save(global_step, start_time_msec, path, strategy)


def on_save_checkpoint_success(
    global_step: int, time_msec: float | None = None, *, path: PathLike | None = None
) -> None:
    """Report that the checkpoint of this step is complete; for an asynchronous save, long after its end."""
    calls.succeed(global_step, time_msec, path)


def on_save_checkpoint_failure(
    global_step: int,
    error: BaseException | str | None = None,
    time_msec: float | None = None,
) -> None:
    """Report that the checkpoint of this step could not be saved."""
    calls.fail(global_step, error, time_msec)


def on_save_checkpoint_end(finish_time_msec: float | None = None) -> None:
    """End a save: training continues. The two functions above report its outcome."""
    calls.end_save(finish_time_msec)


on_save_checkpoint_finalization_start, on_save_checkpoint_finalization_end = _callbacks(
    "save_checkpoint_finalization",
    Name.CHECKPOINT_SAVE_FINALIZATION,
    "completing an asynchronous checkpoint",
)
