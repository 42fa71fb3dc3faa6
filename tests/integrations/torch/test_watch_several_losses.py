"""``stepwell.watch`` with several optimizers: each has its own metric ``loss/<name>``."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from tests.integrations.torch.loops import BATCHES, make_loader, make_model, make_optimizer  # noqa: E402
from tests.integrations.torch.watched import curve, read, updates  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]
Curve = list[tuple[int, float]]


class Generator(torch.nn.Linear):
    """Makes samples."""

    def __init__(self) -> None:
        super().__init__(4, 4)


class Critic(torch.nn.Linear):
    """Tells them from real ones."""

    def __init__(self) -> None:
        super().__init__(4, 1)


def adversaries() -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(7)
    generator, critic = Generator(), Critic()
    return generator, critic, make_optimizer(generator), make_optimizer(critic)


def train_both(parts: Any, batches: Any, how: str) -> tuple[Curve, Curve]:
    """The losses of generator and critic, as the loop sees them."""
    generator, critic, first, second = parts
    losses: tuple[Curve, Curve] = [], []

    def train_critic(step: int, x: Any) -> None:
        if how == "zeroed models":
            critic.zero_grad()
        else:
            second.zero_grad(set_to_none=how != "kept gradients")
        real = critic(x).relu().mean()
        real.backward()
        fake = critic(generator(x).detach()).square().mean()
        fake.backward()
        second.step()
        losses[1].append((step, real.item() + fake.item()))

    def train_generator(step: int, x: Any) -> None:
        first.zero_grad(set_to_none=how != "kept gradients")
        loss = -critic(generator(x)).mean()
        loss.backward()
        first.step()
        losses[0].append((step, loss.item()))

    for step, (x, _) in enumerate(batches):
        parts = [train_critic, train_generator]
        for part in reversed(parts) if how == "generator first" else parts:
            part(step, x)
    return losses


@pytest.mark.parametrize("has_loader", [True, False])
@pytest.mark.parametrize(
    "how", ["critic first", "generator first", "zeroed models", "kept gradients"]
)
def test_two_adversaries(how: str, has_loader: bool) -> None:
    """Each loss is that of its own step, in whatever order the steps are made."""
    generator, critic, first, second = parts = adversaries()
    loader = make_loader()
    with stepwell.watch(
        [generator, critic], [first, second], loader if has_loader else None, diagnostics=False
    ) as watch:
        expected = train_both(parts, loader if has_loader else list(loader), how)
    found, _ = read(watch.run)
    assert curve(found, "loss/generator") == expected[0]
    assert curve(found, "loss/critic") == expected[1]
    assert curve(found) == []
    assert updates(found)[-1]["num_iterations"] == BATCHES


@pytest.mark.parametrize("named", ["models", "optimizers", "neither"])
def test_names(named: str) -> None:
    """A loss is named after its optimizer's key, else its model's, else its number."""
    models = {"pi": make_model(), "q": make_model()}
    optimizers = {"actor": make_optimizer(models["pi"]), "value": make_optimizer(models["q"])}
    given = {
        "models": (models, list(optimizers.values())),
        "optimizers": (list(models.values()), optimizers),
        "neither": (list(models.values()), list(optimizers.values())),
    }[named]
    names = {
        "models": ["pi", "q"],
        "optimizers": ["actor", "value"],
        "neither": ["optimizer_0", "optimizer_1"],
    }[named]
    with stepwell.watch(*given, diagnostics=False) as watch:
        loss = sum(model(torch.ones(2, 4)).mean() for model in models.values())
        loss.backward()
        for optimizer in optimizers.values():
            optimizer.step()
    found, _ = read(watch.run)
    # One loss for both: each of the steps uses its gradient.
    for name in names:
        assert curve(found, f"loss/{name}") == [(0, loss.item())]


def test_passes_before_all_steps() -> None:
    """Losses find their optimizers by the gradients, not by the order of the calls."""
    first, second = make_model(), make_model()
    optimizers = {"a": make_optimizer(first), "b": make_optimizer(second)}
    expected: dict[str, Curve] = {"a": [], "b": []}
    with stepwell.watch([first, second], optimizers, loader := make_loader()) as watch:
        for step, (x, y) in enumerate(loader):
            for name, model in (("b", second), ("a", first)):
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                expected[name].append((step, loss.item()))
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
    found, _ = read(watch.run)
    for name, losses in expected.items():
        assert curve(found, f"loss/{name}") == losses


def test_several_passes_of_one_optimizer() -> None:
    """They make one loss, their sum."""
    model = make_model()
    optimizer = make_optimizer(model)
    with stepwell.watch(model, optimizer, diagnostics=False) as watch:
        first, second = model(torch.ones(2, 4)).mean(), model(torch.zeros(2, 4)).mean()
        first.backward()
        second.backward()
        optimizer.step()
    assert curve(read(watch.run)[0]) == [(0, first.item() + second.item())]
