"""Models of several kinds, with something to train them on, and their numbers computed in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A transformer whose embedding is shared with its output, and found twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.backbone = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.lm_head = nn.Linear(16, 50, bias=False)
        self.lm_head.weight = self.embed.weight
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.backbone(self.embed(tokens))).mean(1)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 8, sparse=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).mean(1))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))


def conv() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3)
    )
    return model.to(memory_format=torch.channels_last)


def frozen() -> nn.Module:
    """Its first layer is not trained."""
    model = mlp()
    model[0].requires_grad_(False)
    return model


INPUTS: dict[Callable[[], nn.Module], Callable[[], Tensor]] = {
    mlp: lambda: torch.randn(5, 6),
    frozen: lambda: torch.randn(5, 6),
    conv: lambda: torch.randn(5, 3, 8, 8).to(memory_format=torch.channels_last),
    Bag: lambda: torch.randint(0, 10, (5, 7)),
    Block: lambda: torch.randint(0, 50, (5, 7)),
}
KINDS = list(INPUTS)


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return kind()


def loss_of(model: nn.Module, kind: Callable[[], nn.Module]) -> Tensor:
    return model(INPUTS[kind]()).float().square().mean()


def norm64(tensors: Iterable[Tensor | None]) -> float:
    """The L2 norm by another way: dense, in float64, in one sum."""
    total = 0.0
    for tensor in tensors:
        if tensor is not None:
            dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
            wide = torch.complex128 if dense.is_complex() else torch.float64
            total += float(dense.to(wide).abs().pow(2).sum())
    return math.sqrt(total)


def gradient_norm64(model: nn.Module, scale: float = 1.0) -> float:
    return norm64(parameter.grad for parameter in model.parameters()) / scale
