"""LightningCLI with our logger and callback in a YAML file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.integrations.lightning import trainer_class
from tests.harness import TRAINERS, environment, run_script
from tests.integrations.lightning.fits import Recorded, hooked, loader, model_class, options
from tests.loggers.needs import needs
from tests.loggers.reading_back import Left

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
    needs("jsonargparse", "mlflow"),
]

BATCHES, EVERY = 8, 2

PROGRAM = """
import json
import torch
from PACKAGE import LightningDataModule, LightningModule
from PACKAGE.cli import LightningCLI

class Model(LightningModule):
    def __init__(self, width: int, lr: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).pow(2).mean()
        self.losses.append(loss.item())
        self.log("train_loss", loss)
        return loss

    def on_train_end(self):
        with open("losses.json", "w") as file:
            json.dump(self.losses, file)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)

class Data(LightningDataModule):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.randn(8, 3), batch_size=1)

LightningCLI(Model, Data, save_config_kwargs={"overwrite": True})
"""

COMMON = """
seed_everything: 1
trainer:
  accelerator: cpu
  devices: 1
  max_epochs: 1
  log_every_n_steps: 2
  enable_progress_bar: false
  enable_model_summary: false
  enable_checkpointing: false
  callbacks:
    - class_path: stepwell.integrations.lightning.TelemetryCallback
      init_args:
        diagnostics: false
"""

OURS = """
  logger:
    class_path: stepwell.integrations.lightning.StepwellLogger
    init_args:
      logger:
        class_path: stepwell.loggers.MLFlowLogger
        init_args:
          experiment_name: digits
      prefix: cli
"""

ITWINAI = """
  logger:
    class_path: stepwell.compat.itwinai.ItwinaiLogger
    init_args:
      itwinai_logger:
        class_path: stepwell.compat.itwinai.MLFlowLogger
        init_args:
          experiment_name: digits
          log_on_workers: [0, 1]
      log_model: all
      skip_finalize: false
"""

MODEL = """
model:
  width: 3
"""


def run(folder: Path, package: str, config: str) -> None:
    """Run ``python program.py fit --config config.yaml``."""
    program = folder / "program.py"
    program.write_text(PROGRAM.replace("PACKAGE", package))
    (folder / "config.yaml").write_text(config)
    env = environment(STEPWELL_STRICT="1", STEPWELL_FINISH_TIMEOUT="60", HOME=str(folder))
    arguments = ("fit", "--config", "config.yaml")
    run_script(program, *arguments, cwd=folder, env=env, check=True, timeout=240, modules=TRAINERS)


@pytest.fixture
def shelf(tmp_path: Path, empty_database: Path) -> Path:
    """MLflow's folder, with its database made before."""
    made = tmp_path / "mllogs" / "mlflow"
    made.mkdir(parents=True)
    shutil.copy(empty_database, made / "mlflow.db")
    return made


def check(folder: Path, metric: str) -> None:
    """Losses, hyperparameters and spans are there as without the command line."""
    losses = json.loads((folder / "losses.json").read_text())
    assert len(losses) == BATCHES
    # Lightning logs the last of every two batches.
    steps = [*range(EVERY - 1, BATCHES, EVERY)]
    left = Left(folder)
    assert left.mlflow_curve(metric) == [(step, pytest.approx(losses[step])) for step in steps]
    found = left.mlflow_run()
    assert (found.info.status, found.data.params["width"]) == ("FINISHED", "3")
    (recorded,) = stepwell.list_runs(folder / "runs")
    Recorded(recorded).check_fit(BATCHES)


@pytest.mark.full
@pytest.mark.parametrize(
    "package",
    [pytest.param("lightning.pytorch", marks=pytest.mark.full), "pytorch_lightning"],
)
def test_the_logger_of_itwinai(tmp_path: Path, shelf: Path, package: str) -> None:
    """Around a logger that is named in the file too."""
    pytest.importorskip(package)
    run(tmp_path, package, COMMON + ITWINAI + MODEL)
    check(tmp_path, "train_loss")


@pytest.mark.full
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_saved_configuration(tmp_path: Path, shelf: Path, package: str) -> None:
    """The configuration that LightningCLI saves names our classes, and another fit can use it."""
    pytest.importorskip(package)
    run(tmp_path, package, COMMON + OURS + MODEL)
    check(tmp_path, "cli/train_loss")
    saved = (shelf / "config.yaml").read_text()
    shutil.rmtree(tmp_path / "runs")
    run(tmp_path, package, saved)
    (again,) = stepwell.list_runs(tmp_path / "runs")
    assert again.status == "finished"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
@pytest.mark.parametrize("form", ["hooked", "comes hooked"])
def test_trainer_classes(package: str, form: str) -> None:
    """LightningCLI takes the arguments of the Trainer for either kind of recorded trainer."""
    cli = pytest.importorskip(f"{package}.cli")

    class Model(model_class(package)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()

        def train_dataloader(self) -> Any:
            return loader()

    cls = hooked(package) if form == "hooked" else trainer_class(package.partition(".")[0])
    arguments = [f"--trainer.{name}={str(value).lower()}" for name, value in options().items()]
    arguments = ["fit", "--trainer.max_steps=4", *arguments]
    cli.LightningCLI(Model, trainer_class=cls, args=arguments, save_config_callback=None)
    Recorded().check_fit(4)
