"""A user's configuration. Type checkers see the fields and the types of what is read from them."""

from __future__ import annotations

from typing_extensions import assert_type

from stepwell.training.attributes import TrainingLoopAttributes, TrainingMetricsUpdateAttributes
from stepwell.training.config import ApplicationConfig, CheckPointStrategy, TrainingTelemetryConfig
from stepwell.training.resolved_config import merged
from stepwell.vocabulary import StandardTrainingJobSpanName


def batch() -> int:
    return 32


config = TrainingTelemetryConfig(
    application_name="app",
    world_size_or_fn=5,
    is_log_throughput_enabled_or_fn=lambda: True,
    flops_per_sample_or_fn=6e9,
    global_batch_size_or_fn=batch,
    perf_tag_or_fn=["a", "b"],
    save_checkpoint_strategy=CheckPointStrategy.ASYNC,
    custom_metadata={"a": 1},
)
assert_type(config.global_batch_size, "int | None")
assert_type(config.is_log_throughput_enabled, bool)
assert_type(config.session_tag, "str | None")
assert_type(config.perf_tag, "str | list[str] | None")
base = ApplicationConfig(session_tag_or_fn=lambda: "s", telemetry_config=config)
resolved = merged(base, None, [{"world_size": 8}])
assert_type(resolved.world_size, "int | None")

loop = TrainingLoopAttributes.create(train_iterations_start=0)
assert_type(loop, TrainingLoopAttributes)
assert_type(loop.train_iterations_start, int)
assert_type(loop.train_samples_start, "int | None")


def read(update: TrainingMetricsUpdateAttributes) -> None:
    assert_type(update.avg_iteration_time_sec, float)
    assert_type(update.latest_loss, "float | None")
    assert_type(update.is_final, bool)


name: str = StandardTrainingJobSpanName.MODEL_FORWARD


def wrong() -> None:
    TrainingTelemetryConfig(wrld_size_or_fn=5)  # type: ignore[call-arg]
    TrainingTelemetryConfig(world_size_or_fn="5")  # type: ignore[arg-type]
    ApplicationConfig("app")  # type: ignore[call-arg]
    _ = loop.train_sample_start  # type: ignore[attr-defined]
    config.strict = True  # type: ignore[misc]
