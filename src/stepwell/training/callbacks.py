"""Callbacks: a start and an end for every standard span, and the outcome of checkpoint saves.

A start takes ``start_time_msec`` and returns the span; an end takes ``finish_time_msec``. Both are in
milliseconds since the epoch; the default is now. Without a run nothing is recorded, and a start returns a
span that does nothing. Calls in a wrong order are reported, not raised.
"""

from __future__ import annotations

from stepwell.telemetry.span_handle import Span
from stepwell.training import calls
from stepwell.training.checkpoints import PathLike
from stepwell.training.config import CheckPointStrategy
from stepwell.training.training_loop import Count
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

# The application


def on_app_start(start_time_msec: float | None = None) -> Span:
    """Start the application."""
    return calls.start_application(start_time_msec)


def on_app_end(finish_time_msec: float | None = None) -> None:
    """End the application and all open spans in it."""
    calls.end_application(finish_time_msec)


# Setting up


def on_distributed_init_start(start_time_msec: float | None = None) -> Span:
    """Start the setup of communication between ranks."""
    return calls.start(Name.DIST_INIT, start_time_msec)


def on_distributed_init_end(finish_time_msec: float | None = None) -> None:
    """End the setup of communication between ranks."""
    calls.end(Name.DIST_INIT, finish_time_msec)


def on_model_init_start(start_time_msec: float | None = None) -> Span:
    """Start creating the model."""
    return calls.start(Name.MODEL_INIT, start_time_msec)


def on_model_init_end(finish_time_msec: float | None = None) -> None:
    """End creating the model."""
    calls.end(Name.MODEL_INIT, finish_time_msec)


def on_dataloader_init_start(start_time_msec: float | None = None) -> Span:
    """Start creating the data loaders."""
    return calls.start(Name.DATA_LOADER_INIT, start_time_msec)


def on_dataloader_init_end(finish_time_msec: float | None = None) -> None:
    """End creating the data loaders."""
    calls.end(Name.DATA_LOADER_INIT, finish_time_msec)


def on_optimizer_init_start(start_time_msec: float | None = None) -> Span:
    """Start creating the optimizer."""
    return calls.start(Name.OPTIMIZER_INIT, start_time_msec)


def on_optimizer_init_end(finish_time_msec: float | None = None) -> None:
    """End creating the optimizer."""
    calls.end(Name.OPTIMIZER_INIT, finish_time_msec)


def on_load_checkpoint_start(start_time_msec: float | None = None) -> Span:
    """Start loading a checkpoint."""
    return calls.start(Name.CHECKPOINT_LOAD, start_time_msec)


def on_load_checkpoint_end(finish_time_msec: float | None = None) -> None:
    """End loading a checkpoint."""
    calls.end(Name.CHECKPOINT_LOAD, finish_time_msec)


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


def on_data_loading_start(start_time_msec: float | None = None) -> Span:
    """Start loading a batch."""
    return calls.start(Name.DATA_LOADING, start_time_msec)


def on_data_loading_end(finish_time_msec: float | None = None) -> None:
    """End loading a batch."""
    calls.end(Name.DATA_LOADING, finish_time_msec)


def on_model_forward_start(start_time_msec: float | None = None) -> Span:
    """Start the forward pass."""
    return calls.start(Name.MODEL_FORWARD, start_time_msec)


def on_model_forward_end(finish_time_msec: float | None = None) -> None:
    """End the forward pass."""
    calls.end(Name.MODEL_FORWARD, finish_time_msec)


def on_zero_grad_start(start_time_msec: float | None = None) -> Span:
    """Start clearing the gradients."""
    return calls.start(Name.ZERO_GRAD, start_time_msec)


def on_zero_grad_end(finish_time_msec: float | None = None) -> None:
    """End clearing the gradients."""
    calls.end(Name.ZERO_GRAD, finish_time_msec)


def on_model_backward_start(start_time_msec: float | None = None) -> Span:
    """Start the backward pass."""
    return calls.start(Name.MODEL_BACKWARD, start_time_msec)


def on_model_backward_end(finish_time_msec: float | None = None) -> None:
    """End the backward pass."""
    calls.end(Name.MODEL_BACKWARD, finish_time_msec)


def on_optimizer_update_start(start_time_msec: float | None = None) -> Span:
    """Start the optimizer step."""
    return calls.start(Name.OPTIMIZER_UPDATE, start_time_msec)


def on_optimizer_update_end(finish_time_msec: float | None = None) -> None:
    """End the optimizer step."""
    calls.end(Name.OPTIMIZER_UPDATE, finish_time_msec)


# Validation and testing


def on_validation_start(start_time_msec: float | None = None) -> Span:
    """Start a validation loop."""
    return calls.start_evaluation("validation", start_time_msec)


def on_validation_end(finish_time_msec: float | None = None) -> None:
    """End the validation loop, with an update."""
    calls.end_evaluation("validation", finish_time_msec)


def on_validation_single_iteration_start(start_time_msec: float | None = None) -> Span:
    """Start a validation iteration."""
    return calls.start_evaluation_iteration("validation", start_time_msec)


def on_validation_single_iteration_end(finish_time_msec: float | None = None) -> None:
    """End a validation iteration."""
    calls.end_evaluation_iteration("validation", finish_time_msec)


def on_testing_start(start_time_msec: float | None = None) -> Span:
    """Start a testing loop."""
    return calls.start_evaluation("testing", start_time_msec)


def on_testing_end(finish_time_msec: float | None = None) -> None:
    """End the testing loop, with an update."""
    calls.end_evaluation("testing", finish_time_msec)


def on_testing_single_iteration_start(start_time_msec: float | None = None) -> Span:
    """Start a testing iteration."""
    return calls.start_evaluation_iteration("testing", start_time_msec)


def on_testing_single_iteration_end(finish_time_msec: float | None = None) -> None:
    """End a testing iteration."""
    calls.end_evaluation_iteration("testing", finish_time_msec)


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


def on_save_checkpoint_finalization_start(start_time_msec: float | None = None) -> Span:
    """Start completing an asynchronous checkpoint."""
    return calls.start(Name.CHECKPOINT_SAVE_FINALIZATION, start_time_msec)


def on_save_checkpoint_finalization_end(finish_time_msec: float | None = None) -> None:
    """End completing an asynchronous checkpoint."""
    calls.end(Name.CHECKPOINT_SAVE_FINALIZATION, finish_time_msec)
