"""Operations of a sample, counted on a pass that training makes; utilisation where the peak is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import stepwell  # noqa: E402
from stepwell.integrations.torch.watcher import flops  # noqa: E402
from stepwell.integrations.torch.watcher.flops import find_peak  # noqa: E402
from tests.integrations.torch.loops import (  # noqa: E402
    BATCHES,
    make_loader,
    make_model,
    make_optimizer,
    train,
)
from tests.integrations.torch.test_watch import curve, read, updates  # noqa: E402

pytestmark = pytest.mark.torch

PER_SAMPLE = 2 * (4 * 8 + 8) + 2 * (4 * 8 + 8) + 2 * 8
"""Forward, gradients of the weights, and the gradient of the second layer's input."""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))
    # Other tests compile.
    monkeypatch.setattr(flops, "was_anything_compiled", lambda: False)


def run(**options: Any) -> Any:
    model = make_model()
    optimizer, loader = make_optimizer(model), make_loader()
    with stepwell.watch(model, optimizer, loader, **options) as watch:
        train(model, optimizer, loader, epochs=2)
    return read(watch.run)[0]


def test_counted() -> None:
    """The result by hand, which equals that of PyTorch's own counter."""
    model, (x, y) = make_model(), next(iter(make_loader()))
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.mse_loss(model(x), y).backward()
    assert counter.get_total_flops() == 4 * PER_SAMPLE
    (last,) = updates(run())
    assert last["total_flops"] == 2 * 16 * PER_SAMPLE
    assert last["train_throughput_per_gpu"] > 0


def test_given() -> None:
    """The user's number counts, from the first step on."""
    (last,) = updates(run(flops_per_sample=1000))
    assert last["total_flops"] == 32 * 1000
    assert "total_flops" not in updates(run(count_flops=False))[-1]


def test_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations a second of iteration time by what is possible; absent when that is not known."""
    found = run(flops_per_sample=1000, peak_flops=1e6)
    (last,) = updates(found)
    ((_, value),) = curve(found, "mfu")
    assert value == pytest.approx(last["train_throughput_per_gpu"] * 1e12 / 1e6)
    assert curve(run(), "mfu") == []
    monkeypatch.setenv("STEPWELL_PEAK_FLOPS", "2e6")
    assert len(curve(run(), "mfu")) == 1
    monkeypatch.setenv("STEPWELL_PEAK_FLOPS", "fast")
    assert curve(run(), "mfu") == []


def test_peaks() -> None:
    """By the names that the driver gives."""
    assert find_peak("NVIDIA H100 80GB HBM3") == 989e12
    assert find_peak("NVIDIA H100 PCIe") == 756e12
    assert find_peak("NVIDIA A100-SXM4-80GB") == 312e12
    assert find_peak("NVIDIA L4") == 121e12
    assert find_peak("NVIDIA L40S") == 362e12
    assert find_peak("Tesla T4") == 65e12
    # A longer number is another GPU.
    assert find_peak("NVIDIA RTX A1000") is None
    assert find_peak("Some GPU 9") is None


def test_left_as_it_is() -> None:
    """Neither an exception nor an interrupt leaves the counter on; other modes are not disturbed."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    class Bad(torch.nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 1)

        def forward(self, x: Any) -> Any:
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return self.inner(x)

    model = Bad()
    optimizer, loader = make_optimizer(model), make_loader()
    with stepwell.watch(model, optimizer, loader) as watch:
        for x, y in loader:
            try:
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
            except KeyboardInterrupt:
                continue
    assert _get_current_dispatch_mode() is None
    assert updates(read(watch.run)[0])[-1]["num_iterations"] == BATCHES - 1
