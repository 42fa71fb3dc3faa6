"""A model that memorises its training data, and how diagnostics show it.

The winner of each pair is random, so nothing that the model learns applies to other pairs. Run it with
``python examples/diagnostics.py``: it trains for seconds and prints where its records are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import stepwell
from stepwell.diagnostics import TelemetryConfig, TrainingTelemetry, family

EPOCHS = 30
PAIRS = 96
BATCH = 8


class Siamese(nn.Module):
    """A classifier for the winner of two images: one backbone for both, and a head for the pair."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(128, 2)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        both: Tensor = self.head(torch.cat([self.backbone(first), self.backbone(second)], 1))
        return both


@family("train_accuracy")
def train_accuracy(context: Any) -> dict[str, Any]:
    """Return the accuracy on the batch of this step: an example of a custom family."""
    batch = context.batch
    with context.no_trace() as model:
        right = model(batch["img1"], batch["img2"]).argmax(1) == batch["winner"]
    return {"batch": right.double().mean()}


def make_pairs(count: int) -> list[dict[str, Tensor]]:
    """Return batches of random image pairs with random winners."""
    return [
        {
            "img1": torch.randn(BATCH, 16),
            "img2": torch.randn(BATCH, 16),
            "winner": torch.randint(0, 2, (BATCH,)),
        }
        for _ in range(count // BATCH)
    ]


def main() -> None:
    torch.manual_seed(7)
    model = Siamese()
    optimizer = torch.optim.Adam(
        [
            {"params": model.backbone.parameters(), "lr": 1e-3},
            {"params": model.head.parameters(), "lr": 1e-2},
        ]
    )
    loader = make_pairs(PAIRS)
    telemetry = TrainingTelemetry(
        TelemetryConfig(collect_every_n=len(loader), track_update_ratio=True, track_dead_units=True)
    )
    telemetry.set_holdout_data(make_pairs(PAIRS))

    for epoch in range(EPOCHS):
        for batch_idx, batch in enumerate(loader, 1):
            optimizer.zero_grad()
            outputs = model(batch["img1"], batch["img2"])
            nn.functional.cross_entropy(outputs, batch["winner"]).backward()
            optimizer.step()
            telemetry.on_batch_end(model, optimizer, batch_idx, epoch, "cpu", batch)

    run = telemetry.run
    assert run is not None
    telemetry.close()
    metrics = stepwell.open_run(run.path).metrics().collect()
    for name in ("train_accuracy/batch", "holdout/accuracy", "gradient_norm/overall"):
        values = metrics.filter(metrics["name"] == name)["value"]
        print(f"{name:24} {values[0]:8.4f} → {values[-1]:8.4f}")
    print(f"The records are in {telemetry.metrics_file}, the run is in {run.path}.")


if __name__ == "__main__":
    main()
