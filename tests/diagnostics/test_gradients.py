"""The gradients that an optimizer used, against their norms in float64 at the step itself."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from stepwell._core.errors import StepwellError
from stepwell.diagnostics.gradients import Gradients
from stepwell.diagnostics.norms import fetch
from tests.diagnostics.models import KINDS, Bag, Block, gradient_norm64, loss_of, made, mlp, norm64

pytestmark = pytest.mark.torch


def optimizer_for(model: nn.Module, kind: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0 if kind is Bag else 0.9)


def backward(model: nn.Module, kind: Callable[[], nn.Module] = mlp) -> float:
    """One backward pass; the norm of all gradients after it."""
    loss_of(model, kind).backward()
    return gradient_norm64(model)


def overall(gradients: Gradients) -> float:
    found = gradients.latest()
    assert found is not None
    return fetch(found)["overall"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["before", "after", "to zero"])
def test_zeroing_before_or_after_makes_no_difference(kind: object, order: str) -> None:
    model = made(kind)
    optimizer = optimizer_for(model, kind)
    gradients = Gradients(model, optimizer)
    gradients.take_next()
    if order == "before":
        optimizer.zero_grad()
    expected = backward(model, kind)
    optimizer.step()
    if order != "before":
        optimizer.zero_grad(set_to_none=order == "after")
    assert overall(gradients) == pytest.approx(expected, rel=1e-6)
    assert expected > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda own: torch.optim.SGD(own, 0.1, momentum=0.9, weight_decay=0.1, foreach=True),
        lambda own: torch.optim.SGD(own, 0.1, fused=True),
        lambda own: torch.optim.AdamW(own, foreach=True),
        lambda own: torch.optim.AdamW(own, fused=True),
        lambda own: torch.optim.Adam(own, maximize=True, weight_decay=0.1, foreach=True),
        lambda own: torch.optim.Adagrad(own),
    ],
)
def test_optimizers_of_every_make(make: Callable[..., torch.optim.Optimizer]) -> None:
    """Also those that calculate in the gradients' own memory."""
    model = made(mlp)
    optimizer = make(model.parameters())
    gradients = Gradients(model, optimizer)
    gradients.take_next()
    expected = backward(model)
    optimizer.step()
    assert overall(gradients) == pytest.approx(expected, rel=1e-6)


def test_an_optimizer_that_spoils_its_gradients() -> None:
    class Spoils(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            if closure is not None:
                with torch.enable_grad():
                    closure()
            super().step()
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(100)

    model = made(mlp)
    optimizer = Spoils(model.parameters(), 0.1)
    gradients = Gradients(model, optimizer)
    gradients.take_next()
    expected = backward(model)
    optimizer.step()
    assert overall(gradients) == pytest.approx(expected, rel=1e-6)


def test_groups_have_norms_of_their_own() -> None:
    """And one whose parameters got no gradient has zero."""
    model = made(Block)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rule = {"backbone": "^backbone", "tied": "^lm_head", "none": "unused", "nobody": "^xyz"}
    gradients = Gradients(model, optimizer, rule)
    gradients.take_next()
    loss_of(model, Block).backward()
    expected = {
        "overall": gradient_norm64(model),
        "backbone": gradient_norm64(model.backbone),
        "tied": norm64([model.embed.weight.grad]),
        "none": 0.0,
    }
    optimizer.step()
    assert fetch(gradients.latest() or {}) == pytest.approx(expected, rel=1e-6)


def test_only_what_the_optimizer_updates_counts() -> None:
    """A layer that is not in it accumulates gradients that are never used."""
    model = made(mlp)
    optimizer = torch.optim.SGD(model[2].parameters(), 0.1)
    gradients = Gradients(model, optimizer, "layers")
    for _ in range(3):
        gradients.take_next()
        optimizer.zero_grad()
        loss_of(model, mlp).backward()
        expected = gradient_norm64(model[2])
        optimizer.step()
        found = fetch(gradients.latest() or {})
        assert found == pytest.approx({"overall": expected, "2": expected}, rel=1e-6)
    assert fetch(gradients.present() or {})["overall"] == pytest.approx(expected, rel=1e-6)


def test_several_optimizers_are_watched_apart() -> None:
    model = made(mlp)
    parts = [model[0], model[2]]
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in parts]
    watching = [Gradients(model, optimizer) for optimizer in optimizers]
    for gradients in watching:
        gradients.take_next()
    loss_of(model, mlp).backward()
    expected = [gradient_norm64(part) for part in parts]
    optimizers[0].step()
    assert watching[1].latest() is None
    optimizers[1].step()
    assert [overall(one) for one in watching] == pytest.approx(expected, rel=1e-6)


# Clipping


def test_clipped_gradients_and_the_norm_before() -> None:
    model = made(mlp)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients = Gradients(model, optimizer)
    gradients.take_next()
    before = backward(model)
    gradients.note_clipping(nn.utils.clip_grad_norm_(model.parameters(), before / 4))
    after = gradient_norm64(model)
    optimizer.step()
    assert overall(gradients) == pytest.approx(after, rel=1e-6)
    assert float(gradients.before_clipping) == pytest.approx(before, rel=1e-5)
    assert after == pytest.approx(before / 4, rel=1e-4)


def test_the_norm_before_clipping_is_that_of_the_same_step() -> None:
    """One that was handed over earlier is not taken for it."""
    model = made(mlp)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients = Gradients(model, optimizer)
    gradients.note_clipping(5.0)
    assert float(gradients.before_clipping) == 5.0
    gradients.take_next()
    backward(model)
    optimizer.step()
    assert gradients.before_clipping is None


# Closures


@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_that_zeroes_and_clips_as_lightning_does(by_name: bool) -> None:
    """A hook before the step alone would see the gradients of the step before."""
    model = made(mlp)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients = Gradients(model, optimizer)
    expected: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, mlp)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        expected.append(gradient_norm64(model))
        return loss

    for _ in range(3):
        gradients.take_next()
        loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        assert isinstance(loss, torch.Tensor)
        assert overall(gradients) == pytest.approx(expected[-1], rel=1e-6)
    assert len(expected) == 3
    assert len(set(expected)) > 1 or expected[0] == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_calls_its_closure_many_times(line_search: str | None) -> None:
    """The gradients are those of the last call, and the steps what they are without the hook."""

    def trained(watch: bool) -> tuple[nn.Module, list[float]]:
        model = made(mlp)
        torch.manual_seed(5)
        inputs = torch.randn(20, 6)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=6, line_search_fn=line_search)
        gradients = Gradients(model, optimizer)
        norms: list[float] = []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(inputs) - 1).square().mean()
            loss.backward()
            norms.append(gradient_norm64(model))
            return loss

        for _ in range(3):
            if watch:
                gradients.take_next()
            optimizer.step(closure)
            if watch:
                assert overall(gradients) == pytest.approx(norms[-1], rel=1e-5)
        return model, norms

    watched, norms = trained(True)
    plain, others = trained(False)
    assert norms == others
    assert len(norms) > 6
    assert all(map(torch.equal, watched.parameters(), plain.parameters()))


# Mixed precision


def test_bfloat16_autocast_and_bfloat16_weights() -> None:
    for model in (made(mlp), made(mlp).bfloat16()):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        gradients = Gradients(model, optimizer)
        gradients.take_next()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, mlp)
        loss.backward()
        expected = gradient_norm64(model)
        optimizer.step()
        assert overall(gradients) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscaled_before", [False, True])
def test_a_grad_scaler(fused: bool, unscaled_before: bool) -> None:
    """Unscaled norms, whether the user or the scaler unscales."""
    model = made(mlp)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    gradients = Gradients(model, optimizer)
    gradients.take_next()
    scaler.scale(loss_of(model, mlp)).backward()
    expected = gradient_norm64(model, 1024.0)
    if unscaled_before:
        scaler.unscale_(optimizer)
        gradients.note_clipping(nn.utils.clip_grad_norm_(model.parameters(), expected / 2))
        assert float(gradients.before_clipping) == pytest.approx(expected, rel=1e-5)
        expected = gradient_norm64(model)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    assert overall(gradients) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_grad_scaler_leaves_out_is_none(fused: bool) -> None:
    model = made(mlp)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    gradients = Gradients(model, optimizer)
    gradients.take_next()
    scaler.scale(loss_of(model, mlp) * math.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    assert gradients.latest() is None
    scaler.scale(loss_of(model, mlp)).backward()
    expected = gradient_norm64(model, scaler.get_scale())
    scaler.step(optimizer)
    assert overall(gradients) == pytest.approx(expected, rel=1e-5)


# Which step


def test_under_accumulation_the_latest_real_step_counts() -> None:
    model = made(mlp)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients = Gradients(model, optimizer)
    gradients.take_next()
    used = 0.0
    for batch in range(1, 9):
        present = backward(model)
        if batch % 3 == 0:
            used = present
            optimizer.step()
            optimizer.zero_grad()
    assert overall(gradients) == pytest.approx(used, rel=1e-6)
    assert gradients.steps == 2


def test_each_taken_step_is_a_new_result_and_others_cost_nothing() -> None:
    """Once asked for, no more are taken; closed, the optimizer is left alone until the next time."""
    model = made(mlp)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients = Gradients(model, optimizer)
    assert gradients.latest() is None
    gradients.take_next()
    assert gradients.latest() is None
    backward(model)
    optimizer.step()
    first = gradients.latest()
    assert first is not None
    assert gradients.latest() is first
    optimizer.step()
    assert (gradients.latest() is first, gradients.steps) == (True, 1)
    gradients.close()
    assert not optimizer._optimizer_step_pre_hooks
    optimizer.step()
    assert gradients.latest() is first
    gradients.take_next()
    gradients.take_next()
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    assert gradients.latest() is first
    optimizer.step()
    assert gradients.latest() is not first
    gradients.take_next()
    gradients.close()
    gradients.close()
    assert not optimizer._optimizer_step_pre_hooks


def test_gradients_that_are_there_now() -> None:
    """None at all is not the same as zero."""
    model = made(mlp)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients = Gradients(model, optimizer)
    assert gradients.present() is None
    expected = backward(model)
    assert fetch(gradients.present() or {})["overall"] == pytest.approx(expected, rel=1e-6)
    optimizer.zero_grad(set_to_none=False)
    assert fetch(gradients.present() or {})["overall"] == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_seen(value: float) -> None:
    model = made(mlp)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients = Gradients(model, optimizer, "layers")
    gradients.take_next()
    backward(model)
    model[2].bias.grad[0] = value
    optimizer.step()
    found = fetch(gradients.latest() or {})
    assert str(found["overall"]) == str(found["2"]) == str(value)
    assert math.isfinite(found["0"])


# When something is wrong


def test_a_problem_is_raised_where_it_is_asked_for_and_not_in_the_step() -> None:
    def rule(name: str, parameter: object) -> str:
        raise ValueError("a broken rule")

    model = made(mlp)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients = Gradients(model, optimizer, rule)
    gradients.take_next()
    backward(model)
    optimizer.step()
    with pytest.raises(ValueError, match="a broken rule"):
        gradients.latest()
    assert gradients.latest() is None
    assert not gradients.is_taking


def test_an_optimizer_of_another_model_has_no_norm() -> None:
    """There is nothing to measure; a warning says why."""
    gradients = Gradients(made(mlp), torch.optim.SGD(made(mlp).parameters(), 0.1))
    assert gradients.present() is None


def test_what_is_no_optimizer_is_said() -> None:
    class Own:
        param_groups = ()

        def step(self) -> None: ...

    with pytest.raises(StepwellError, match=r"must be a torch\.optim\.Optimizer"):
        Gradients(made(mlp), Own()).take_next()


def test_an_optimizer_inside_another_is_found() -> None:
    """As Accelerate wraps them."""

    class Outer:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer
            self.param_groups = optimizer.param_groups

        def step(self) -> None:
            self.optimizer.step()

    model = made(mlp)
    outer = Outer(torch.optim.SGD(model.parameters(), 0.1))
    gradients = Gradients(model, outer)
    gradients.take_next()
    expected = backward(model)
    outer.step()
    assert overall(gradients) == pytest.approx(expected, rel=1e-6)


# Nothing is changed


@pytest.mark.full
def test_compiled_models_and_steps() -> None:
    model = made(mlp)
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = torch.compile(optimizer.step, backend="eager")
    gradients = Gradients(compiled, optimizer, "layers")
    for _ in range(3):
        gradients.take_next()
        expected = backward(compiled)
        step()
        optimizer.zero_grad()
        found = fetch(gradients.latest() or {})
        assert found["overall"] == pytest.approx(expected, rel=1e-6)
        assert list(found) == ["overall", "0", "2"]


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_the_same_with_and_without(kind: object) -> None:
    """Bit by bit: weights, gradients and the state of the random numbers."""

    def trained(watch: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
        model = made(kind)
        optimizer = optimizer_for(model, kind)
        gradients = Gradients(model, optimizer)
        torch.manual_seed(2)
        for _ in range(6):
            if watch:
                gradients.take_next()
            optimizer.zero_grad()
            loss_of(model, kind).backward()
            optimizer.step()
            if watch:
                gradients.latest()
        left = [one.grad.to_dense() for one in model.parameters() if one.grad is not None]
        return [*model.state_dict().values(), *left], torch.random.get_rng_state()

    watched, plain = trained(True), trained(False)
    assert all(map(torch.equal, watched[0], plain[0]))
    assert torch.equal(watched[1], plain[1])
