"""Tools that record spans: a node of dftracer that is used again, the others by name."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.floor import SPANS, Measured, compare
from benchmarks.peers import checked
from benchmarks.row import Effort


def dftracer(effort: Effort) -> Measured:
    from dftracer.python import ai
    from dftracer.python import dftracer as tracer

    log = tracer.initialize_log(logfile=str(Path("trace").absolute()), data_dir="data")

    def block(count: int) -> None:
        for _ in range(count):
            with ai.compute.forward:
                pass

    count = SPANS // 10
    measured = compare(block, rounds=effort.rounds, count=count)
    log.finalize()
    lines = [line for file in Path.cwd().glob("*.gz") for line in gzip.open(file, "rt")]
    found = sum('"forward"' in line for line in lines)
    return checked(measured, "spans", found, count * (effort.rounds + 1))


def opentelemetry(effort: Effort) -> Measured:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )

    class CountingExporter(SpanExporter):
        """Takes the spans and keeps none: the cheapest backend there could be."""

        count = 0

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            self.count += len(spans)
            return SpanExportResult.SUCCESS

    count = SPANS // 20
    exporter = CountingExporter()
    # The default queue of 2048 spans would drop most of a block.
    processor = BatchSpanProcessor(exporter, max_queue_size=4 * count)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("bench")

    def block(count: int) -> None:
        for _ in range(count):
            with tracer.start_as_current_span("forward"):
                pass

    measured = compare(block, rounds=effort.rounds, count=count, between=provider.force_flush)
    provider.shutdown()
    return checked(measured, "spans", exporter.count, count * (effort.rounds + 1))


def one_logger(effort: Effort) -> Measured:
    from nv_one_logger.api.config import OneLoggerConfig
    from nv_one_logger.api.one_logger_provider import OneLoggerProvider
    from nv_one_logger.api.timed_span import timed_span
    from nv_one_logger.exporter.file_exporter import FileExporter
    from nv_one_logger.recorder.default_recorder import DefaultRecorder

    file = Path("spans.jsonl")
    config = OneLoggerConfig(
        application_name="bench", session_tag_or_fn="bench", world_size_or_fn=1
    )
    provider: Any = OneLoggerProvider.instance()
    provider.configure(config, DefaultRecorder([FileExporter(file)]))

    def block(count: int) -> None:
        for _ in range(count):
            with timed_span("forward"):
                pass

    count = SPANS // 100
    measured = compare(block, rounds=effort.rounds, count=count)
    provider.recorder.close()
    lines = len(file.read_text().splitlines())
    return checked(measured, "spans", lines, count * (effort.rounds + 1))


def one_logger_iteration(effort: Effort) -> Measured:
    """A training iteration with throughput on; its cost rises with every update of the loop."""
    from nv_one_logger.api.config import OneLoggerConfig
    from nv_one_logger.exporter.file_exporter import FileExporter
    from nv_one_logger.training_telemetry.api.callbacks import on_app_start, on_train_start
    from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
    from nv_one_logger.training_telemetry.api.context import training_iteration
    from nv_one_logger.training_telemetry.api.training_telemetry_provider import (
        TrainingTelemetryProvider,
    )

    training = TrainingTelemetryConfig(
        perf_tag_or_fn="bench",
        global_batch_size_or_fn=32,
        seq_length_or_fn=128,
        flops_per_sample_or_fn=10**9,
        is_log_throughput_enabled_or_fn=True,
        train_iterations_target_or_fn=10**9,
        train_samples_target_or_fn=10**9,
        log_every_n_train_iterations=50,
    )
    config = OneLoggerConfig(
        application_name="bench",
        session_tag_or_fn="bench",
        world_size_or_fn=1,
        telemetry_config=training,
    )
    provider: Any = TrainingTelemetryProvider.instance()
    exporter = FileExporter(Path("spans.jsonl"))
    provider.with_base_config(config).with_exporter(exporter).configure_provider()
    on_app_start()
    on_train_start(train_iterations_start=0)

    def block(count: int) -> None:
        for _ in range(count):
            with training_iteration():
                pass

    return compare(block, rounds=effort.rounds, count=SPANS // 200)
