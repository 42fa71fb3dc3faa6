"""A small model and the loop that trains it, as a user writes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import polars as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 4


def make_model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(8, 1)
    )


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def make_loader(**options: Any) -> DataLoader[Any]:
    numbers = torch.Generator().manual_seed(3)
    items = TensorDataset(
        torch.rand(16, 4, generator=numbers), torch.rand(16, 1, generator=numbers)
    )
    return DataLoader(items, batch_size=16 // BATCHES, **options)


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Iterable[Any],
    epochs: int = 1,
    accumulate: int = 1,
) -> list[float]:
    """The losses."""
    losses = []
    for _ in range(epochs):
        for i, (x, y) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def counts(spans: pl.DataFrame) -> dict[str, int]:
    """How many spans there are of each name."""
    return dict(Counter(spans["name"].to_list()))


def per_step(spans: pl.DataFrame) -> dict[int | None, dict[str, int]]:
    """The same for each step."""
    found: dict[int | None, Counter[str]] = {}
    for step, name in spans.select("step", "name").iter_rows():
        found.setdefault(step, Counter())[name] += 1
    return {step: dict(names) for step, names in found.items()}
