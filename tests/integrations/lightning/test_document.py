"""The document's full example runs with imports and undefined names filled in, with either package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepwell
from tests.harness import TRAINERS, environment, run_script
from tests.integrations.lightning.fits import Recorded

pytestmark = pytest.mark.torch

STEPS, EPOCH = 40, 32
"""32 batches of 32 make up the 1000 samples of the example."""

FILLED_IN = """
import os, warnings
from pathlib import Path
import torch
from PACKAGE import LightningModule, Trainer
from stepwell.compat.one_logger import (
    FileExporter,
    OneLoggerConfig,
    TrainingTelemetryConfig,
    TrainingTelemetryProvider,
    hook_trainer_cls,
)

train_iterations_target = 40
num_devices = 1
"""

EXAMPLE = """
class SimpleModel(LightningModule):
    def __init__(self, learning_rate=1e-3):
        super().__init__()
        self.learning_rate = learning_rate
        self.model = torch.nn.Sequential(
            torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1)
        )

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        loss = torch.nn.functional.mse_loss(y_hat, y)
        self.log('train_loss', loss)
        return loss

    def configure_optimizers(self):
        nv_one_logger_callback = trainer.nv_one_logger_callback
        nv_one_logger_callback.on_optimizer_init_start()
        optimizer = torch.optim.Adam(self.parameters(), lr=self.learning_rate)
        nv_one_logger_callback.on_optimizer_init_end()
        return optimizer


def main():
    global trainer
    base_config = OneLoggerConfig(
        application_name="test_app",
        session_tag_or_fn="test_session",
        world_size_or_fn=5,
    )
    training_config = TrainingTelemetryConfig(
        world_size_or_fn=5,
        is_log_throughput_enabled_or_fn=True,
        flops_per_sample_or_fn=100,
        global_batch_size_or_fn=32,
        log_every_n_train_iterations=10,
        perf_tag_or_fn="test_perf",
    )
    exporter = FileExporter(file_path=Path("training_telemetry.json"))
    TrainingTelemetryProvider.instance().with_base_config(base_config).with_exporter(
        exporter
    ).configure_provider()

    HOOK
    trainer = HookedTrainer(max_steps=train_iterations_target, devices=num_devices)
    nv_one_logger_callback = trainer.nv_one_logger_callback

    TrainingTelemetryProvider.instance().set_training_telemetry_config(training_config)

    nv_one_logger_callback.on_model_init_start()
    model = SimpleModel()
    nv_one_logger_callback.on_model_init_end()

    nv_one_logger_callback.on_load_checkpoint_start()
    if os.path.exists("pretrained.ckpt"):
        model = SimpleModel.load_from_checkpoint("pretrained.ckpt")
    nv_one_logger_callback.on_load_checkpoint_end()

    nv_one_logger_callback.on_dataloader_init_start()
    train_dataset = torch.utils.data.TensorDataset(torch.randn(1000, 10), torch.randn(1000, 1))
    train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=32, shuffle=True)
    nv_one_logger_callback.on_dataloader_init_end()

    trainer.fit(model, train_loader)
    END


if __name__ == "__main__":
    main()
"""
TAKEN = "HookedTrainer = hook_trainer_cls(Trainer, TrainingTelemetryProvider.instance())"
APART = TAKEN.replace("HookedTrainer", "HookedTrainer, callback", 1)
END = "nv_one_logger_callback.on_app_end()"


@pytest.mark.parametrize(
    ("package", "hook", "end"),
    [
        ("lightning.pytorch", TAKEN, END),
        pytest.param("pytorch_lightning", TAKEN, END, marks=pytest.mark.full),
        ("pytorch_lightning", APART, ""),
    ],
    ids=["lightning", "pytorch_lightning", "apart and without an end"],
)
def test_full_example(tmp_path: Path, package: str, hook: str, end: str) -> None:
    """Every span of the document's table that it reaches is there as often as it happened, in its place."""
    text = (FILLED_IN + EXAMPLE).replace("PACKAGE", package).replace("HOOK", hook)
    program = tmp_path / "program.py"
    program.write_text(text.replace("END", end or "pass"))
    env = environment(STEPWELL_STRICT="1", CUDA_VISIBLE_DEVICES="")
    run_script(program, cwd=tmp_path, env=env, check=True, timeout=300, modules=TRAINERS)
    (run,) = stepwell.list_runs(tmp_path / "runs")
    assert run.status == "finished"
    recorded = Recorded(run)
    assert recorded.edges == {
        ("application", None): 1,
        ("model_initialization", "application"): 1,
        ("checkpoint_load", "application"): 1,
        ("data_loader_initialization", "application"): 1,
        ("optimizer_initialization", "application"): 1,
        ("training_loop", "application"): 1,
        ("data_loading", "training_loop"): STEPS,
        ("training_single_iteration", "training_loop"): STEPS,
        ("model_forward", "training_single_iteration"): STEPS,
        ("model_backward", "training_single_iteration"): STEPS,
        ("optimizer_update", "training_single_iteration"): STEPS,
        ("diagnostics", "training_single_iteration"): 1,
        # The trainer's own: at the end of the first epoch, and of the last.
        ("checkpoint_save_sync", "training_loop"): 2,
    }
    recorded.check_fit(STEPS)
    assert recorded.open() == recorded.failed() == []
    setting_up = ["model_initialization", "checkpoint_load", "data_loader_initialization"]
    setting_up += ["optimizer_initialization", "training_loop"]
    assert recorded.order("application", *setting_up) == ["application", *setting_up]
    (loop,) = recorded.attributes("training_loop")
    assert loop["train_iterations_target"] == STEPS
    assert loop["train_samples_target"] == 32 * STEPS
    updates = recorded.attributes_of("training_metrics_update")
    assert [update["current_iteration"] for update in updates] == [9, 19, 29, 39]
    assert updates[-1]["num_train_samples"] == 32 * STEPS
    assert updates[-1]["total_flops"] == 100 * 32 * STEPS
    saved = [
        success["current_iteration"]
        for success in recorded.attributes_of("save_checkpoint_success")
    ]
    assert saved == [EPOCH, STEPS]
    assert len(recorded.attributes_of("update_training_telemetry_config")) == 1
    lines = (tmp_path / "training_telemetry.json").read_text().splitlines()
    exported = [json.loads(line) for line in lines]
    names = [line["name"] for line in exported if line["type"] in ("stop", "complete")]
    assert sorted(names) == sorted(["application", *setting_up, *["checkpoint_save_sync"] * 2])
