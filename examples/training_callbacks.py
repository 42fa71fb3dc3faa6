"""A training job that uses callbacks, as a framework with hooks would.

Run it with ``python examples/training_callbacks.py``. It does not call ``on_train_end``: the end of the
application also ends the loop and reports its last iterations.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tiny_model import EPOCHS, loss_of, make_loader, make_model

import stepwell
from stepwell.exporters import FileExporter
from stepwell.training import (
    TrainingTelemetryBuilder,
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    on_app_end,
    on_app_start,
    on_model_init_end,
    on_model_init_start,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
)

config = TrainingTelemetryConfig(
    application_name="plane",
    session_tag_or_fn="example",
    perf_tag_or_fn="two-layers",
    global_batch_size_or_fn=32,
    log_every_n_train_iterations=10,
)


def main() -> None:
    (
        TrainingTelemetryBuilder()
        .with_base_config(config)
        .with_exporter(FileExporter(file_path=Path("training_telemetry.json")))
        .configure_provider()
    )
    on_app_start()

    dataloader = make_loader()
    on_model_init_start()
    model = make_model()
    on_model_init_end()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    on_train_start(train_iterations_start=0)
    for _ in range(EPOCHS):
        for inputs, targets in dataloader:
            on_training_single_iteration_start()
            loss = loss_of(model, inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stepwell.log({"loss": loss.item()})
            on_training_single_iteration_end()

    on_app_end()


if __name__ == "__main__":
    main()

    run = TrainingTelemetryProvider.instance().run
    assert run is not None
    run.finish()
    recorded = stepwell.open_run(run.path)
    print(f"The run is in {run.path}, the exported records are in training_telemetry.json.")
    events = recorded.events().collect()
    for name, text in events.select("name", "attributes").iter_rows():
        about = json.loads(text)
        if name == "training_metrics_update":
            took = 1000 * about["window_avg_iteration_time_sec"]
            print(
                f"iteration {about['current_iteration']}: {took:.2f} ms, loss {about['latest_loss']:.3f}"
            )
