"""Record a plain PyTorch loop with one line before it.

Run it with ``python examples/watch.py``. The run folder then has spans, throughput, the loss and
gradient norms.
"""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

import stepwell


def main() -> None:
    """Train a small model for three epochs."""
    torch.manual_seed(0)
    x = torch.rand(480, 8)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=40, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with stepwell.watch(model, optimizer, loader, diagnostics=10) as watch:
        for _ in range(3):
            for inputs, targets in loader:
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    if watch.run is not None:
        print(watch.run.path)


if __name__ == "__main__":
    main()
