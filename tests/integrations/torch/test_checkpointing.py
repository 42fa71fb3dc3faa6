"""Activation checkpointing: a repeated forward pass is part of backward, not a failure."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import stepwell  # noqa: E402
from stepwell.integrations.torch.watcher import flops  # noqa: E402
from tests.integrations.torch.loops import BATCHES  # noqa: E402
from tests.integrations.torch.watched import parts, read, updates  # noqa: E402
from tests.nesting.tree import edges, events  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]
FORWARD = 2 * (4 * 8 + 8 * 1)
"""Operations of a sample."""


@pytest.mark.parametrize("followed", [False, True], ids=["no loader", "loader"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_whole_model(reentrant: bool, followed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass that is done again is in backward, and counted with it."""
    # Other tests in this process may have compiled something.
    monkeypatch.setattr(flops, "was_anything_compiled", lambda: False)
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader if followed else None) as watch:
        for x, y in loader:
            output = checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)
            torch.nn.functional.mse_loss(output, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    found, spans = read(watch.run)
    tree = edges(spans)
    assert tree["forward", "training_single_iteration"] == BATCHES
    assert tree["backward", "training_single_iteration"] == BATCHES
    assert tree["forward", "backward"] == BATCHES
    assert set(spans["status"]) == {"ok"}
    assert watch.run is not None
    assert "error" not in [name for name, _, _ in events(watch.run)]
    (last,) = updates(found)
    assert last["num_iterations"] == BATCHES
    assert last["num_train_samples"] == 16
    # Backward computes twice as much; what is done again may end before the last layer.
    work = last["total_flops"] / 16
    again = work - 3 * FORWARD
    assert again == FORWARD if reentrant else again in (FORWARD, FORWARD - 2 * 8)


def test_a_forward_that_fails_in_backward() -> None:
    """Is a failure like any other."""
    model, optimizer, loader = parts()
    calls = []

    def fail(*_: object) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise ZeroDivisionError

    model[0].register_forward_hook(fail)
    x, y = next(iter(loader))
    with stepwell.watch(model, optimizer, loader) as watch:
        output = checkpoint(model, x, use_reentrant=False)
        with pytest.raises(ZeroDivisionError):
            torch.nn.functional.mse_loss(output, y).backward()
    _, spans = read(watch.run)
    failed = spans.filter(spans["status"] == "error")["name"].to_list()
    assert sorted(failed) == ["backward", "forward"]
