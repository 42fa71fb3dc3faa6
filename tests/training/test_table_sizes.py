"""Samples, tokens, operations, accumulated gradients, percentiles and the loss, computed by hand."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

import stepwell
from stepwell.testing import FakeClock
from stepwell.training import application, training_iteration, training_loop
from tests.training.table import assert_attributes, at, columns, job, rows, updates

WORK = re.compile("flop|gpu|floating")


def iterate(clock: FakeClock, seconds: float = 1, **sizes: Any) -> None:
    """An iteration of this length."""
    with training_iteration(**sizes):
        clock.advance(seconds)


def test_a_batch_size_that_changes_is_asked_for_each_iteration() -> None:
    """With an update for each of three iterations, the first one too, and none left for the end."""
    size = {"now": 4}
    config: dict[str, Any] = {
        "global_batch_size_or_fn": lambda: size["now"],
        "seq_length_or_fn": 10,
        "log_every_n_train_iterations": 1,
    }
    with job(**config) as (clock, run), application(), training_loop():
        for seconds, samples in ((1, 4), (2, 8), (1, 2)):
            size["now"] = samples
            iterate(clock, seconds)
    expected = columns(
        {
            "train_iterations_start": (0, 0, 0),
            "train_samples_start": (0, 0, 0),
            "current_iteration": (0, 1, 2),
            "num_iterations": (1, 2, 3),
            "num_train_samples": (4, 12, 14),
            "interval": (1, 1, 1),
            "is_final": (False, False, False),
            "total_iteration_time_sec": (1.0, 3.0, 4.0),
            "avg_iteration_time_sec": (1.0, 1.5, 4 / 3),
            "min_iteration_time_sec": (1.0, 1.0, 1.0),
            "max_iteration_time_sec": (1.0, 2.0, 2.0),
            "avg_between_iterations_time_sec": (None, 0.0, 0.0),
            "first_logged_train_iterations_finish_timestamp_sec": (at(1), at(1), at(1)),
            "last_logged_train_iterations_finish_timestamp_sec": (at(1), at(3), at(4)),
            "train_tokens": (40, 120, 140),
            # 12/2, 14/3
            "avg_batch_size": (4, 6, 14 / 3),
            # 12/3, 14/4
            "avg_samples_per_second": (4.0, 4.0, 3.5),
            "avg_tokens_per_second": (40.0, 40.0, 35.0),
            "window_iterations": (1, 1, 1),
            "window_avg_iteration_time_sec": (1.0, 2.0, 1.0),
            "window_p50_iteration_time_sec": (1.0, 2.0, 1.0),
            "window_p95_iteration_time_sec": (1.0, 2.0, 1.0),
            "window_max_iteration_time_sec": (1.0, 2.0, 1.0),
            "window_avg_between_iterations_time_sec": (None, 0.0, 0.0),
            "window_max_between_iterations_time_sec": (None, 0.0, 0.0),
            # 4/1, 8/2, 2/1
            "window_samples_per_second": (4.0, 4.0, 2.0),
            "window_tokens_per_second": (40.0, 40.0, 20.0),
        }
    )
    found = updates(run)
    assert len(found) == 3
    for left, right in zip(found, expected, strict=True):
        assert_attributes(left, right)


def test_work_that_changes_counts_for_the_iteration_that_it_is_of() -> None:
    """1, 3 and 2 TFLOP in a second each, on one rank; before the loop there were 2 samples of 1."""
    work = {"now": 1e12}
    config: dict[str, Any] = {
        "global_batch_size_or_fn": 1,
        "flops_per_sample_or_fn": lambda: work["now"],
        "is_log_throughput_enabled_or_fn": True,
        "log_every_n_train_iterations": 5,
    }
    with job(**config) as (clock, run), application(), training_loop(2):
        for operations in (1e12, 3e12, 2e12):
            work["now"] = operations
            iterate(clock)
    [loop] = [row for row in rows(run) if row.name == "training_loop"]
    [found] = updates(run)
    assert loop.attributes["completed_floating_point_operations_overall"] == 2 * 10**12
    assert {name: value for name, value in found.items() if WORK.search(name)} == {
        "total_flops": 6 * 10**12,
        "completed_floating_point_operations_overall": 8 * 10**12,
        "avg_tflops": 2.0,
        "train_throughput_per_gpu": 2.0,
        "train_throughput_per_gpu_max": 3.0,
        "train_throughput_per_gpu_min": 1.0,
        "window_throughput_per_gpu": 2.0,
    }


def test_samples_and_tokens_that_are_told_count_instead_of_the_configured_ones() -> None:
    """4 samples of 10 tokens and 1 TFLOP are usual; 0 that is told is 0. The next loop goes on from there."""
    config: dict[str, Any] = {
        "global_batch_size_or_fn": 4,
        "seq_length_or_fn": 10,
        "flops_per_sample_or_fn": 10**12,
        "is_log_throughput_enabled_or_fn": True,
        "log_every_n_train_iterations": 5,
    }
    with job(**config) as (clock, run), application():
        with training_loop():
            iterate(clock)
            iterate(clock, samples=6)
            iterate(clock, tokens=25)
            iterate(clock, samples=2, tokens=5)
            iterate(clock, samples=0)
        with training_loop(5):
            iterate(clock, 2)
    loops = [row.attributes for row in rows(run) if row.name == "training_loop"]
    first, second = updates(run)
    assert_attributes(
        first,
        {
            "train_iterations_start": 0,
            "train_samples_start": 0,
            "current_iteration": 4,
            "num_iterations": 5,
            "num_train_samples": 16,  # 4 + 6 + 4 + 2 + 0
            "interval": 5,
            "is_final": False,
            "total_iteration_time_sec": 5.0,
            "avg_iteration_time_sec": 1.0,
            "min_iteration_time_sec": 1.0,
            "max_iteration_time_sec": 1.0,
            "avg_between_iterations_time_sec": 0.0,
            "first_logged_train_iterations_finish_timestamp_sec": at(1),
            "last_logged_train_iterations_finish_timestamp_sec": at(5),
            "train_tokens": 130,  # 40 + 60 + 25 + 5 + 0
            "avg_batch_size": 3.2,
            "avg_samples_per_second": 3.2,
            "avg_tokens_per_second": 26.0,
            "total_flops": 16 * 10**12,
            "completed_floating_point_operations_overall": 16 * 10**12,
            "avg_tflops": 3.2,
            "train_throughput_per_gpu": 3.2,
            "train_throughput_per_gpu_max": 6.0,
            "train_throughput_per_gpu_min": 0.0,
            "window_iterations": 5,
            "window_avg_iteration_time_sec": 1.0,
            "window_p50_iteration_time_sec": 1.0,
            "window_p95_iteration_time_sec": 1.0,
            "window_max_iteration_time_sec": 1.0,
            "window_avg_between_iterations_time_sec": 0.0,
            "window_max_between_iterations_time_sec": 0.0,
            "window_samples_per_second": 3.2,
            "window_tokens_per_second": 26.0,
            "window_throughput_per_gpu": 3.2,
        },
    )
    assert_attributes(
        loops[1],
        {
            "train_iterations_start": 5,
            "train_samples_start": 16,
            "completed_floating_point_operations_overall": 16 * 10**12,
        },
    )
    assert second["train_samples_start"] == 16
    assert second["completed_floating_point_operations_overall"] == 20 * 10**12
    assert second["train_throughput_per_gpu_min"] == 2.0


def test_passes_that_accumulate_gradients_make_up_one_iteration() -> None:
    """Their times and sizes add up; what is left over at the end came to no step, and counts as none."""
    config: dict[str, Any] = {
        "global_batch_size_or_fn": 8,
        "seq_length_or_fn": 10,
        "log_every_n_train_iterations": 2,
    }
    with job(**config) as (clock, run), application(), training_loop():
        iterate(clock, 1, optimizer_step=False)
        clock.advance(0.5)
        iterate(clock, 1, optimizer_step=False)
        clock.advance(0.5)
        iterate(clock, 2)
        iterate(clock, 1, samples=3, optimizer_step=False)
        iterate(clock, 1, samples=5, tokens=70)
        clock.advance(1)
        iterate(clock, 1, samples=2, optimizer_step=False)
        clock.advance(2)
    expected = {
        "train_iterations_start": 0,
        "train_samples_start": 0,
        "current_iteration": 1,
        "num_iterations": 2,
        # None was told for the first iteration: 8. Then 3 + 5.
        "num_train_samples": 16,
        "interval": 2,
        "is_final": False,
        # 1 + 1 + 2, 1 + 1
        "total_iteration_time_sec": 6.0,
        "avg_iteration_time_sec": 3.0,
        "min_iteration_time_sec": 2.0,
        "max_iteration_time_sec": 4.0,
        # 0.5, 0.5, 0, 0 between one pass and the next
        "avg_between_iterations_time_sec": 0.25,
        "first_logged_train_iterations_finish_timestamp_sec": at(5),
        "last_logged_train_iterations_finish_timestamp_sec": at(7),
        # 80 + 3 * 10 + 70
        "train_tokens": 180,
        "avg_batch_size": 8,
        # In 7 s, pauses included
        "avg_samples_per_second": 16 / 7,
        "avg_tokens_per_second": 180 / 7,
        "window_iterations": 2,
        "window_avg_iteration_time_sec": 3.0,
        "window_p50_iteration_time_sec": 2.0,
        "window_p95_iteration_time_sec": 4.0,
        "window_max_iteration_time_sec": 4.0,
        "window_avg_between_iterations_time_sec": 0.25,
        "window_max_between_iterations_time_sec": 0.5,
        "window_samples_per_second": 16 / 7,
        "window_tokens_per_second": 180 / 7,
    }
    [found] = updates(run)
    assert_attributes(found, expected)
    spans = run.spans().filter(name="training_single_iteration").sort("start_ns")
    assert spans["step"].to_list() == [0, 0, 0, 1, 1, 2]


def test_the_sizes_of_passes_are_not_lost_when_no_time_passes() -> None:
    """On a stopped clock too, three passes are one iteration."""
    with job(global_batch_size_or_fn=8) as (clock, run), application(), training_loop():
        iterate(clock, 0, samples=1, optimizer_step=False)
        iterate(clock, 0, samples=2, optimizer_step=False)
        iterate(clock, 0, samples=3)
        clock.advance(1)
    [found] = updates(run)
    assert (found["num_iterations"], found["num_train_samples"]) == (1, 6)
    assert "avg_samples_per_second" not in found


def test_percentiles_of_windows_of_thousands() -> None:
    """2000 iterations of 1, 2, … 2000 ms, the longest first; then 20 of 1 s and one of 3 s."""
    with (
        job(log_every_n_train_iterations=2000) as (clock, run),
        application(),
        training_loop(),
    ):
        for milliseconds in range(2000, 0, -1):
            iterate(clock, milliseconds / 1000)
        clock.advance(1)
        for seconds in [3, *[1] * 20]:
            iterate(clock, seconds)
    expected = columns(
        {
            "train_iterations_start": (0, 0),
            "current_iteration": (1999, 2020),
            "num_iterations": (2000, 2021),
            "interval": (2000, 21),
            "is_final": (False, True),
            # 2000 * 2001 / 2 ms
            "total_iteration_time_sec": (2001.0, 2024.0),
            "avg_iteration_time_sec": (1.0005, 2024 / 2021),
            "min_iteration_time_sec": (0.001, 0.001),
            "max_iteration_time_sec": (2.0, 3.0),
            # 1 s in all, between 2021 iterations
            "avg_between_iterations_time_sec": (0.0, 1 / 2020),
            "first_logged_train_iterations_finish_timestamp_sec": (at(2), at(2)),
            "last_logged_train_iterations_finish_timestamp_sec": (at(2001), at(2025)),
            "window_iterations": (2000, 21),
            "window_avg_iteration_time_sec": (1.0005, 23 / 21),
            # Rank 1000 of 2000, 11 of 21
            "window_p50_iteration_time_sec": (1.0, 1.0),
            # Rank 1900 of 2000, 20 of 21
            "window_p95_iteration_time_sec": (1.9, 1.0),
            "window_max_iteration_time_sec": (2.0, 3.0),
            "window_avg_between_iterations_time_sec": (0.0, 1 / 21),
            "window_max_between_iterations_time_sec": (0.0, 1.0),
        }
    )
    found = updates(run)
    assert len(found) == 2
    for left, right in zip(found, expected, strict=True):
        assert_attributes(left, right)


@pytest.mark.parametrize(
    ("metric", "logged", "expected"),
    [
        (None, {"loss": 0.5}, 0.5),
        (None, {"train_loss": 0.25}, 0.25),
        (None, {"train_loss": 0.25, "loss": 0.5}, 0.5),
        ("nll", {"loss": 0.5, "nll": 0.75}, 0.75),
        ("nll", {"loss": 0.5}, None),
        (None, {"loss": math.nan}, None),
        (None, {"accuracy": 0.5}, None),
    ],
)
def test_where_the_loss_comes_from(
    metric: str | None, logged: dict[str, float], expected: float | None
) -> None:
    """From the metric that is configured, else from loss or train_loss; the latest finite value."""
    with job(loss_metric=metric) as (_, run), application(), training_loop():
        with training_iteration():
            stepwell.log(dict.fromkeys(logged, 9.0))
        with training_iteration():
            stepwell.log(logged)
    [found] = updates(run)
    assert found.get("latest_loss") == expected


@pytest.mark.parametrize(
    "config",
    [
        {},
        # Throughput that is not wanted
        {"flops_per_sample_or_fn": 10**12},
        # and throughput without its source.
        {"is_log_throughput_enabled_or_fn": True},
    ],
)
def test_what_has_no_source_is_absent(config: dict[str, Any]) -> None:
    """No batch size, no sequence length, no loss, no parts, one iteration: only times are reported."""
    with job(**config) as (clock, run), application(), training_loop(7):
        iterate(clock, 2)
    found = rows(run)
    [loop] = [row for row in found if row.name == "training_loop"]
    assert_attributes(loop.attributes, {"train_iterations_start": 7})
    [update] = updates(run)
    assert_attributes(
        update,
        {
            "train_iterations_start": 7,
            "current_iteration": 7,
            "num_iterations": 1,
            "interval": 1,
            "is_final": True,
            "total_iteration_time_sec": 2.0,
            "avg_iteration_time_sec": 2.0,
            "min_iteration_time_sec": 2.0,
            "max_iteration_time_sec": 2.0,
            "first_logged_train_iterations_finish_timestamp_sec": at(2),
            "last_logged_train_iterations_finish_timestamp_sec": at(2),
            "window_iterations": 1,
            "window_avg_iteration_time_sec": 2.0,
            "window_p50_iteration_time_sec": 2.0,
            "window_p95_iteration_time_sec": 2.0,
            "window_max_iteration_time_sec": 2.0,
        },
    )
