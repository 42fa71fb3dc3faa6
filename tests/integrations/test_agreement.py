"""One model, trained in five ways: all integrations record the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler, TensorDataset

import stepwell

pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES, BATCH, EPOCHS, RATE = 26, 4, 2, 0.05
STEPS = EPOCHS * 7
"""Six full batches and one of two samples, twice."""


class Regression(nn.Module):
    """A model that accepts targets, as Hugging Face's Trainer requires."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        found = self.layers(x)
        if labels is None:
            return found
        return {"loss": nn.functional.mse_loss(found, labels), "logits": found}


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 5, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True))


class Rows(Dataset[dict[str, Tensor]]):
    """The same data as dicts."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x, y = data()[index]
        return {"x": x, "labels": y}


def loader() -> DataLoader[Any]:
    return DataLoader(data(), batch_size=BATCH)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE)


def expected() -> list[float]:
    """The loss of each step, by hand."""
    model = Regression()
    optimizer = sgd(model)
    losses = []
    for _ in range(EPOCHS):
        for x, y in loader():
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def with_watch(folder: Path) -> None:
    model, batches = Regression(), loader()
    optimizer = sgd(model)
    with stepwell.watch(model, optimizer, batches):
        for _ in range(EPOCHS):
            for x, y in batches:
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def with_torch_trainer(folder: Path) -> None:
    from stepwell.integrations.torch import TorchTrainer

    settings = {"batch_size": BATCH, "optim_lr": RATE, "optimizer": "sgd", "loss": "mse"}
    more = {"optim_momentum": 0.0, "num_workers_dataloader": 0}
    trainer = TorchTrainer({**settings, **more}, EPOCHS, Regression())
    trainer.execute(data())


def with_accelerate(folder: Path) -> None:
    from accelerate import Accelerator

    from stepwell.integrations.accelerate import StepwellTracker, prepare

    model = Regression()
    accelerator = Accelerator(cpu=True, log_with=StepwellTracker("agreement"))
    accelerator.init_trackers("agreement")
    model, optimizer, batches = prepare(accelerator, model, sgd(model), loader())
    for _ in range(EPOCHS):
        for x, y in batches:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    accelerator.end_training()


def with_lightning(folder: Path) -> None:
    import lightning.pytorch as lightning

    from stepwell.integrations.lightning import TelemetryCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Regression()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return nn.functional.mse_loss(self.model(x), y)

        def configure_optimizers(self) -> Any:
            return sgd(self.model)

    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[TelemetryCallback()],
    )
    trainer.fit(Module(), loader())


def with_transformers(folder: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from stepwell.integrations.transformers import StepwellCallback

    class InOrder(Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return SequentialSampler(Rows())

    model = Regression()
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=BATCH,
        num_train_epochs=EPOCHS,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    optimizer = sgd(model)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = InOrder(
        model=model,
        args=arguments,
        train_dataset=Rows(),
        optimizers=(optimizer, constant),
        callbacks=[StepwellCallback()],
    )
    trainer.train()


WAYS: list[Callable[[Path], None]] = [
    with_watch,
    with_torch_trainer,
    with_accelerate,
    with_lightning,
    with_transformers,
]


@pytest.mark.parametrize("train", WAYS)
def test_step_counts_samples_and_losses_agree(
    train: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are what the plain loop has, worked out by itself."""
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    train(tmp_path)
    stepwell.finish()
    (run,) = stepwell.list_runs(tmp_path / "runs")
    spans = run.spans().collect()
    iterations = spans.filter(pl.col("name") == "training_single_iteration").sort("start_ns")
    assert iterations["step"].to_list() == list(range(STEPS))
    assert spans.filter(pl.col("name") == "training_loop").height == 1

    updates = run.events().filter(pl.col("name") == "training_metrics_update").collect()
    last = json.loads(updates.sort("time_ns")["attributes"].to_list()[-1])
    assert last["num_iterations"] == STEPS
    assert last["num_train_samples"] == EPOCHS * SAMPLES

    losses = run.metrics().filter(pl.col("name") == "loss").collect().sort("step")
    assert losses["step"].to_list() == list(range(STEPS))
    assert losses["value"].to_list() == pytest.approx(expected(), rel=1e-5)
