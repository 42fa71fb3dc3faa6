"""The configuration of a fit is recorded, so that fits can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

import stepwell
from stepwell.analysis.compare import compare
from stepwell.integrations.lightning import TelemetryCallback
from stepwell.reading import RecordedRun
from tests.integrations.lightning.fits import Recorded, hooked, loader, model_class, options

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
Model = model_class()


class Configured(Model):  # type: ignore[misc, valid-type]
    def __init__(self, lr: float = 0.1, net: Any = None, api_key: str = "") -> None:
        super().__init__()
        self.save_hyperparameters()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Data(pl.LightningDataModule):
    def __init__(self, batch: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> Any:
        return loader(batch=self.hparams.batch)


def fit(model: Any, data: Any, **arguments: Any) -> dict[str, Any]:
    """Fit a model with the callback alone; the configuration of the run."""
    callback = TelemetryCallback()
    pl.Trainer(**options(max_epochs=1, callbacks=[callback], **arguments)).fit(model, data)
    return finished().config


def finished() -> RecordedRun:
    run = stepwell.active_run()
    assert run is not None
    run.finish()
    return stepwell.open_run(run.path)


def test_hyperparameters_and_arguments_of_the_trainer() -> None:
    """Those of module and datamodule together; secrets are masked, modules are named."""
    model = Configured(0.05, torch.nn.Linear(2, 2), "sk-very-secret")
    config = fit(model, Data(6), gradient_clip_val=0.5, accumulate_grad_batches=2)
    assert config["hyperparameters"] == {
        "batch": 6,
        "lr": 0.05,
        "net": "<Linear>",
        "api_key": "***",
    }
    expected = {
        "max_epochs": 1,
        "precision": "32-true",
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.5,
        "num_devices": 1,
        "strategy": "SingleDeviceStrategy",
    }
    assert expected.items() <= config["trainer"].items()


def test_without_hyperparameters() -> None:
    """Model, optimizer and batch size are known all the same: 3 weights and a bias."""
    config = fit(Model(), loader())
    assert "hyperparameters" not in config
    assert config["model"] == {"class": "Model", "parameters": 4, "trainable_parameters": 4}
    assert config["optimizer"]["class"] == "SGD"
    assert config["optimizer"]["lr"] == 0.1
    assert config["batch_size"] == 4


def test_keys_of_the_users_own_stay(tmp_path: Path) -> None:
    """A second fit changes what the first one recorded, and nothing else."""
    stepwell.init("mine", dir=tmp_path, config={"optimizer": "the best", "lr": 1})
    trainer = hooked()(**options(max_steps=1))
    trainer.fit(Configured(0.1), loader())
    trainer.fit(Configured(0.2), loader())
    config = finished().config
    assert (config["optimizer"], config["lr"]) == ("the best", 1)
    assert config["hyperparameters"]["lr"] == 0.2


def test_parameters_without_an_optimizer_are_counted() -> None:
    """Of four tensors one is frozen, and the optimizer has one of the other three."""

    class Partly(Model):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.other = torch.nn.Linear(3, 1)
            self.other.bias.requires_grad_(False)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([self.layer.weight], lr=0.1)

    hooked()(**options(max_steps=1)).fit(Partly(), loader())
    (loop,) = Recorded().attributes("training_loop")
    assert (loop["trainable_parameters"], loop["optimized_parameters"]) == (3, 1)


def test_fits_with_different_hyperparameters_are_no_repeats() -> None:
    """And the setting that differs is named once, though the optimizer has it, too."""
    runs = []
    for lr in (0.1, 0.001):
        fit(Configured(lr), loader())
        runs.append(stepwell.list_runs("runs")[0])
    found = compare(runs, time=False)
    assert [variant.runs for variant in found.variants] == [(0,), (1,)]
    assert "Different settings: hyperparameters.lr." in found.summary
    assert not any("epeats" in sentence for sentence in found.summary)
