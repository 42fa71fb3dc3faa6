"""Callbacks and context managers that return spans with one-logger's interface."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from stepwell.compat.one_logger.spans import (
    LiveSpan,
    Viewed,
    entering_views,
    returning_views,
    view_of,
)
from stepwell.compat.one_logger.values import plain_values
from stepwell.telemetry.span_handle import timed_span as recorded_span
from stepwell.training import callbacks, context
from stepwell.training.callbacks import (
    on_app_end,
    on_data_loading_end,
    on_dataloader_init_end,
    on_distributed_init_end,
    on_load_checkpoint_end,
    on_model_backward_end,
    on_model_forward_end,
    on_model_init_end,
    on_optimizer_init_end,
    on_optimizer_update_end,
    on_save_checkpoint_end,
    on_save_checkpoint_failure,
    on_save_checkpoint_finalization_end,
    on_save_checkpoint_success,
    on_testing_end,
    on_testing_single_iteration_end,
    on_train_end,
    on_training_single_iteration_end,
    on_validation_end,
    on_validation_single_iteration_end,
    on_zero_grad_end,
)

__all__ = [
    "application",
    "checkpoint_load",
    "checkpoint_save",
    "checkpoint_save_finalization",
    "data_loading",
    "dataloader_init",
    "distributed_init",
    "model_backward",
    "model_forward",
    "model_init",
    "on_app_end",
    "on_app_start",
    "on_data_loading_end",
    "on_data_loading_start",
    "on_dataloader_init_end",
    "on_dataloader_init_start",
    "on_distributed_init_end",
    "on_distributed_init_start",
    "on_load_checkpoint_end",
    "on_load_checkpoint_start",
    "on_model_backward_end",
    "on_model_backward_start",
    "on_model_forward_end",
    "on_model_forward_start",
    "on_model_init_end",
    "on_model_init_start",
    "on_optimizer_init_end",
    "on_optimizer_init_start",
    "on_optimizer_update_end",
    "on_optimizer_update_start",
    "on_save_checkpoint_end",
    "on_save_checkpoint_failure",
    "on_save_checkpoint_finalization_end",
    "on_save_checkpoint_finalization_start",
    "on_save_checkpoint_start",
    "on_save_checkpoint_success",
    "on_testing_end",
    "on_testing_single_iteration_end",
    "on_testing_single_iteration_start",
    "on_testing_start",
    "on_train_end",
    "on_train_start",
    "on_training_single_iteration_end",
    "on_training_single_iteration_start",
    "on_validation_end",
    "on_validation_single_iteration_end",
    "on_validation_single_iteration_start",
    "on_validation_start",
    "on_zero_grad_end",
    "on_zero_grad_start",
    "optimizer_init",
    "optimizer_update",
    "testing_iteration",
    "testing_loop",
    "timed_span",
    "training_iteration",
    "training_loop",
    "validation_iteration",
    "validation_loop",
    "zero_grad",
]

on_app_start = returning_views(callbacks.on_app_start)
on_distributed_init_start = returning_views(callbacks.on_distributed_init_start)
on_model_init_start = returning_views(callbacks.on_model_init_start)
on_dataloader_init_start = returning_views(callbacks.on_dataloader_init_start)
on_optimizer_init_start = returning_views(callbacks.on_optimizer_init_start)
on_load_checkpoint_start = returning_views(callbacks.on_load_checkpoint_start)
on_train_start = returning_views(callbacks.on_train_start)
on_training_single_iteration_start = returning_views(
    callbacks.on_training_single_iteration_start, LiveSpan
)
on_data_loading_start = returning_views(callbacks.on_data_loading_start, LiveSpan)
on_model_forward_start = returning_views(callbacks.on_model_forward_start, LiveSpan)
on_zero_grad_start = returning_views(callbacks.on_zero_grad_start, LiveSpan)
on_model_backward_start = returning_views(callbacks.on_model_backward_start, LiveSpan)
on_optimizer_update_start = returning_views(callbacks.on_optimizer_update_start, LiveSpan)
on_validation_start = returning_views(callbacks.on_validation_start)
on_validation_single_iteration_start = returning_views(
    callbacks.on_validation_single_iteration_start, LiveSpan
)
on_testing_start = returning_views(callbacks.on_testing_start)
on_testing_single_iteration_start = returning_views(
    callbacks.on_testing_single_iteration_start, LiveSpan
)
on_save_checkpoint_start = returning_views(callbacks.on_save_checkpoint_start)
on_save_checkpoint_finalization_start = returning_views(
    callbacks.on_save_checkpoint_finalization_start
)

application = entering_views(context.application)
distributed_init = entering_views(context.distributed_init)
model_init = entering_views(context.model_init)
dataloader_init = entering_views(context.dataloader_init)
optimizer_init = entering_views(context.optimizer_init)
checkpoint_load = entering_views(context.checkpoint_load)
training_loop = entering_views(context.training_loop)
training_iteration = entering_views(context.training_iteration, LiveSpan)
data_loading = entering_views(context.data_loading, LiveSpan)
model_forward = entering_views(context.model_forward, LiveSpan)
zero_grad = entering_views(context.zero_grad, LiveSpan)
model_backward = entering_views(context.model_backward, LiveSpan)
optimizer_update = entering_views(context.optimizer_update, LiveSpan)
validation_loop = entering_views(context.validation_loop)
validation_iteration = entering_views(context.validation_iteration, LiveSpan)
testing_loop = entering_views(context.testing_loop)
testing_iteration = entering_views(context.testing_iteration, LiveSpan)
checkpoint_save = entering_views(context.checkpoint_save)
checkpoint_save_finalization = entering_views(context.checkpoint_save_finalization)


def timed_span(
    name: str | Enum,
    span_attributes: Mapping[str, Any] | None = None,
    start_event_attributes: Mapping[str, Any] | None = None,
) -> Viewed:
    """Record a span: in a ``with`` statement, which returns the span, or as a decorator."""
    more = plain_values(start_event_attributes)
    return Viewed(recorded_span(name, plain_values(span_attributes), more), view_of)


# pytest would collect them as tests, because of their names.
for _function in (testing_loop, testing_iteration):
    _function.__test__ = False  # type: ignore[attr-defined]
