"""Configurations for tests, and the messages about wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepwell import StepwellError
from stepwell.training.config import TrainingTelemetryConfig

WHOLE = "must be a whole number of at least 1"
OR_FUNCTION = " (a function that returns one is also allowed)"

POSITIVE_FIELDS = [
    "world_size",
    "global_batch_size",
    "micro_batch_size",
    "seq_length",
    "flops_per_sample",
    "train_iterations_target",
    "train_samples_target",
]
FLAGS = [
    "is_baseline_run",
    "is_log_throughput_enabled",
    "is_train_iterations_enabled",
    "is_validation_iterations_enabled",
    "is_test_iterations_enabled",
    "is_save_checkpoint_enabled",
]


def of_the_document() -> TrainingTelemetryConfig:
    return TrainingTelemetryConfig(
        world_size_or_fn=5,
        is_log_throughput_enabled_or_fn=True,
        flops_per_sample_or_fn=100,
        global_batch_size_or_fn=32,
        log_every_n_train_iterations=10,
        application_name="test_app",
        perf_tag_or_fn="test_perf",
        session_tag_or_fn="test_session",
    )


def training(**fields: Any) -> TrainingTelemetryConfig:
    return TrainingTelemetryConfig(**fields)


def message(call: Callable[[], object]) -> str:
    """The message of the StepwellError of a call."""
    with pytest.raises(StepwellError) as refused:
        call()
    return str(refused.value)
