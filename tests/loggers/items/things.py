"""Things to log: an object of a class of one's own, and a small model."""

from __future__ import annotations

from typing import Any


class Thing:
    """An object that only pickle keeps."""

    def __init__(self) -> None:
        self.value = 5


def net() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
