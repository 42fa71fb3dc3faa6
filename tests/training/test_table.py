"""A job with all there is, and every number that it reports worked out by hand.

Three training loops (the second resumed, the third begun anew), validation, testing, checkpoints that are
saved at once, in the background and in the wrong order, and one that fails. An iteration has 4 samples of
10 tokens and 5e11 operations, so 2 TFLOP; there are 2 ranks.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import stepwell
from stepwell import training
from stepwell.testing import FakeClock
from stepwell.training import (
    application,
    checkpoint_load,
    checkpoint_save,
    data_loading,
    dataloader_init,
    distributed_init,
    model_backward,
    model_forward,
    model_init,
    on_save_checkpoint_success,
    optimizer_init,
    optimizer_update,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
    zero_grad,
)
from tests.training.table import Ends, assert_rows, at, columns, event, job, rows, span

# What is done, in the order of time.


def run_job(clock: FakeClock, folder: Path) -> None:
    """The whole job: 45 seconds."""
    with application():
        for part, seconds in (
            (distributed_init, 1),
            (model_init, 2),
            (optimizer_init, 0.5),
            (dataloader_init, 0.5),
            (checkpoint_load, 1),
        ):
            with part():
                clock.advance(seconds)
        run_first_loop(clock, folder)
        clock.advance(1)
        with checkpoint_load():
            clock.advance(1)
        run_second_loop(clock)
        run_third_loop(clock)
        with training.testing_loop():
            for seconds in (0.25, 0.5, 0.25):
                with training.testing_iteration():
                    clock.advance(seconds)
            clock.advance(0.25)
        with checkpoint_save(2, path=folder / "sharded"):
            clock.advance(1)
        clock.advance(1)


def run_first_loop(clock: FakeClock, folder: Path) -> None:
    """From 5 to 24."""
    with training_loop(train_iterations_start=0):
        train(clock, 1, loss=4.0)
        train(clock, 2, loss=3.0)
        train(clock, 4, loss=2.0)
        train(clock, 2, loss=1.5)
        with checkpoint_save(4, path=folder / "model.pt"):
            clock.advance(2)
        train(clock, 1, loss=1.25)
        with validation_loop():
            for seconds in (1, 3):
                with validation_iteration():
                    clock.advance(seconds)
            clock.advance(0.5)


def train(clock: FakeClock, seconds: float, loss: float) -> None:
    """Half a second for data; then a quarter of the time is forward, half of it backward."""
    with data_loading():
        clock.advance(0.5)
    with training_iteration():
        with model_forward():
            clock.advance(seconds / 4)
        with model_backward():
            clock.advance(seconds / 2)
        if loss == 4.0:
            with zero_grad():
                clock.advance(seconds / 8)
            with optimizer_update():
                clock.advance(seconds / 8)
        else:
            clock.advance(seconds / 4)
        stepwell.log({"loss": loss})


def run_second_loop(clock: FakeClock) -> None:
    """From 26 to 37."""
    with training_loop(5, 30, lambda: 10, 50):
        iterate(clock, 2, loss=1.0)
        with checkpoint_save(6, strategy="async"):
            clock.advance(0.5)
        iterate(clock, 1)
        with checkpoint_save(7, strategy="async"):
            clock.advance(0.5)
        iterate(clock, 1)
        on_save_checkpoint_success(7)
        iterate(clock, 4, loss=0.5)
        on_save_checkpoint_success(6)
        with suppress(OSError), checkpoint_save(9):
            clock.advance(1)
            raise OSError("disk full")
        clock.advance(1)


def run_third_loop(clock: FakeClock) -> None:
    """From 37 to 41.75."""
    with training_loop():
        iterate(clock, 0.5)
        clock.advance(0.25)
        iterate(clock, 2, loss=0.25)
        with validation_loop():
            with validation_iteration():
                clock.advance(0.75)
            clock.advance(1.25)


def iterate(clock: FakeClock, seconds: float, loss: float | None = None) -> None:
    """One iteration without parts."""
    with training_iteration():
        if loss is not None:
            stepwell.log({"loss": loss})
        clock.advance(seconds)


# What is to come of it.

INITIALIZATION = {
    "application_name": "table",
    "world_size": 2,
    "rank": 0,
    "local_rank": 0,
    "node_name": socket.gethostname(),
    "app_type": "training",
    "session_tag": "night-7",
    "is_baseline_run": True,
    "enable_for_current_rank": True,
    "stepwell_version": stepwell.__version__,
    "summary_data_schema_version": "1.0.0",
    "custom_metadata": {"team": "vision", "shards": 3},
}
CONFIGURATION = {
    "perf_tag": ["small", "2-gpus"],
    "global_batch_size": 4,
    "micro_batch_size": 2,
    "seq_length": 10,
    "flops_per_sample": 500_000_000_000,
    "train_iterations_target": 20,
    "train_samples_target": 80,
    "log_every_n_train_iterations": 3,
    "checkpoint_strategy": "sync",
    "is_train_iterations_enabled": True,
    "is_validation_iterations_enabled": True,
    "is_test_iterations_enabled": True,
    "is_save_checkpoint_enabled": True,
    "is_log_throughput_enabled": True,
    "custom_metadata": {"team": "vision", "shards": 3},
}
# The first loop has iterations of 1, 2, 4 | 2, 1 seconds, with 0.5, 0.5, 0.5, 2.5 between them; the second
# one of 2 | 1, 1, 4 with 0.5, 0.5, 0 and the third one of 0.5, 2 with 0.25. "|" is where an update is due:
# after 3, 6 and 9 iterations in all. A percentile is the value at rank ceil(share * count).
UPDATES: dict[str, tuple[Any, ...]] = {
    "train_iterations_start": (0, 0, 5, 5, 0),
    "train_samples_start": (0, 0, 30, 30, 0),
    "current_iteration": (2, 4, 5, 8, 1),
    "num_iterations": (3, 5, 1, 4, 2),
    "num_train_samples": (12, 20, 4, 16, 8),
    "interval": (3, 2, 1, 3, 2),
    "is_final": (False, True, False, False, True),
    # 1+2+4 | +2+1; 2 | +1+1+4; 0.5+2
    "total_iteration_time_sec": (7.0, 10.0, 2.0, 8.0, 2.5),
    "avg_iteration_time_sec": (7 / 3, 2.0, 2.0, 2.0, 1.25),
    "min_iteration_time_sec": (1.0, 1.0, 2.0, 1.0, 0.5),
    "max_iteration_time_sec": (4.0, 4.0, 2.0, 4.0, 2.0),
    # (0.5+0.5)/2, (0.5+0.5+0.5+2.5)/4; none, (0.5+0.5+0)/3; 0.25
    "avg_between_iterations_time_sec": (0.5, 1.0, None, 1 / 3, 0.25),
    # 0.25+0.5+1 in 3, 0.5+0.25 more in 5; not told apart in the other loops
    "avg_forward_time_sec": (1.75 / 3, 0.5, None, None, None),
    "avg_backward_time_sec": (3.5 / 3, 1.0, None, None, None),
    "avg_dataloader_time_sec": (0.5, 0.5, None, None, None),
    "first_logged_train_iterations_finish_timestamp_sec": (
        at(6.5),
        at(6.5),
        at(28),
        at(28),
        at(37.5),
    ),
    "last_logged_train_iterations_finish_timestamp_sec": (
        at(13.5),
        at(19.5),
        at(28),
        at(35),
        at(39.75),
    ),
    "train_tokens": (120, 200, 40, 160, 80),
    "avg_batch_size": (4, 4, 4, 4, 4),
    # The loops begin at 5, 26 and 37
    "avg_samples_per_second": (12 / 8.5, 20 / 14.5, 4 / 2, 16 / 9, 8 / 2.75),
    "avg_tokens_per_second": (120 / 8.5, 200 / 14.5, 40 / 2, 160 / 9, 80 / 2.75),
    # 1.5 of 8.5, and 2.5 of 14.5
    "avg_samples_per_second_without_data": (12 / 7, 20 / 12, None, None, None),
    "avg_tokens_per_second_without_data": (120 / 7, 200 / 12, None, None, None),
    "latest_loss": (2.0, 1.25, 1.0, 0.5, 0.25),
    # 2e12 an iteration
    "total_flops": (6 * 10**12, 10**13, 2 * 10**12, 8 * 10**12, 4 * 10**12),
    # 30 samples of 5e11 before the second loop
    "completed_floating_point_operations_overall": (
        6 * 10**12,
        10**13,
        17 * 10**12,
        23 * 10**12,
        4 * 10**12,
    ),
    # 6/7, 10/10, 2/2, 8/8, 4/2.5
    "avg_tflops": (6 / 7, 1.0, 1.0, 1.0, 1.6),
    "train_throughput_per_gpu": (3 / 7, 0.5, 0.5, 0.5, 0.8),
    # 1 TFLOP of each rank in the shortest iteration, and in the longest
    "train_throughput_per_gpu_max": (1.0, 1.0, 0.5, 1.0, 2.0),
    "train_throughput_per_gpu_min": (0.25, 0.25, 0.5, 0.25, 0.5),
    # 1, 2, 4 | 1, 2 || 2 | 1, 1, 4 || 0.5, 2 in order
    "window_iterations": (3, 2, 1, 3, 2),
    "window_avg_iteration_time_sec": (7 / 3, 1.5, 2.0, 2.0, 1.25),
    "window_p50_iteration_time_sec": (2.0, 1.0, 2.0, 1.0, 0.5),
    "window_p95_iteration_time_sec": (4.0, 2.0, 2.0, 4.0, 2.0),
    "window_max_iteration_time_sec": (4.0, 2.0, 2.0, 4.0, 2.0),
    "window_avg_between_iterations_time_sec": (0.5, 1.5, None, 1 / 3, 0.25),
    "window_max_between_iterations_time_sec": (0.5, 2.5, None, 0.5, 0.25),
    # From 5 to 13.5, to 19.5; from 26 to 28, to 35; from 37 to 39.75
    "window_samples_per_second": (12 / 8.5, 8 / 6, 4 / 2, 12 / 7, 8 / 2.75),
    "window_tokens_per_second": (120 / 8.5, 80 / 6, 40 / 2, 120 / 7, 80 / 2.75),
    # 6/7, 4/3, 2/2, 6/6, 4/2.5 over 2 ranks
    "window_throughput_per_gpu": (3 / 7, 2 / 3, 0.5, 0.5, 0.8),
}
EVALUATIONS: dict[str, tuple[Any, ...]] = {
    # Validation, validation, testing. Trained before: 5; then 4 and 2 more; 11 in all.
    "current_iteration": (4, 1, 1),
    "interval": (5, 6, 11),
    "num_iterations": (2, 1, 3),
    # 1, 3 | 0.75 | 0.25, 0.5, 0.25
    "avg_iteration_time_sec": (2.0, 0.75, 1 / 3),
    "min_iteration_time_sec": (1.0, 0.75, 0.25),
    "max_iteration_time_sec": (3.0, 0.75, 0.5),
    "total_iteration_time_sec": (4.0, 0.75, 1.0),
}


def successes(folder: Path) -> list[dict[str, Any]]:
    """Of the saves of step 4, 7, 6 and 2; what is safe is the training done when a save began."""
    table: dict[str, tuple[Any, ...]] = {
        "checkpoint_strategy": ("sync", "async", "async", "sync"),
        "current_iteration": (4, 7, 6, 2),
        "save_checkpoint_success_count": (1, 2, 3, 4),
        "first_successful_save_checkpoint_timestamp_sec": (at(18), at(18), at(18), at(18)),
        "latest_successful_save_checkpoint_timestamp_sec": (at(18), at(31), at(35), at(44)),
        "training_start_timestamp_sec": (at(5), at(5), at(5), at(5)),
        # Step 6 comes after step 7, and the third loop has done less than the second one had saved.
        "productive_train_iterations": (4, 7, 7, 7),
        # 4*4, 30+2*4
        "productive_train_samples": (16, 38, 38, 38),
        # 1+2+4+2, 10+2+1; 10+8+2.5
        "productive_train_iterations_sec": (9.0, 13.0, 13.0, 20.5),
        # 1+3; +0.75
        "productive_validation_iterations_sec": (0.0, 4.0, 4.0, 4.75),
        # 16 and 38 samples of 0.5
        "productive_train_tflops": (8.0, 19.0, 19.0, 19.0),
        "checkpoint_size": (1000, None, None, 324),
        "checkpoint_directory": (str(folder), None, None, str(folder / "sharded")),
        "is_late": (None, None, True, None),
    }
    return columns(table)


WAITED = columns(
    {
        # After the saves of step 4, 6, 7, 9 and 2: 2, 1 and 1 seconds at once, twice 0.5 in the background.
        "save_checkpoint_count": (1, 1, 2, 2, 3),
        "save_checkpoint_sync_time_total_sec": (2.0, 0.5, 1.0, 3.0, 4.0),
        "save_checkpoint_sync_time_avg_sec": (2.0, 0.5, 0.5, 1.5, 4 / 3),
        "save_checkpoint_sync_time_min_sec": (2.0, 0.5, 0.5, 1.0, 1.0),
        "save_checkpoint_sync_time_max_sec": (2.0, 0.5, 0.5, 2.0, 2.0),
    }
)
SAVES = columns(
    {
        "checkpoint_strategy": ("sync", "async", "async", "sync", "sync"),
        "current_iteration": (4, 6, 7, 9, 2),
        "save_checkpoint_attempt_count": (1, 1, 2, 2, 3),
    }
)
FAILURE = {
    "checkpoint_strategy": "sync",
    "current_iteration": 9,
    "save_checkpoint_failure_count": 1,
    "error_message": "disk full",
    "exception_type": "OSError",
    "exception_message": "disk full",
}
ERROR = {
    "exception_type": "OSError",
    "exception_message": "disk full",
    "exception_traceback": Ends("OSError: disk full\n"),
}
LOOPS = columns(
    {
        "train_iterations_start": (0, 5, 0),
        "train_samples_start": (0, 30, 0),
        # From the configuration, but for the second one.
        "train_iterations_target": (20, 10, 20),
        "train_samples_target": (80, 50, 80),
        "train_tokens_target": (800, 500, 800),
        "completed_floating_point_operations_overall": (0, 15 * 10**12, 0),
    }
)
ITERATION = "training_single_iteration"
UPDATE = "training_metrics_update"
WAIT = "sync_checkpoint_metrics_update"
SUCCESS = "save_checkpoint_success"


def expected(folder: Path) -> list[Any]:
    """All spans and events of the job."""
    update = columns(UPDATES)
    evaluation = columns(EVALUATIONS)
    success = successes(folder)
    return [
        span(0, "application", 0, 45),
        event(1, "one_logger_initialization", 0, INITIALIZATION),
        event(1, "update_training_telemetry_config", 0, CONFIGURATION),
        span(1, "distributed_code_initialization", 0, 1),
        span(1, "model_initialization", 1, 2),
        span(1, "optimizer_initialization", 3, 0.5),
        span(1, "data_loader_initialization", 3.5, 0.5),
        span(1, "checkpoint_load", 4, 1),
        span(1, "training_loop", 5, 19, LOOPS[0]),
        event(2, UPDATE, 13.5, update[0]),
        event(2, UPDATE, 24, update[1]),
        span(2, "data_loading", 5, 0.5),
        span(2, ITERATION, 5.5, 1),
        span(3, "model_forward", 5.5, 0.25),
        span(3, "model_backward", 5.75, 0.5),
        span(3, "zero_grad", 6.25, 0.125),
        span(3, "optimizer_update", 6.375, 0.125),
        span(2, "data_loading", 6.5, 0.5),
        span(2, ITERATION, 7, 2),
        span(3, "model_forward", 7, 0.5),
        span(3, "model_backward", 7.5, 1),
        span(2, "data_loading", 9, 0.5),
        span(2, ITERATION, 9.5, 4),
        span(3, "model_forward", 9.5, 1),
        span(3, "model_backward", 10.5, 2),
        span(2, "data_loading", 13.5, 0.5),
        span(2, ITERATION, 14, 2),
        span(3, "model_forward", 14, 0.5),
        span(3, "model_backward", 14.5, 1),
        span(2, "checkpoint_save_sync", 16, 2, SAVES[0]),
        event(3, SUCCESS, 18, success[0]),
        event(3, WAIT, 18, WAITED[0]),
        span(2, "data_loading", 18, 0.5),
        span(2, ITERATION, 18.5, 1),
        span(3, "model_forward", 18.5, 0.25),
        span(3, "model_backward", 18.75, 0.5),
        span(2, "validation_loop", 19.5, 4.5),
        event(3, "validation_metrics_update", 24, evaluation[0]),
        span(3, "validation_single_iteration", 19.5, 1),
        span(3, "validation_single_iteration", 20.5, 3),
        span(1, "checkpoint_load", 25, 1),
        span(1, "training_loop", 26, 11, LOOPS[1]),
        event(2, UPDATE, 28, update[2]),
        event(2, UPDATE, 35, update[3]),
        span(2, ITERATION, 26, 2),
        span(2, "checkpoint_save_async", 28, 0.5, SAVES[1]),
        event(3, WAIT, 28.5, WAITED[1]),
        event(3, SUCCESS, 35, success[2]),
        span(2, ITERATION, 28.5, 1),
        span(2, "checkpoint_save_async", 29.5, 0.5, SAVES[2]),
        event(3, WAIT, 30, WAITED[2]),
        event(3, SUCCESS, 31, success[1]),
        span(2, ITERATION, 30, 1),
        span(2, ITERATION, 31, 4),
        span(2, "checkpoint_save_sync", 35, 1, SAVES[3], status="error"),
        event(3, "save_checkpoint_failure", 36, FAILURE),
        event(3, WAIT, 36, WAITED[3]),
        event(3, "error", 36, ERROR),
        span(1, "training_loop", 37, 4.75, LOOPS[2]),
        event(2, UPDATE, 41.75, update[4]),
        span(2, ITERATION, 37, 0.5),
        span(2, ITERATION, 37.75, 2),
        span(2, "validation_loop", 39.75, 2),
        event(3, "validation_metrics_update", 41.75, evaluation[1]),
        span(3, "validation_single_iteration", 39.75, 0.75),
        span(1, "testing_loop", 41.75, 1.25),
        event(2, "testing_metrics_update", 43, evaluation[2]),
        span(2, "testing_single_iteration", 41.75, 0.25),
        span(2, "testing_single_iteration", 42, 0.5),
        span(2, "testing_single_iteration", 42.5, 0.25),
        span(1, "checkpoint_save_sync", 43, 1, SAVES[4]),
        event(2, SUCCESS, 44, success[3]),
        event(2, WAIT, 44, WAITED[4]),
    ]


def test_every_attribute_of_a_whole_job_is_what_was_worked_out(tmp_path: Path) -> None:
    """Nothing else is recorded, nothing is missing, and every value is the one of the tables."""
    (tmp_path / "model.pt").write_bytes(bytes(1000))
    (tmp_path / "sharded" / "rank-0").mkdir(parents=True)
    (tmp_path / "sharded" / "rank-0" / "weights").write_bytes(bytes(300))
    (tmp_path / "sharded" / "index").write_bytes(bytes(24))
    config: dict[str, Any] = {
        "application_name": "table",
        "session_tag_or_fn": lambda: "night-7",
        "is_baseline_run_or_fn": True,
        "world_size_or_fn": 2,
        "custom_metadata": {"team": "vision", "shards": 3},
        "perf_tag_or_fn": ["small", "2-gpus"],
        "global_batch_size_or_fn": 4,
        "micro_batch_size_or_fn": 2,
        "seq_length_or_fn": 10,
        "flops_per_sample_or_fn": 5e11,
        "train_iterations_target_or_fn": 20,
        "train_samples_target_or_fn": 80,
        "log_every_n_train_iterations": 3,
        "is_log_throughput_enabled_or_fn": True,
    }
    with job(**config) as (clock, run):
        run_job(clock, tmp_path)
    assert_rows(rows(run), expected(tmp_path))
    steps = run.spans().filter(name=ITERATION).sort("start_ns")["step"].to_list()
    assert steps == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1]
