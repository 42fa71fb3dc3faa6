"""One training loop that logs to MLflow, Weights & Biases, TensorBoard and provenance at once, offline.

Run it with ``python examples/loggers.py``, or on two processes with
``torchrun --nproc-per-node=2 examples/loggers.py``. Backends that are not installed are skipped.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from tiny_model import EPOCHS, make_loader, make_model

from stepwell.integrations.torch import TorchTrainer
from stepwell.loggers import (
    Logger,
    LoggersCollection,
    MLFlowLogger,
    Prov4ML,
    TensorBoardLogger,
    WandBLogger,
)


class PlaneTrainer(TorchTrainer):
    """The standard loop, which logs more items at the end."""

    def train(self) -> None:
        super().train()
        # The trainer has logged the curves. Other kinds of items use the same call.
        self.log(self.bare_model, "plane", kind="model")
        self.log("Two layers, three epochs.", "remark", kind="text")
        self.log(None, None, kind="execution_time")


def distance(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the loss. A configuration accepts a function, or a name such as "mse"."""
    return torch.nn.functional.mse_loss(prediction.squeeze(1), target)


def make_logger() -> Logger:
    """Return a logger for all installed backends: every fourth batch, and all values of an epoch."""
    members: list[Logger] = [
        TensorBoardLogger(log_freq=4),
        Prov4ML(experiment_name="plane", log_freq=4),
    ]
    if find_spec("mlflow"):
        members.append(MLFlowLogger(experiment_name="plane", log_freq=4))
    if find_spec("wandb"):
        members.append(WandBLogger(project_name="plane", log_freq=4, offline_mode=True))
    return LoggersCollection(members)


if __name__ == "__main__":
    dataset = make_loader().dataset
    trainer = PlaneTrainer(
        config={"batch_size": 32, "optim_lr": 0.05, "loss": distance, "num_workers_dataloader": 0},
        epochs=EPOCHS,
        model=make_model(),
        strategy="ddp",
        logger=make_logger(),
    )
    trainer.execute(dataset, dataset)
    if trainer.rank == 0:
        print("The run is in runs; what each backend made of it is in mllogs:")
        print("  tensorboard --logdir mllogs/tensorboard")
        print("  mlflow ui --backend-store-uri sqlite:///mllogs/mlflow/mlflow.db")
        print("  mllogs/prov_logs/*/provenance.svg")
