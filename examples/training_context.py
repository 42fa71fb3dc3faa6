"""A training job with context managers around its parts.

Run it with ``python examples/training_context.py``: it trains for seconds and prints what it recorded.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tiny_model import EPOCHS, loss_of, make_loader, make_model

import stepwell
from stepwell.exporters import FileExporter
from stepwell.training import (
    TrainingTelemetryBuilder,
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    application,
    checkpoint_save,
    dataloader_init,
    model_init,
    optimizer_init,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
)


@application()
def main() -> None:
    with dataloader_init():
        dataloader = make_loader()
    with model_init():
        model = make_model()
    with optimizer_init():
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    step = 0
    with training_loop(train_iterations_start=0):
        for epoch in range(EPOCHS):
            for inputs, targets in dataloader:
                with training_iteration():
                    loss = loss_of(model, inputs, targets)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    stepwell.log({"loss": loss.item()})
                step += 1
            validate(model)
            # With a path, the size of the checkpoint is recorded too.
            path = Path(f"checkpoint-{epoch}.pt")
            with checkpoint_save(global_step=step, path=path):
                torch.save(model.state_dict(), path)


def validate(model: torch.nn.Module) -> None:
    with validation_loop(), torch.no_grad():
        for inputs, targets in make_loader(samples=64):
            with validation_iteration():
                loss_of(model, inputs, targets)


config = TrainingTelemetryConfig(
    application_name="plane",
    session_tag_or_fn="example",
    perf_tag_or_fn="two-layers",
    world_size_or_fn=1,
    global_batch_size_or_fn=32,
    is_log_throughput_enabled_or_fn=True,
    flops_per_sample_or_fn=1_000,
    log_every_n_train_iterations=10,
)

if __name__ == "__main__":
    (
        TrainingTelemetryBuilder()
        .with_base_config(config)
        .with_exporter(FileExporter(file_path=Path("training_telemetry.json")))
        .configure_provider()
    )
    main()

    run = TrainingTelemetryProvider.instance().run
    assert run is not None
    run.finish()
    recorded = stepwell.open_run(run.path)
    print(f"The run is in {run.path}, the exported records are in training_telemetry.json.")
    print(recorded.spans().collect()["name"].value_counts(sort=True))
