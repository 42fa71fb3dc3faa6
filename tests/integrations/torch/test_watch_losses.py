"""``stepwell.watch``: the loss of a step is the scalar whose gradient it uses."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from tests.integrations.torch.loops import BATCHES, make_loader, make_model, train  # noqa: E402
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


@pytest.mark.full
def test_many_losses() -> None:
    """None is lost or attributed to another step, over several segments and updates."""
    model, optimizer, _ = parts()
    x, y = torch.rand(1, 4), torch.rand(1, 1)
    with stepwell.watch(model, optimizer, [(x, y)] * 3000, diagnostics=False) as watch:
        losses = train(model, optimizer, watch.loader)
    found, _ = read(watch.run)
    assert curve(found) == list(enumerate(losses))
    assert updates(found)[-1]["num_iterations"] == 3000


def test_a_backward_pass_from_several_scalars() -> None:
    """The loss is their sum: the gradients are those of the sum."""
    model, optimizer, loader = parts()
    losses = []
    with stepwell.watch(model, optimizer, loader) as watch:
        for x, y in loader:
            optimizer.zero_grad()
            output = model(x)
            both = [torch.nn.functional.mse_loss(output, y), output.abs().mean()]
            torch.autograd.backward(both)
            optimizer.step()
            losses.append((both[0] + both[1]).item())
    assert [value for _, value in curve(read(watch.run)[0])] == pytest.approx(losses, rel=1e-6)


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


@pytest.mark.full
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


def test_a_loss_is_there_as_soon_as_its_step_has_ended() -> None:
    """Also while nothing follows, as in a hang, and when it is NaN."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        run = watch.run
        assert run is not None
        for i, (x, y) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(x), y)
            if i == 2:
                loss = loss * float("nan")
            loss.backward()
            optimizer.step()
            found = curve(stepwell.open_run(run.path))
            assert [step for step, _ in found] == list(range(i + 1))
            if i < 2:
                assert found[-1] == (i, loss.item())
                optimizer.zero_grad()
            else:
                assert math.isnan(found[-1][1])


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_user_logs_a_loss_now_and_then(when: str) -> None:
    """From then on it is theirs; no step has two."""
    model, optimizer, loader = parts()
    losses = []
    with stepwell.watch(model, optimizer, loader) as watch:
        for i, (x, y) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            if i == 2 and when == "before":
                stepwell.log({"loss": 100.0})
            optimizer.step()
            if i == 2 and when == "after":
                stepwell.log({"loss": 100.0})
            optimizer.zero_grad()
            losses.append(loss.item())
    assert curve(read(watch.run)[0]) == [(0, losses[0]), (1, losses[1]), (2, 100.0)]


def test_the_user_logs_the_last_loss() -> None:
    """There is no later step."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        *_, last = train(model, optimizer, loader)
        stepwell.log({"loss": 100.0})
    found = curve(read(watch.run)[0])
    assert found[-1] == (BATCHES - 1, 100.0)
    assert len(found) == BATCHES
    assert last != 100.0


def test_a_closure_without_a_loader() -> None:
    """Its samples count once, however often it is called."""
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    values = []
    with stepwell.watch(model, optimizer) as watch:
        for x, y in make_loader():

            def closure(x: Any = x, y: Any = y) -> Any:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            values.append(optimizer.step(closure).item())
    found, _ = read(watch.run)
    (last,) = updates(found)
    assert (last["num_iterations"], last["num_train_samples"]) == (BATCHES, 16)
    assert curve(found) == list(enumerate(values))
