"""Training iterations: a span, a step and their counters."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import stepwell
from benchmarks.floor import Measured, compare, cpu_ns, floor_ns, summarize
from benchmarks.row import Effort
from stepwell.training import (
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    application,
    model_forward,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    training_iteration,
    training_loop,
)


def iteration(effort: Effort) -> Measured:
    with _training():
        return compare(_iterations, rounds=effort.rounds)


def callbacks(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for _ in range(count):
            on_training_single_iteration_start()
            on_training_single_iteration_end()

    with _training():
        return compare(block, rounds=effort.rounds)


def forward(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for _ in range(count):
            with model_forward():
                pass

    with _training():
        return compare(block, rounds=effort.rounds)


def disabled(effort: Effort) -> Measured:
    with _training(enable_for_current_rank=False):
        return compare(_iterations, rounds=effort.rounds)


def drift(effort: Effort) -> Measured:
    """Cost of the millionth iteration relative to the thousandth."""
    with _training():
        _iterations(1000)
        early = [_relative(1000) for _ in range(15)]
        _iterations(1_000_000)
        late = [_relative(1000) for _ in range(15)]
    return summarize([median(late) / median(early)], note="1 M")


def _relative(count: int) -> float:
    floor = floor_ns()
    return cpu_ns(_iterations, count) / floor


def _iterations(count: int) -> None:
    for _ in range(count):
        with training_iteration():
            pass


@contextmanager
def _training(**fields: bool) -> Iterator[None]:
    """Inside of a training loop with everything on that costs something for each iteration."""
    config = TrainingTelemetryConfig(
        application_name="bench",
        world_size_or_fn=1,
        global_batch_size_or_fn=32,
        seq_length_or_fn=128,
        flops_per_sample_or_fn=10**9,
        is_log_throughput_enabled_or_fn=True,
        log_every_n_train_iterations=50,
        **fields,
    )
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        os.environ["STEPWELL_DIR"] = folder
        provider = TrainingTelemetryProvider.instance()
        provider.configure(config=config)
        run = provider.run
        with application(), training_loop(train_iterations_start=0):
            yield
        provider.reset()
        if run is not None:
            dropped = stepwell.open_run(run.path).processes().collect()["dropped"].sum()
            if dropped:
                raise RuntimeError(f"the run lost {dropped} records")
