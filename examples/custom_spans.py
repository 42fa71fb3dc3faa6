"""Your own spans, attributes and events next to the standard ones, and an export filter.

Run it with ``python examples/custom_spans.py``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tiny_model import loss_of, make_loader, make_model

import stepwell
from stepwell.exporters import ExportMode, FileExporter
from stepwell.telemetry import Attributes, Event, timed_span
from stepwell.training import (
    StandardTrainingJobSpanName,
    TrainingTelemetryBuilder,
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    application,
    training_iteration,
    training_loop,
)

config = TrainingTelemetryConfig(
    application_name="plane",
    session_tag_or_fn="example",
    perf_tag_or_fn="two-layers",
    log_every_n_train_iterations=10,
)


def main() -> None:
    (
        TrainingTelemetryBuilder()
        .with_base_config(config)
        .with_exporter(FileExporter(file_path=Path("training_telemetry.json")))
        # Only these spans are exported. The run folder has all spans.
        .with_export_customization(
            export_customization_mode=ExportMode.ALLOW_LIST,
            span_name_filter=[StandardTrainingJobSpanName.TRAINING_LOOP, "my_custom_span"],
        )
        .configure_provider()
    )
    # Configuring again adds exporters and keeps the existing ones.
    TrainingTelemetryProvider.instance().configure(config=config, exporters=[])

    with application():
        train()


def train() -> None:
    recorder = TrainingTelemetryProvider.instance().recorder
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with training_loop(train_iterations_start=0) as span:
        span.add_attribute("my_custom_attribute", "my_custom_value")
        for inputs, targets in make_loader():
            with training_iteration():
                loss = loss_of(model, inputs, targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with timed_span("my_custom_span", span_attributes=Attributes({"kind": "norm"})) as inner:
            norm = sum(weight.detach().norm().item() for weight in model.parameters())
            inner.add_attribute("norm", norm)
            recorder.event(Event.create("weights_measured", Attributes({"norm": norm})))


if __name__ == "__main__":
    main()

    run = TrainingTelemetryProvider.instance().run
    assert run is not None
    run.finish()
    recorded = stepwell.open_run(run.path)
    print(f"The run is in {run.path}, the exported records are in training_telemetry.json.")
    print(recorded.spans().collect().select("name", "parent", "duration_ns", "attributes"))
