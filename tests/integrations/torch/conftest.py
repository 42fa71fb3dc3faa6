"""Every test leaves PyTorch unchanged, and resets warnings that are logged once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _all_removed() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from stepwell._core import errors

    errors.counts.clear()

    def now() -> list[object]:
        return [
            torch.autograd._engine_run_backward,
            torch.compile,
            torch.nn.Module.compile,
            torch.nn.Module.to,
            torch.nn.Module.train,
            torch.nn.Module.zero_grad,
            torch.save,
            torch.Tensor.to,
            torch.Tensor.cpu,
            torch.distributed.all_reduce,
            torch.distributed.distributed_c10d.all_reduce,
            DataLoader.__iter__,
        ]

    before = now()
    yield
    assert all(a is b for a, b in zip(before, now(), strict=True))


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nobody watches any more afterwards; problems of ours are raised."""
    from stepwell.integrations.torch.observer import active

    monkeypatch.setenv("STEPWELL_STRICT", "1")
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))
    yield
    assert active.observer is None
