"""A small model of the kind that the diagnostics were first made for: which of two images wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]


class Siamese(nn.Module):
    """A backbone for both images, and a head for the pair."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout)
        )
        self.head = nn.Linear(16, 2)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        both: Tensor = self.head(torch.cat([self.backbone(first), self.backbone(second)], 1))
        return both


def pairs(batches: int, size: int, seed: int = 0) -> list[Batch]:
    """Batches of pairs, the same for the same seed."""
    made = torch.Generator().manual_seed(seed)
    return [
        {
            "img1": torch.randn(size, 6, generator=made),
            "img2": torch.randn(size, 6, generator=made),
            "winner": torch.randint(0, 2, (size,), generator=made),
        }
        for _ in range(batches)
    ]


def two_rates(model: Siamese) -> torch.optim.Optimizer:
    """The head learns ten times as fast."""
    return torch.optim.SGD(
        [
            {"params": model.backbone.parameters(), "lr": 0.001},
            {"params": model.head.parameters(), "lr": 0.01},
        ]
    )


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: list[Batch],
    telemetry: Any = None,
    epoch: int = 0,
    first: int = 1,
) -> None:
    """An epoch as anyone would write it."""
    for batch_idx, batch in enumerate(loader, first):
        loss = nn.functional.cross_entropy(model(batch["img1"], batch["img2"]), batch["winner"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if telemetry is not None:
            telemetry.on_batch_end(model, optimizer, batch_idx, epoch, "cpu", batch)


def no_constants(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def records(file: Path) -> list[dict[str, Any]]:
    """The records in a file, read by a parser that takes strict JSON only."""
    text = file.read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=no_constants) for line in text.splitlines()]
