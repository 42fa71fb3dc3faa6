"""All rows with their targets, which are those of the design."""

from __future__ import annotations

from benchmarks import (
    analysis,
    annotations,
    background,
    diagnostics,
    disabled,
    growth,
    importing,
    loggers,
    scalars,
    spans,
    training,
    watching,
)
from benchmarks.peers import scalars as scalar_peers
from benchmarks.peers import spans as span_peers
from benchmarks.peers import trees as tree_peers
from benchmarks.row import Row

ONE_CORE = (("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1"))
DFTRACER = (("DFTRACER_ENABLE", "1"), ("DFTRACER_INC_METADATA", "1"))

ROWS = (
    Row("reused", "reused span", spans.reused, 2.5),
    Row("named", 'span("name")', spans.named, 3.2),
    Row("attributes", 'span("name", a=…, b=…)', spans.attributes, 5.5),
    Row("task", "span in an asyncio task", spans.in_task, 7.0),
    Row("scalar", "log one scalar", scalars.one, 2.2),
    Row("scalar-step", "log one scalar, step=…", scalars.one_with_step),
    Row("scalar-bare", "log one scalar, no step set", scalars.one_without_step),
    Row("scalars", "log ten scalars at once", scalars.ten, 8.0),
    Row("iteration", "training_iteration(), throughput on", training.iteration, 8.0),
    Row("iteration-calls", "training iteration by callbacks", training.callbacks),
    Row("forward", "model_forward()", training.forward),
    Row("off-iteration", "disabled: training_iteration()", training.disabled, 1.0),
    Row("iteration-drift", "iteration: millionth : thousandth", training.drift, 1.2),
    Row("ai", "with ai.compute.forward", annotations.bare, 2.5),
    Row("ai-call", "@ai.compute.forward, a call", annotations.decorated, 3.0),
    Row("ai-args", "with ai.compute.forward(args=…)", annotations.arguments, 5.5),
    Row("ai-update", "ai….update(3 values) and with", annotations.update, 5.5),
    Row("ai-iter", "ai….iter, an item (two spans)", annotations.iterate, 6.0),
    Row("off-ai", "disabled: with ai.compute.forward", annotations.bare_off, 0.6),
    Row("off-ai-iter", "disabled: ai….iter, an item", annotations.iterate_off, 0.01),
    Row("off-reused", "disabled: reused span", disabled.reused, 0.6),
    Row("off-named", 'disabled: span("name")', disabled.named, 0.6),
    Row("off-attributes", 'disabled: span("name", a=…, b=…)', disabled.attributes, 1.0),
    Row("off-log", "disabled: log one scalar", disabled.log, 0.6),
    Row("loggers", "logger.log(), MLflow + TensorBoard + W&B", loggers.three, 8.0),
    Row("loggers-keywords", "the same, all arguments by keyword", loggers.keywords, 8.0),
    Row("loggers-bare", "the same, neither step nor batch_idx", loggers.bare, 8.0),
    Row("loggers-each", "the same, log_freq 1, 10 and 100", loggers.each_its_own, 8.0),
    Row("loggers-rare", "the same, log_freq=100 for all", loggers.rare, 8.0),
    Row(
        "loggers-loop",
        "a loop of 1.5 ms steps, ten values each to all three",
        loggers.loop,
        3.0,
        "%",
        environment=ONE_CORE,
    ),
    Row("annotate", "annotate(): steps of 1 ms, added", watching.annotated, None, "%"),
    Row("watch", "watch(): steps of 1 ms, added", watching.watched, 2.0, "%"),
    Row("pump", "background CPU per span", background.pump_cpu, 0.6),
    Row("bytes", "sealed, per span of a tight loop", background.bytes_tight, 10.0, "B"),
    Row("bytes-matmul", "sealed, per span of a matmul loop", background.bytes_matmul, 10.0, "B"),
    Row(
        "bytes-dftracer",
        "run folder : dftracer's packed trace",
        tree_peers.size,
        1.2,
        environment=DFTRACER,
    ),
    Row("memory", "growth of resident memory", growth.memory, 20.0, "MB"),
    Row("drift", "cost at the end : at the start", growth.cost, 1.2),
    Row("import", "import stepwell, CPU", importing.cpu, 60.0, "ms"),
    Row("report", "report : group-by rank, step, name", analysis.against_group_by, 4.0),
    Row("report-quantiles", "the same, with quantiles", analysis.against_quantiles, 4.0),
    Row("report-names", "report : group-by rank, name", analysis.against_names),
    Row("report-memory", "report: resident memory at its peak", analysis.memory, 2.0, "GB"),
    Row("report-pandas", "report : pandas, an event", analysis.against_pandas, 0.125),
    Row(
        "report-dfanalyzer",
        "report : dftracer-analyzer, an event",
        analysis.against_dftracer_analyzer,
        0.05,
    ),
    Row("gradients-25m", "gradient norms : _foreach_norm, 25 M", diagnostics.gradients_25m, 1.5),
    Row("gradients-125m", "gradient norms : _foreach_norm, 125 M", diagnostics.gradients_125m, 1.5),
    Row("weights-25m", "weight delta : save, load, subtract, 25 M", diagnostics.weights_25m, 0.5),
    Row(
        "weights-125m", "weight delta : save, load, subtract, 125 M", diagnostics.weights_125m, 0.5
    ),
    Row("weights-sample", "weight delta: sample : copy, 25 M", diagnostics.sample_25m),
    Row("weights-memory-25m", "weight delta: memory, 25 M", diagnostics.memory_25m, 10.0, "%"),
    Row("weights-memory-125m", "weight delta: memory, 125 M", diagnostics.memory_125m, 10.0, "%"),
    Row("collecting-25m", "collection, of 200 steps, 25 M", diagnostics.training_25m, 0.5, "%"),
    Row("collecting-125m", "collection, of 200 steps, 125 M", diagnostics.training_125m, 0.5, "%"),
)

PEERS = (
    Row(
        "dftracer",
        "dftracer",
        span_peers.dftracer,
        6.0,
        like="reused",
        environment=DFTRACER,
    ),
    Row(
        "dftracer-call",
        "dftracer, a decorated call",
        tree_peers.decorated,
        5.0,
        like="ai-call",
        environment=DFTRACER,
    ),
    Row(
        "dftracer-args",
        "dftracer, with args",
        tree_peers.arguments,
        5.0,
        like="ai-args",
        environment=DFTRACER,
    ),
    Row(
        "dftracer-update",
        "dftracer, update and with",
        tree_peers.update,
        5.0,
        like="ai-update",
        environment=DFTRACER,
    ),
    Row(
        "dftracer-iter",
        "dftracer, iter, an item",
        tree_peers.iterate,
        5.0,
        like="ai-iter",
        environment=DFTRACER,
    ),
    Row(
        "opentelemetry",
        "OpenTelemetry SDK",
        span_peers.opentelemetry,
        15.0,
        like="named",
    ),
    Row("one-logger", "nv-one-logger", span_peers.one_logger, like="named"),
    Row(
        "one-logger-iteration",
        "nv-one-logger, iteration",
        span_peers.one_logger_iteration,
        15.0,
        like="iteration",
    ),
    Row("trackio", "trackio", scalar_peers.trackio, 8.0, like="scalar-step"),
    Row("wandb", "W&B, offline", scalar_peers.wandb, like="scalar-step"),
    Row("tensorboard", "TensorBoard", scalar_peers.tensorboard, like="scalar-step"),
    Row("mlflow", "MLflow, SQLite", scalar_peers.mlflow, like="scalar-step"),
)

EVERYTHING = {row.name: row for row in ROWS + PEERS}
