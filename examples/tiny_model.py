"""A model that trains in seconds, for the other examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3
BATCH = 32
FEATURES = 8


def make_loader(samples: int = 12 * BATCH) -> DataLoader[tuple[Tensor, ...]]:
    """Return batches of points on a plane, with a little noise."""
    torch.manual_seed(7)
    inputs = torch.randn(samples, FEATURES)
    targets = inputs @ torch.arange(1.0, FEATURES + 1) + 0.01 * torch.randn(samples)
    return DataLoader(TensorDataset(inputs, targets), batch_size=BATCH)


def make_model() -> nn.Module:
    """Return a model with two layers."""
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 1))


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error."""
    return nn.functional.mse_loss(model(inputs).squeeze(1), targets)
