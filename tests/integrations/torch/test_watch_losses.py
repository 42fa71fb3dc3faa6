"""``stepwell.watch``: the loss of a step is what its gradient is of."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from tests.integrations.torch.loops import BATCHES, train  # noqa: E402
from tests.integrations.torch.watched import curve, parts, read, updates  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]


def test_the_users_own_loss_is_theirs() -> None:
    """Whoever logs a loss has it alone."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            stepwell.log({"loss": 100.0})
    assert curve(read(watch.run)[0]) == [(i, 100.0) for i in range(BATCHES)]


def test_many_losses() -> None:
    """None is lost or taken for somebody else's, over several segments and updates."""
    model, optimizer, _ = parts()
    x, y = torch.rand(1, 4), torch.rand(1, 1)
    with stepwell.watch(model, optimizer, [(x, y)] * 3000, diagnostics=False) as watch:
        losses = train(model, optimizer, watch.loader)
    found, _ = read(watch.run)
    assert curve(found) == list(enumerate(losses))
    assert updates(found)[-1]["num_iterations"] == 3000


def test_gradients_that_are_thrown_away() -> None:
    """Their loss is none of the next step's."""
    model, optimizer, loader = parts()
    batches = list(loader)
    kept = []
    with stepwell.watch(model, optimizer, loader) as watch:
        run = watch.run
        assert run is not None
        for i, (x, y) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            if i % 2:
                optimizer.step()
                kept.append(loss.item())
            elif i:
                model.zero_grad()
            optimizer.zero_grad()
    found, _ = read(run)
    assert len(batches) == BATCHES
    assert curve(found) == list(enumerate(kept))


def test_gradients_that_a_compiled_function_throws_away() -> None:
    """Is compiled once, as without: no state of ours is in its graph."""
    model, optimizer, loader = parts()
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def prepared(x: Any) -> Any:
        model.zero_grad()
        return x * 2

    with stepwell.watch(model, optimizer):
        for x, y in loader:
            torch.nn.functional.mse_loss(model(prepared(x)), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(graphs) == 1


def test_the_losses_of_several_steps_with_a_batch() -> None:
    """Each step has its own, as where a batch is gone over several times."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        values = [loss for batch in loader for loss in train(model, optimizer, [batch] * 3)]
    found, _ = read(watch.run)
    assert curve(found) == list(enumerate(values))
    (last,) = updates(found)
    assert last["num_iterations"] == 3 * BATCHES
    assert last["num_train_samples"] == 16


@pytest.mark.parametrize("dropped", [False, True])
def test_after_a_step_that_fails(dropped: bool) -> None:
    """The next loss is that of its own gradients: with those before, unless they were thrown away."""

    class Failing(torch.optim.SGD):
        is_broken = False

        def step(self, closure: Any = None) -> Any:
            if self.is_broken:
                raise ZeroDivisionError
            return super().step(closure)

    model, _, loader = parts()
    optimizer = Failing(model.parameters(), lr=0.1)
    losses = []
    with stepwell.watch(model, optimizer, loader) as watch:
        for i, (x, y) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            losses.append(loss.item())
            optimizer.is_broken = i == 1
            try:
                optimizer.step()
            except ZeroDivisionError:
                if not dropped:
                    continue
            optimizer.zero_grad()
    found, _ = read(watch.run)
    first, failed, third, fourth = losses
    assert curve(found) == [(0, first), (1, third if dropped else failed + third), (2, fourth)]
