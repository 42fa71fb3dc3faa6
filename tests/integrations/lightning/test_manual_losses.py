"""Manual optimization: every optimizer has its own loss."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from tests.integrations.lightning.fits import BATCHES, Recorded, hooked, loader, options, steps

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Manual(pl.LightningModule):
    """Keeps the losses that it saw, by the name of what they train."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.losses: dict[str, list[float]] = {"generator": [], "discriminator": []}

    def use(self, name: str, optimizer: Any, *losses: torch.Tensor) -> None:
        optimizer.zero_grad()
        for loss in losses:
            self.manual_backward(loss)
        optimizer.step()
        self.losses[name].append(sum(loss.item() for loss in losses))


class Gan(Manual):
    """The discriminator first, with two passes for its step; its gradients are not switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(3, 3)
        self.discriminator = nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator, discriminator = self.optimizers()
        bce = nn.functional.binary_cross_entropy_with_logits
        real, ones = batch[0], torch.ones(len(batch[0]), 1)
        fake = self.generator(torch.randn_like(real))
        self.use(
            "discriminator",
            discriminator,
            bce(self.discriminator(real), ones),
            bce(self.discriminator(fake.detach()), 0 * ones),
        )
        self.use("generator", generator, bce(self.discriminator(fake), ones))

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.Adam(self.generator.parameters(), lr=0.01),
            torch.optim.SGD(self.discriminator.parameters(), lr=0.1),
        ]


def test_a_gan_has_two_losses() -> None:
    """Named after the parts of the module; a batch is one iteration."""
    model = Gan()
    trainer = hooked()(**options(max_epochs=2))
    trainer.fit(model, loader())
    recorded = Recorded()
    assert trainer.global_step == 2 * 2 * BATCHES
    recorded.check_iterations(2 * BATCHES)
    for name, losses in model.losses.items():
        assert recorded.metric(f"loss/{name}") == steps(losses)
    assert recorded.metric("loss") == []
    assert recorded.metric("learning_rate/group_0")[0] == (0, 0.01)


class One(Manual):
    """One optimizer, and a training step that returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss = nn.functional.mse_loss(self.generator(batch[0]), batch[1])
        self.use("generator", self.optimizers(), loss)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_one_optimizer_has_the_loss_though_nothing_is_returned() -> None:
    model = One()
    hooked()(**options(max_epochs=1)).fit(model, loader())
    assert Recorded().metric("loss") == steps(model.losses["generator"])
