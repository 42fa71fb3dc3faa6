"""Callbacks: a start and an end for every standard span, and the word of a saved checkpoint.

A start takes ``start_time_msec`` and gives the span; an end takes ``finish_time_msec``. Both are milliseconds
since the epoch, and mean now when left out. Without a run nothing is recorded, and a start gives a span that
does nothing either. None of them raises because of when it is called.
"""

from __future__ import annotations

from stepwell.telemetry.live import Span
from stepwell.training import calls
from stepwell.training.checkpoints import PathLike
from stepwell.training.training_loop import Count
from stepwell.training.values import CheckPointStrategy
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

# The application


def on_app_start(start_time_msec: float | None = None) -> Span:
    """The application starts."""
    return calls.start_application(start_time_msec)


def on_app_end(finish_time_msec: float | None = None) -> None:
    """The application ends, and with it all that is still open."""
    calls.end_application(finish_time_msec)


# Setting up


def on_distributed_init_start(start_time_msec: float | None = None) -> Span:
    """Setting up communication between ranks starts."""
    return calls.start(Name.DIST_INIT, start_time_msec)


def on_distributed_init_end(finish_time_msec: float | None = None) -> None:
    """Setting up communication between ranks ends."""
    calls.end(Name.DIST_INIT, finish_time_msec)


def on_model_init_start(start_time_msec: float | None = None) -> Span:
    """Making the model starts."""
    return calls.start(Name.MODEL_INIT, start_time_msec)


def on_model_init_end(finish_time_msec: float | None = None) -> None:
    """Making the model ends."""
    calls.end(Name.MODEL_INIT, finish_time_msec)


def on_dataloader_init_start(start_time_msec: float | None = None) -> Span:
    """Making the data loaders starts."""
    return calls.start(Name.DATA_LOADER_INIT, start_time_msec)


def on_dataloader_init_end(finish_time_msec: float | None = None) -> None:
    """Making the data loaders ends."""
    calls.end(Name.DATA_LOADER_INIT, finish_time_msec)


def on_optimizer_init_start(start_time_msec: float | None = None) -> Span:
    """Making the optimizer starts."""
    return calls.start(Name.OPTIMIZER_INIT, start_time_msec)


def on_optimizer_init_end(finish_time_msec: float | None = None) -> None:
    """Making the optimizer ends."""
    calls.end(Name.OPTIMIZER_INIT, finish_time_msec)


def on_load_checkpoint_start(start_time_msec: float | None = None) -> Span:
    """Loading a checkpoint starts."""
    return calls.start(Name.CHECKPOINT_LOAD, start_time_msec)


def on_load_checkpoint_end(finish_time_msec: float | None = None) -> None:
    """Loading a checkpoint ends."""
    calls.end(Name.CHECKPOINT_LOAD, finish_time_msec)


# Training


def on_train_start(
    train_iterations_start: int = 0,
    train_samples_start: int | None = None,
    train_iterations_target_or_fn: Count | None = None,
    train_samples_target_or_fn: Count | None = None,
    start_time_msec: float | None = None,
) -> Span:
    """A training loop starts at this iteration; not 0 where training is resumed."""
    return calls.start_training(
        train_iterations_start,
        train_samples_start,
        train_iterations_target_or_fn,
        train_samples_target_or_fn,
        start_time_msec,
    )


def on_train_end(finish_time_msec: float | None = None) -> None:
    """The training loop ends; iterations that no update has told of are reported."""
    calls.end_training(finish_time_msec)


def on_training_single_iteration_start(start_time_msec: float | None = None) -> Span:
    """A training iteration starts."""
    return calls.start_iteration(start_time_msec)


def on_training_single_iteration_end(
    finish_time_msec: float | None = None,
    *,
    samples: int | None = None,
    tokens: int | None = None,
    optimizer_step: bool = True,
) -> None:
    """A training iteration ends.

    Args:
        finish_time_msec: when; now if left out.
        samples: samples of all ranks in it, where that is not always the global batch size.
        tokens: tokens of all ranks in it, where that is not samples times sequence length.
        optimizer_step: False when it only accumulated gradients: the iteration goes on with the next.
    """
    calls.end_iteration(samples, tokens, optimizer_step, None, finish_time_msec)


def on_data_loading_start(start_time_msec: float | None = None) -> Span:
    """Getting a batch starts."""
    return calls.start(Name.DATA_LOADING, start_time_msec)


def on_data_loading_end(finish_time_msec: float | None = None) -> None:
    """Getting a batch ends."""
    calls.end(Name.DATA_LOADING, finish_time_msec)


def on_model_forward_start(start_time_msec: float | None = None) -> Span:
    """The forward pass starts."""
    return calls.start(Name.MODEL_FORWARD, start_time_msec)


def on_model_forward_end(finish_time_msec: float | None = None) -> None:
    """The forward pass ends."""
    calls.end(Name.MODEL_FORWARD, finish_time_msec)


def on_zero_grad_start(start_time_msec: float | None = None) -> Span:
    """Clearing the gradients starts."""
    return calls.start(Name.ZERO_GRAD, start_time_msec)


def on_zero_grad_end(finish_time_msec: float | None = None) -> None:
    """Clearing the gradients ends."""
    calls.end(Name.ZERO_GRAD, finish_time_msec)


def on_model_backward_start(start_time_msec: float | None = None) -> Span:
    """The backward pass starts."""
    return calls.start(Name.MODEL_BACKWARD, start_time_msec)


def on_model_backward_end(finish_time_msec: float | None = None) -> None:
    """The backward pass ends."""
    calls.end(Name.MODEL_BACKWARD, finish_time_msec)


def on_optimizer_update_start(start_time_msec: float | None = None) -> Span:
    """The optimizer's step starts."""
    return calls.start(Name.OPTIMIZER_UPDATE, start_time_msec)


def on_optimizer_update_end(finish_time_msec: float | None = None) -> None:
    """The optimizer's step ends."""
    calls.end(Name.OPTIMIZER_UPDATE, finish_time_msec)


# Validation and testing


def on_validation_start(start_time_msec: float | None = None) -> Span:
    """A validation loop starts."""
    return calls.start_evaluation("validation", start_time_msec)


def on_validation_end(finish_time_msec: float | None = None) -> None:
    """The validation loop ends, and is reported."""
    calls.end_evaluation("validation", finish_time_msec)


def on_validation_single_iteration_start(start_time_msec: float | None = None) -> Span:
    """A validation iteration starts."""
    return calls.start_evaluation_iteration("validation", start_time_msec)


def on_validation_single_iteration_end(finish_time_msec: float | None = None) -> None:
    """A validation iteration ends."""
    calls.end_evaluation_iteration("validation", finish_time_msec)


def on_testing_start(start_time_msec: float | None = None) -> Span:
    """A testing loop starts."""
    return calls.start_evaluation("testing", start_time_msec)


def on_testing_end(finish_time_msec: float | None = None) -> None:
    """The testing loop ends, and is reported."""
    calls.end_evaluation("testing", finish_time_msec)


def on_testing_single_iteration_start(start_time_msec: float | None = None) -> Span:
    """A testing iteration starts."""
    return calls.start_evaluation_iteration("testing", start_time_msec)


def on_testing_single_iteration_end(finish_time_msec: float | None = None) -> None:
    """A testing iteration ends."""
    calls.end_evaluation_iteration("testing", finish_time_msec)


# Saving checkpoints


def on_save_checkpoint_start(
    global_step: int,
    start_time_msec: float | None = None,
    *,
    path: PathLike | None = None,
    strategy: CheckPointStrategy | str | None = None,
) -> Span:
    """Saving the checkpoint of this step starts.

    Args:
        global_step: iterations done so far; tells checkpoints apart.
        start_time_msec: when; now if left out.
        path: where it is saved to; its size is reported with the success.
        strategy: sync or async, where it is not the one of the configuration.
    """
    return calls.start_save(global_step, start_time_msec, path, strategy)


def on_save_checkpoint_success(
    global_step: int, time_msec: float | None = None, *, path: PathLike | None = None
) -> None:
    """The checkpoint of this step is complete, which an asynchronous one is long after its save ended."""
    calls.succeed(global_step, time_msec, path)


def on_save_checkpoint_failure(
    global_step: int,
    error: BaseException | str | None = None,
    time_msec: float | None = None,
) -> None:
    """The checkpoint of this step could not be saved."""
    calls.fail(global_step, error, time_msec)


def on_save_checkpoint_end(finish_time_msec: float | None = None) -> None:
    """Training goes on after a save; whether it succeeded is said by the two above."""
    calls.end_save(finish_time_msec)


def on_save_checkpoint_finalization_start(start_time_msec: float | None = None) -> Span:
    """Completing an asynchronous checkpoint starts."""
    return calls.start(Name.CHECKPOINT_SAVE_FINALIZATION, start_time_msec)


def on_save_checkpoint_finalization_end(finish_time_msec: float | None = None) -> None:
    """Completing an asynchronous checkpoint ends."""
    calls.end(Name.CHECKPOINT_SAVE_FINALIZATION, finish_time_msec)
