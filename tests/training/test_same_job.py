"""Context managers and callbacks of the same job record the same spans, events and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import training
from stepwell.testing import FakeClock
from stepwell.training import callbacks as on
from stepwell.training import context
from tests.training.table import Row, assert_rows, job, rows

CONFIG: dict[str, Any] = {
    "application_name": "same",
    "world_size_or_fn": 4,
    "global_batch_size_or_fn": 8,
    "seq_length_or_fn": 16,
    "flops_per_sample_or_fn": 3e11,
    "is_log_throughput_enabled_or_fn": True,
    "log_every_n_train_iterations": 2,
    "train_iterations_target_or_fn": 8,
}
# Lengths and sizes of the iterations of the two loops.
FIRST: list[tuple[float, dict[str, Any]]] = [
    (1, {}),
    (2, {"samples": 6}),
    (0.5, {"optimizer_step": False}),
    (0.75, {"tokens": 100}),
    (1.25, {"samples": 4, "tokens": 50}),
    (0.25, {"samples": 2, "optimizer_step": False}),
]
SECOND: list[tuple[float, dict[str, Any]]] = [(1, {}), (3, {}), (2, {})]


def with_context_managers(clock: FakeClock, path: Path) -> None:
    """The job, every stretch of it a block."""
    with context.application():
        for part in (
            context.distributed_init,
            context.model_init,
            context.dataloader_init,
            context.optimizer_init,
            context.checkpoint_load,
        ):
            with part():
                clock.advance(0.5)
        with context.training_loop(0, 0, 5, lambda: 40):
            for seconds, sizes in FIRST:
                with context.data_loading():
                    clock.advance(0.125)
                with context.training_iteration(**sizes):
                    with context.model_forward():
                        clock.advance(seconds / 4)
                    with context.zero_grad():
                        clock.advance(seconds / 4)
                    with context.model_backward():
                        clock.advance(seconds / 4)
                    with context.optimizer_update():
                        clock.advance(seconds / 4)
                    stepwell.log({"train_loss": seconds})
            with context.checkpoint_save(4, path=path):
                clock.advance(2)
            with context.validation_loop():
                for seconds in (1, 2):
                    with context.validation_iteration():
                        clock.advance(seconds)
        with context.training_loop(train_iterations_start=4):
            for seconds, sizes in SECOND:
                with context.checkpoint_save(int(seconds), strategy="async", path=path):
                    clock.advance(0.25)
                with context.training_iteration(**sizes):
                    clock.advance(seconds)
            training.on_save_checkpoint_failure(1, "disk full")
            training.on_save_checkpoint_success(2)
            with context.checkpoint_save_finalization():
                clock.advance(1)
            training.on_save_checkpoint_success(3)
            with context.testing_loop(), context.testing_iteration():
                clock.advance(0.5)


def with_callbacks(clock: FakeClock, path: Path, ends_loop: bool) -> None:
    """The same, every stretch of it a start and an end."""
    on.on_app_start()
    for start, end in (
        (on.on_distributed_init_start, on.on_distributed_init_end),
        (on.on_model_init_start, on.on_model_init_end),
        (on.on_dataloader_init_start, on.on_dataloader_init_end),
        (on.on_optimizer_init_start, on.on_optimizer_init_end),
        (on.on_load_checkpoint_start, on.on_load_checkpoint_end),
    ):
        start()
        clock.advance(0.5)
        end()
    on.on_train_start(0, 0, 5, lambda: 40)
    for seconds, sizes in FIRST:
        on.on_data_loading_start()
        clock.advance(0.125)
        on.on_data_loading_end()
        on.on_training_single_iteration_start()
        for start, end in (
            (on.on_model_forward_start, on.on_model_forward_end),
            (on.on_zero_grad_start, on.on_zero_grad_end),
            (on.on_model_backward_start, on.on_model_backward_end),
            (on.on_optimizer_update_start, on.on_optimizer_update_end),
        ):
            start()
            clock.advance(seconds / 4)
            end()
        stepwell.log({"train_loss": seconds})
        on.on_training_single_iteration_end(**sizes)
    on.on_save_checkpoint_start(4, path=path)
    clock.advance(2)
    on.on_save_checkpoint_success(4)
    on.on_save_checkpoint_end()
    on.on_validation_start()
    for seconds in (1, 2):
        on.on_validation_single_iteration_start()
        clock.advance(seconds)
        on.on_validation_single_iteration_end()
    on.on_validation_end()
    on.on_train_end()
    on.on_train_start(train_iterations_start=4)
    for seconds, sizes in SECOND:
        on.on_save_checkpoint_start(int(seconds), path=path, strategy="async")
        clock.advance(0.25)
        on.on_save_checkpoint_end()
        on.on_training_single_iteration_start()
        clock.advance(seconds)
        on.on_training_single_iteration_end(**sizes)
    on.on_save_checkpoint_failure(1, "disk full")
    on.on_save_checkpoint_success(2)
    on.on_save_checkpoint_finalization_start()
    clock.advance(1)
    on.on_save_checkpoint_finalization_end()
    on.on_save_checkpoint_success(3)
    on.on_testing_start()
    on.on_testing_single_iteration_start()
    clock.advance(0.5)
    on.on_testing_single_iteration_end()
    on.on_testing_end()
    if ends_loop:
        on.on_train_end()
    on.on_app_end()


@pytest.mark.parametrize("ends_loop", [True, False])
def test_callbacks_and_context_managers_leave_the_same(tmp_path: Path, ends_loop: bool) -> None:
    """Also where the callbacks leave out the end of the last loop, which the application's end makes good."""
    path = tmp_path / "model.pt"
    path.write_bytes(bytes(10))
    with job(**CONFIG) as (clock, run):
        with_context_managers(clock, path)
    expected = rows(run)
    with job(**CONFIG) as (clock, run):
        with_callbacks(clock, path, ends_loop)
    found = rows(run)
    assert_rows(found, expected)
    assert found == expected
    # Not because both have left nothing.
    assert names(found) == NAMES


def names(found: list[Row]) -> dict[str, int]:
    """How often each name is there."""
    counts: dict[str, int] = {}
    for row in found:
        counts[row.name] = counts.get(row.name, 0) + 1
    return counts


NAMES = {
    "application": 1,
    "one_logger_initialization": 1,
    "update_training_telemetry_config": 1,
    "distributed_code_initialization": 1,
    "model_initialization": 1,
    "data_loader_initialization": 1,
    "optimizer_initialization": 1,
    "checkpoint_load": 1,
    "training_loop": 2,
    # After 2 and 4 iterations; after 6, then the last one.
    "training_metrics_update": 4,
    "data_loading": 6,
    "training_single_iteration": 9,
    "model_forward": 6,
    "zero_grad": 6,
    "model_backward": 6,
    "optimizer_update": 6,
    "checkpoint_save_sync": 1,
    "checkpoint_save_async": 3,
    "checkpoint_save_finalization": 1,
    "save_checkpoint_success": 3,
    "save_checkpoint_failure": 1,
    "sync_checkpoint_metrics_update": 4,
    "validation_loop": 1,
    "validation_single_iteration": 2,
    "validation_metrics_update": 1,
    "testing_loop": 1,
    "testing_single_iteration": 1,
    "testing_metrics_update": 1,
}
