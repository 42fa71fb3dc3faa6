"""A thread that ends inside a call leaves no state behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell.integrations.torch import annotate  # noqa: E402
from stepwell.integrations.torch.fast_path import fast_path  # noqa: E402
from tests.integrations.torch.loops import BATCHES, counts, train  # noqa: E402
from tests.integrations.torch.watched import parts, read  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]


def test_the_others_are_recorded_quickly() -> None:
    """An optimizer's exception passes no hook, and here nothing comes after it in its thread."""
    model, optimizer, loader = parts()
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    ways: list[bool] = []

    def step() -> None:
        # Called with the wrong arguments.
        with pytest.raises(TypeError):
            other.step(1, 2, 3)

    def look(*_: Any) -> None:
        ways.append(bool(fast_path.entry))

    with stepwell.init() as run, annotate(model, [optimizer, other], loader):
        train(model, optimizer, loader)
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        assert fast_path.slow_calls == []
        handle = model[0].register_forward_pre_hook(look)
        train(model, optimizer, loader)
        handle.remove()
    assert ways == [True] * BATCHES
    assert counts(read(run)[1])["forward"] == 2 * BATCHES
