"""Hooks come and go without PyTorch noticing, also while it calls them."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from stepwell import Run
from stepwell.diagnostics import TelemetryConfig, TrainingTelemetry
from stepwell.diagnostics.gradients import MOST_STEPS, Gradients
from stepwell.diagnostics.hooks import add_step_hook, remove_hook
from tests.diagnostics.models import loss_of, made, mlp
from tests.diagnostics.siamese import Siamese, pairs, records, train, two_rates
from tests.guarded_hooks import changes, guard

pytestmark = pytest.mark.torch


class Later:
    """A hook that counts its calls, registered behind those that a test is about."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *args: Any) -> None:
        self.calls += 1


class Raises(nn.Module):
    def forward(self, x: Any) -> Any:
        raise ValueError("as asked")


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = made(mlp)
    return model, torch.optim.SGD(model.parameters(), 0.01)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 1) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        loss_of(model, mlp).backward()
        optimizer.step()


# Diagnostics


@pytest.mark.parametrize("every", [1, 2])
def test_a_cell_that_is_run_again(recorded: Run, every: int) -> None:
    """A second telemetry over the same optimizer: the hook of the first one gives up inside a step."""
    model = Siamese()
    optimizer = two_rates(model)
    for cell in range(3):
        telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=every))
        train(model, optimizer, pairs(20, 4, seed=cell), telemetry)
        assert telemetry.metrics_file is not None
    assert telemetry.metrics_file is not None
    sources = [it["gradient_source"] for it in records(telemetry.metrics_file)]
    # Only the first collection of a telemetry cannot be foreseen.
    assert len(sources) == 3 * 20 // every
    assert sources.count("present") <= 3
    telemetry.close()
    assert not optimizer._optimizer_step_pre_hooks


def test_a_hook_that_gives_up_in_front_of_another() -> None:
    """The gradients are not asked for, and another hook was registered meanwhile."""
    model, optimizer = parts()
    gradients = Gradients(model, optimizer)
    gradients.take_next()
    later = Later()
    optimizer.register_step_pre_hook(later)
    step(model, optimizer, MOST_STEPS + 2)
    assert not gradients.is_taking
    assert later.calls == MOST_STEPS + 2
    # The next time that it is outside a step, its entry goes.
    gradients.take_next()
    assert len(optimizer._optimizer_step_pre_hooks) == 2
    step(model, optimizer)
    assert gradients.latest()
    gradients.close()
    assert len(optimizer._optimizer_step_pre_hooks) == 1


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_a_collection_inside_a_hook(recorded: Run, register: str) -> None:
    """A user may call it where gradients are, before the step, or behind it."""
    model = Siamese()
    optimizer = two_rates(model)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=2))
    numbers = iter(range(1, 100))

    def collect(*args: Any) -> None:
        telemetry.on_batch_end(model, optimizer, next(numbers), 0)

    getattr(optimizer, register)(collect)
    later = Later()
    getattr(optimizer, register)(later)
    train(model, optimizer, pairs(12, 4))
    telemetry.close()
    assert later.calls == 12
    assert telemetry.metrics_file is not None
    assert all(it["gradient_norm"]["overall"] > 0 for it in records(telemetry.metrics_file))


# Removing


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("scope", ["one optimizer", "all optimizers"])
def test_a_hook_that_removes_itself(
    monkeypatch: pytest.MonkeyPatch, scope: str, after: bool
) -> None:
    """It is not called again, the hooks behind it are, and its entry goes with the next change."""
    guard(monkeypatch)
    model, optimizer = parts()
    owner = optimizer if scope == "one optimizer" else None
    calls = []

    def once(*args: Any) -> None:
        calls.append(args)
        remove_hook(handle)

    handle = add_step_hook(owner, once, after=after)
    later = Later()
    other = add_step_hook(owner, later, after=after)
    step(model, optimizer, 3)
    assert (len(calls), later.calls) == (1, 3)
    assert changes == []
    hooks = handle.hooks_dict_ref()
    assert len(hooks) == 2
    remove_hook(other)
    assert len(hooks) == 0


def test_a_hook_that_is_removed_from_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may be finished in one thread while another one trains."""
    guard(monkeypatch)
    model, optimizer = parts()
    inside, removed = threading.Event(), threading.Event()

    def wait(*args: Any) -> None:
        inside.set()
        assert removed.wait(30)

    optimizer.register_step_pre_hook(wait)
    later = Later()
    handle = add_step_hook(optimizer, later)

    def remove() -> None:
        assert inside.wait(30)
        remove_hook(handle)
        removed.set()

    thread = threading.Thread(target=remove)
    thread.start()
    step(model, optimizer)
    thread.join()
    assert later.calls == 0
    assert changes == []
    remove_hook(handle)
    assert len(optimizer._optimizer_step_pre_hooks) == 1


@pytest.mark.parametrize("carry", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_hook_of_a_module_that_has_raised(
    monkeypatch: pytest.MonkeyPatch, carry: Callable[[Any], Any]
) -> None:
    """Then PyTorch iterates over the forward hooks themselves, to call those that are always called.

    The module can be copied and pickled before the entry goes.
    """
    guard(monkeypatch)
    module = Raises()
    handle = module.register_forward_hook(lambda *args: remove_hook(handle), always_call=True)
    later = Later()
    module.register_forward_hook(later, always_call=True)
    with pytest.raises(ValueError, match="as asked"):
        module(1)
    assert later.calls == 1
    assert changes == []
    assert len(module._forward_hooks) == 2
    with pytest.raises(ValueError, match="as asked"):
        carry(module)(1)
    remove_hook(handle)
    assert len(module._forward_hooks) == 1


# Adding


def test_nothing_is_added_while_pytorch_iterates(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the hooks of the other side, and inside the step itself, it is."""
    guard(monkeypatch)
    model, optimizer = parts()
    added: dict[str, Any] = {}

    def before(*args: Any) -> None:
        added["before to before"] = add_step_hook(optimizer, Later())
        added["before to all before"] = add_step_hook(None, Later())
        added["before to after"] = add_step_hook(optimizer, Later(), after=True)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, mlp)
        loss.backward()
        added["inside to before"] = add_step_hook(optimizer, Later())
        added["inside to all before"] = add_step_hook(None, Later())
        return loss

    def after(*args: Any) -> None:
        added["after to before"] = add_step_hook(optimizer, Later())
        added["after to after"] = add_step_hook(optimizer, Later(), after=True)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    optimizer.step(closure)
    assert changes == []
    assert {name: handle is not None for name, handle in added.items()} == {
        "before to before": False,
        "before to all before": False,
        "before to after": True,
        "inside to before": True,
        "inside to all before": True,
        "after to before": True,
        "after to after": False,
    }
    for handle in added.values():
        if handle is not None:
            remove_hook(handle)
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_hooks_of_pytorch_are_guarded_in_these_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing a hook PyTorch's own way inside itself is noted."""
    guard(monkeypatch)
    model, optimizer = parts()
    handles: list[Any] = []

    def leave(*args: Any) -> None:
        for handle in handles:
            handle.remove()

    handles.append(optimizer.register_step_pre_hook(leave))
    handles.append(register_optimizer_step_pre_hook(leave))
    step(model, optimizer)
    assert len(changes) == 1
    assert "in leave" in changes[0]
