"""Callbacks with given times, clocks that are set back, late and failed checkpoints, and switches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell import training
from stepwell.testing import FakeClock
from stepwell.training import (
    application,
    checkpoint_save,
    checkpoint_save_finalization,
    data_loading,
    on_app_end,
    on_app_start,
    on_data_loading_end,
    on_data_loading_start,
    on_model_init_end,
    on_model_init_start,
    on_save_checkpoint_end,
    on_save_checkpoint_failure,
    on_save_checkpoint_start,
    on_save_checkpoint_success,
    on_train_end,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    on_validation_end,
    on_validation_single_iteration_end,
    on_validation_single_iteration_start,
    on_validation_start,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
)
from tests.training.table import (
    Row,
    assert_attributes,
    assert_rows,
    at,
    event,
    job,
    rows,
    span,
    updates,
)

ITERATION = "training_single_iteration"
FROM_THE_APPLICATION = 3
"""So many rows come first in every job: the application and its two events."""


def inside(run: Any) -> list[Row]:
    """The content of the application."""
    found = rows(run)
    assert [row.depth for row in found[:FROM_THE_APPLICATION]] == [0, 1, 1]
    return found[FROM_THE_APPLICATION:]


def test_times_that_are_given_count_instead_of_the_time_of_the_call() -> None:
    """All calls are made at 100 s, with earlier times."""
    clock = FakeClock()
    with job(clock, global_batch_size_or_fn=6) as (_, run):
        begin = clock.msec
        clock.advance(100)
        on_app_start(begin + 10_000)
        on_model_init_start(begin + 11_000)
        on_model_init_end(begin + 13_000)
        on_train_start(2, start_time_msec=begin + 20_000)
        on_data_loading_start(begin + 20_000)
        on_data_loading_end(begin + 21_000)
        on_training_single_iteration_start(begin + 21_000)
        on_training_single_iteration_end(begin + 24_000)
        # It overlaps with the one before: there is no pause, and no negative one.
        on_training_single_iteration_start(begin + 23_000)
        on_training_single_iteration_end(begin + 28_000, samples=3)
        on_training_single_iteration_start(begin + 30_000)
        on_training_single_iteration_end(begin + 31_000)
        on_validation_start(begin + 40_000)
        on_validation_single_iteration_start(begin + 40_500)
        on_validation_single_iteration_end(begin + 41_000)
        on_validation_end(begin + 42_000)
        on_save_checkpoint_start(5, begin + 50_000)
        on_save_checkpoint_success(5, begin + 52_500)
        on_save_checkpoint_end(begin + 53_000)
        on_train_end(begin + 60_000)
        on_app_end(begin + 70_000)
    update = {
        "train_iterations_start": 2,
        "train_samples_start": 12,
        "current_iteration": 4,
        "num_iterations": 3,
        "num_train_samples": 15,
        "interval": 3,
        "is_final": True,
        # 3 + 5 + 1
        "total_iteration_time_sec": 9.0,
        "avg_iteration_time_sec": 3.0,
        "min_iteration_time_sec": 1.0,
        "max_iteration_time_sec": 5.0,
        # 0 and 30 - 28
        "avg_between_iterations_time_sec": 1.0,
        "avg_dataloader_time_sec": 1 / 3,
        "first_logged_train_iterations_finish_timestamp_sec": at(24),
        "last_logged_train_iterations_finish_timestamp_sec": at(31),
        "avg_batch_size": 5,
        # From 20 to 31, of which 1 was for data
        "avg_samples_per_second": 15 / 11,
        "avg_samples_per_second_without_data": 15 / 10,
        "window_iterations": 3,
        "window_avg_iteration_time_sec": 3.0,
        "window_p50_iteration_time_sec": 3.0,
        "window_p95_iteration_time_sec": 5.0,
        "window_max_iteration_time_sec": 5.0,
        "window_avg_between_iterations_time_sec": 1.0,
        "window_max_between_iterations_time_sec": 2.0,
        "window_samples_per_second": 15 / 11,
    }
    validation = {
        "current_iteration": 4,
        "interval": 3,
        "num_iterations": 1,
        "avg_iteration_time_sec": 0.5,
        "min_iteration_time_sec": 0.5,
        "max_iteration_time_sec": 0.5,
        "total_iteration_time_sec": 0.5,
    }
    success = {
        "checkpoint_strategy": "sync",
        "current_iteration": 5,
        "save_checkpoint_success_count": 1,
        "first_successful_save_checkpoint_timestamp_sec": at(52.5),
        "latest_successful_save_checkpoint_timestamp_sec": at(52.5),
        "training_start_timestamp_sec": at(20),
        "productive_train_iterations": 5,
        "productive_train_samples": 27,
        "productive_train_iterations_sec": 9.0,
        "productive_validation_iterations_sec": 0.5,
    }
    waited = {
        "save_checkpoint_count": 1,
        "save_checkpoint_sync_time_total_sec": 3.0,
        "save_checkpoint_sync_time_avg_sec": 3.0,
        "save_checkpoint_sync_time_min_sec": 3.0,
        "save_checkpoint_sync_time_max_sec": 3.0,
    }
    save = {
        "checkpoint_strategy": "sync",
        "current_iteration": 5,
        "save_checkpoint_attempt_count": 1,
    }
    loop = {"train_iterations_start": 2, "train_samples_start": 12}
    assert_rows(
        inside(run),
        [
            span(1, "model_initialization", 11, 2),
            span(1, "training_loop", 20, 40, loop),
            event(2, "training_metrics_update", 60, update),
            span(2, "data_loading", 20, 1),
            span(2, ITERATION, 21, 3),
            span(2, ITERATION, 23, 5),
            span(2, ITERATION, 30, 1),
            span(2, "validation_loop", 40, 2),
            event(3, "validation_metrics_update", 42, validation),
            span(3, "validation_single_iteration", 40.5, 0.5),
            span(2, "checkpoint_save_sync", 50, 3, save),
            event(3, "save_checkpoint_success", 52.5, success),
            event(3, "sync_checkpoint_metrics_update", 53, waited),
        ],
    )


def test_durations_are_the_same_when_the_wall_clock_is_set_back() -> None:
    """Ten minutes back in the middle of an iteration; a time that is given later is of the new clock."""
    with job(log_every_n_train_iterations=2) as (clock, run), application(), training_loop():
        with training_iteration():
            clock.advance(1)
        with training_iteration():
            clock.advance(1)
            clock.step(-600)
            clock.advance(2)
        clock.advance(0.5)
        on_training_single_iteration_start(clock.msec)
        clock.advance(4)
        on_training_single_iteration_end(clock.msec - 1000)
    first, last = updates(run)
    assert first["total_iteration_time_sec"] == 4.0
    assert first["max_iteration_time_sec"] == 3.0
    assert first["last_logged_train_iterations_finish_timestamp_sec"] == at(4)
    assert last["total_iteration_time_sec"] == 7.0
    assert last["window_max_between_iterations_time_sec"] == 0.5
    assert last["last_logged_train_iterations_finish_timestamp_sec"] == at(7.5)
    spans = [row for row in inside(run) if row.took is not None]
    # Which of the two wall clocks was right nobody knows; from one span to the next it does not matter.
    assert [(row.name, row.time - spans[0].time, row.took) for row in spans] == [
        ("training_loop", 0, 8.5),
        (ITERATION, 0, 1),
        (ITERATION, 1, 3),
        (ITERATION, 4.5, 3),
    ]


def test_word_of_checkpoints_in_any_order_and_of_failures_by_callback(tmp_path: Path) -> None:
    """Steps 2, 4, 6 are saved in the background; 4 fails, 6 is complete before 2, which is reported late."""
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "0").write_bytes(bytes(70))
    (folder / "1").write_bytes(bytes(30))
    config: dict[str, Any] = {
        "global_batch_size_or_fn": 5,
        "save_checkpoint_strategy": "async",
        "log_every_n_train_iterations": 100,
    }
    with job(**config) as (clock, run), application():
        with training_loop():
            for step in (2, 4, 6):
                for _ in range(2):
                    with training_iteration():
                        clock.advance(1)
                on_save_checkpoint_start(step, path=folder)
                clock.advance(0.25)
                on_save_checkpoint_end()
            # At 6.75
            on_save_checkpoint_failure(4, OSError("no space"))
            clock.advance(1)
        with checkpoint_save_finalization():
            clock.advance(1)
            on_save_checkpoint_success(6)
        # At 8.75
        on_save_checkpoint_success(2, clock.msec - 500, path=folder / "1")
        on_save_checkpoint_start(6, strategy="sync")
        on_save_checkpoint_failure(6, "quota")
        clock.advance(2)
        on_save_checkpoint_end()
    found = inside(run)
    # 2 s of iterations and 0.25 s of saving, three times
    assert [(row.name, row.time, row.took) for row in found if row.name.startswith("check")] == [
        ("checkpoint_save_async", 2, 0.25),
        ("checkpoint_save_async", 4.25, 0.25),
        ("checkpoint_save_async", 6.5, 0.25),
        ("checkpoint_save_finalization", 7.75, 1),
        ("checkpoint_save_sync", 8.75, 2),
    ]
    by_span: dict[tuple[str, int], list[Row]] = {}
    for row in found:
        if row.took is not None:
            current = by_span.setdefault((row.name, int(row.time)), [])
        else:
            current.append(row)
    safe = {
        "checkpoint_strategy": "async",
        "training_start_timestamp_sec": at(0),
        "productive_train_iterations": 6,
        "productive_train_samples": 30,
        "productive_train_iterations_sec": 6.0,
        "productive_validation_iterations_sec": 0.0,
    }
    early = event(
        3,
        "save_checkpoint_success",
        8.25,
        {
            **safe,
            "current_iteration": 2,
            "save_checkpoint_success_count": 2,
            # It was complete before the other, of which word came first.
            "first_successful_save_checkpoint_timestamp_sec": at(8.25),
            "latest_successful_save_checkpoint_timestamp_sec": at(8.75),
            "checkpoint_size": 30,
            "checkpoint_directory": str(folder),
            "is_late": True,
        },
    )
    newest = event(
        3,
        "save_checkpoint_success",
        8.75,
        {
            **safe,
            "current_iteration": 6,
            "save_checkpoint_success_count": 1,
            "first_successful_save_checkpoint_timestamp_sec": at(8.75),
            "latest_successful_save_checkpoint_timestamp_sec": at(8.75),
            "checkpoint_size": 100,
            "checkpoint_directory": str(folder),
        },
    )
    failure = event(
        3,
        "save_checkpoint_failure",
        6.75,
        {
            "checkpoint_strategy": "async",
            "current_iteration": 4,
            "save_checkpoint_failure_count": 1,
            "error_message": "no space",
            "exception_type": "OSError",
            "exception_message": "no space",
        },
    )
    told = event(
        2,
        "save_checkpoint_failure",
        8.75,
        {
            "checkpoint_strategy": "sync",
            "current_iteration": 6,
            "save_checkpoint_failure_count": 2,
            "error_message": "quota",
        },
    )

    def waited(depth: int, time: float, count: int, each: float) -> Row:
        return event(
            depth,
            "sync_checkpoint_metrics_update",
            time,
            {
                "save_checkpoint_count": count,
                "save_checkpoint_sync_time_total_sec": count * each,
                "save_checkpoint_sync_time_avg_sec": each,
                "save_checkpoint_sync_time_min_sec": each,
                "save_checkpoint_sync_time_max_sec": each,
            },
        )

    expected = {
        ("checkpoint_save_async", 2): [waited(3, 2.25, 1, 0.25), early],
        ("checkpoint_save_async", 4): [waited(3, 4.5, 2, 0.25), failure],
        ("checkpoint_save_async", 6): [waited(3, 6.75, 3, 0.25), newest],
        ("checkpoint_save_finalization", 7): [],
        ("checkpoint_save_sync", 8): [told, waited(2, 10.75, 1, 2.0)],
    }
    for place, left in expected.items():
        assert_rows(by_span[place], left)


def test_a_checkpoint_of_training_that_began_anew_is_not_late() -> None:
    """It holds less than the one before, but none that is newer had succeeded."""
    with job(global_batch_size_or_fn=1) as (clock, run), application():
        for count in (3, 1):
            with training_loop():
                for _ in range(count):
                    with training_iteration():
                        clock.advance(1)
            with checkpoint_save(count):
                clock.advance(1)
    found = updates(run, "save_checkpoint_success")
    assert [it["productive_train_iterations"] for it in found] == [3, 3]
    assert ["is_late" in it for it in found] == [False, False]


def test_samples_before_a_resumed_loop_that_nobody_knows_are_not_taken_for_none() -> None:
    """From iteration 7 on, with given sizes but no batch size: the total is unknown."""
    config: dict[str, Any] = {
        "flops_per_sample_or_fn": 10**12,
        "is_log_throughput_enabled_or_fn": True,
    }
    with job(**config) as (clock, run), application(), training_loop(7):
        with training_iteration(samples=3):
            clock.advance(1)
        with checkpoint_save(8):
            clock.advance(1)
    [update] = updates(run)
    assert update["num_train_samples"] == 3
    assert update["total_flops"] == 3 * 10**12
    assert "completed_floating_point_operations_overall" not in update
    [success] = updates(run, "save_checkpoint_success")
    assert_attributes(
        success,
        {
            "checkpoint_strategy": "sync",
            "current_iteration": 8,
            "save_checkpoint_success_count": 1,
            "first_successful_save_checkpoint_timestamp_sec": at(2),
            "latest_successful_save_checkpoint_timestamp_sec": at(2),
            "training_start_timestamp_sec": at(0),
            "productive_train_iterations": 8,
            "productive_train_iterations_sec": 1.0,
            "productive_validation_iterations_sec": 0.0,
        },
    )


def run_everything(clock: FakeClock) -> None:
    """Two iterations, two batches of validation, one of testing, one checkpoint."""
    with application(), training_loop():
        for _ in range(2):
            with data_loading():
                clock.advance(0.5)
            with training_iteration():
                clock.advance(1)
        with validation_loop():
            for _ in range(2):
                with validation_iteration():
                    clock.advance(1)
        with training.testing_loop(), training.testing_iteration():
            clock.advance(1)
        with checkpoint_save(2):
            clock.advance(1)


ALL = {
    ITERATION: 2,
    "validation_single_iteration": 2,
    "testing_single_iteration": 1,
    "checkpoint_save_sync": 1,
    "training_metrics_update": 1,
    "validation_metrics_update": 1,
    "testing_metrics_update": 1,
    "save_checkpoint_success": 1,
    "sync_checkpoint_metrics_update": 1,
    "application": 1,
    "one_logger_initialization": 1,
    "update_training_telemetry_config": 1,
    "training_loop": 1,
    "data_loading": 2,
    "validation_loop": 1,
    "testing_loop": 1,
}
SWITCHES = {
    "is_train_iterations_enabled": (ITERATION, "training_metrics_update"),
    "is_validation_iterations_enabled": ("validation_single_iteration",),
    "is_test_iterations_enabled": ("testing_single_iteration",),
    "is_save_checkpoint_enabled": (
        "checkpoint_save_sync",
        "save_checkpoint_success",
        "sync_checkpoint_metrics_update",
    ),
}


@pytest.mark.parametrize("switch", [None, *SWITCHES])
@pytest.mark.parametrize("as_function", [False, True])
def test_what_is_switched_off_is_not_recorded_and_the_rest_stays(
    switch: str | None, as_function: bool
) -> None:
    """The remaining records have the right counts; times of unrecorded parts are unknown."""
    config: dict[str, Any] = {"global_batch_size_or_fn": 4}
    if switch is not None:
        config[f"{switch}_or_fn"] = (lambda: False) if as_function else False
    with job(**config) as (clock, run):
        run_everything(clock)
    counts: dict[str, int] = {}
    for row in rows(run):
        counts[row.name] = counts.get(row.name, 0) + 1
    off = SWITCHES[switch] if switch else ()
    assert counts == {name: count for name, count in ALL.items() if name not in off}
    [told] = updates(run, "update_training_telemetry_config")
    assert [name for name in SWITCHES if not told[name]] == ([switch] if switch else [])
    [validation] = updates(run, "validation_metrics_update")
    assert (validation["current_iteration"], validation["interval"]) == (1, 2)
    assert validation["num_iterations"] == 2
    assert ("avg_iteration_time_sec" in validation) == (
        switch != "is_validation_iterations_enabled"
    )
    for success in updates(run, "save_checkpoint_success"):
        assert success["productive_train_iterations"] == 2
        assert success["productive_train_samples"] == 8
