"""Record a fit with PyTorch Lightning by hooking the Trainer class.

Run it with ``python examples/lightning_fit.py``.
"""

import logging
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer

from stepwell.integrations.lightning import hook_trainer_cls
from stepwell.training import TrainingTelemetryConfig, TrainingTelemetryProvider

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Plane(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.layer(inputs), targets))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(384, 8)
    targets = inputs.sum(dim=1, keepdim=True)
    data = torch.utils.data.TensorDataset(inputs, targets)
    loader = torch.utils.data.DataLoader(data, batch_size=32)

    provider = TrainingTelemetryProvider.instance()
    provider.configure(
        TrainingTelemetryConfig(application_name="plane", log_every_n_train_iterations=10)
    )
    trainer = hook_trainer_cls(Trainer, provider)(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Plane(), loader, loader)
    assert provider.run is not None
    print(f"recorded in {provider.run.path}")


if __name__ == "__main__":
    main()
