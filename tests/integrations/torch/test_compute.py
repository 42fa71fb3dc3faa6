"""Forward, backward and optimizer steps are recorded exactly once each, in any kind of loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

from stepwell import Run, ai  # noqa: E402
from stepwell._core.errors import StepwellError  # noqa: E402
from stepwell.integrations.torch import annotate  # noqa: E402
from tests.integrations.torch.loops import (  # noqa: E402
    counts,
    make_loader,
    make_model,
    make_optimizer,
    per_step,
    train,
)
from tests.nesting.tree import edges, events, finished, statuses  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def model() -> Any:
    return make_model()


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    yield
    ai.enable()


def test_a_plain_loop(recorded: Run, model: Any) -> None:
    """Each step has one of each, side by side, with the categories of the tree and its own step."""
    optimizer, loader = make_optimizer(model), make_loader()
    with annotate(model, optimizer, loader):
        train(model, optimizer, loader, epochs=2)
    spans = finished(recorded)
    one = {"fetch": 1, "forward": 1, "backward": 1, "step": 1}
    assert per_step(spans) == dict.fromkeys(range(8), one)
    assert set(edges(spans)) == {(name, None) for name in one}
    order = spans["name"].to_list()
    assert order == ["fetch", "forward", "backward", "step"] * 8
    assert set(spans.select("category", "name").iter_rows()) == {
        ("dataloader", "fetch"),
        ("compute", "forward"),
        ("compute", "backward"),
        ("compute", "step"),
    }
    assert set(spans["status"]) == {"ok"}


def test_annotating_twice_counts_once(recorded: Run, model: Any) -> None:
    """It stays annotated until both handles are removed, each of which may be removed twice."""
    optimizer, loader = make_optimizer(model), make_loader()
    first = annotate(model, optimizer, loader)
    second = annotate([model, model], [optimizer], [loader])
    train(model, optimizer, loader)
    first.remove()
    first.remove()
    train(model, optimizer, loader)
    second.remove()
    second.remove()
    train(model, optimizer, loader)
    spans = finished(recorded)
    assert counts(spans) == {"fetch": 8, "forward": 8, "backward": 8, "step": 8}


def test_gradient_accumulation(recorded: Run, model: Any) -> None:
    """Steps are those of the optimizer; its step holds the passes of all its batches."""
    optimizer, loader = make_optimizer(model), make_loader()
    with annotate(model, optimizer, loader):
        train(model, optimizer, loader, epochs=2, accumulate=4)
    one = {"fetch": 4, "forward": 4, "backward": 4, "step": 1}
    assert per_step(finished(recorded)) == {0: one, 1: one}


def test_inside_spans_of_the_user(recorded: Run, model: Any) -> None:
    """Records are inside the span that is open around them."""
    with annotate(model), recorded.span("mine"):
        model(torch.ones(1, 4)).sum().backward()
    spans = finished(recorded)
    assert edges(spans) == {("mine", None): 1, ("forward", "mine"): 1, ("backward", "mine"): 1}


def test_only_the_outermost_call_of_models_counts(recorded: Run, model: Any) -> None:
    """A model and a part of it, both annotated: one forward, unless the part is called by itself."""
    with annotate([model, model[0]]):
        model(torch.ones(1, 4))
        model[0](torch.ones(1, 4))
    assert counts(finished(recorded)) == {"forward": 2}


def test_a_model_that_calls_itself(recorded: Run) -> None:
    """Recursion is one forward."""

    class Recursive(torch.nn.Module):
        def forward(self, depth: int) -> int:
            return 0 if depth == 0 else 1 + self(depth - 1)

    made = Recursive()
    with annotate(made):
        assert made(5) == 5
        assert made(2) == 2
    assert counts(finished(recorded)) == {"forward": 2}


def test_all_ways_to_backward(recorded: Run, model: Any) -> None:
    """The functions of autograd, passes over a kept graph, second derivatives, and other tensors."""
    from torch.autograd import backward, grad

    x = torch.ones(1, 4, requires_grad=True)
    with annotate(model):
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        torch.autograd.backward(loss, retain_graph=True)
        backward([loss])
        (slope,) = grad((x**3).sum(), x, create_graph=True)
        torch.autograd.grad(slope.sum(), x)
        torch.ones(1, requires_grad=True).sum().backward()
        torch.func.grad(lambda v: (v**2).sum())(torch.ones(2))
    assert counts(finished(recorded)) == {"forward": 1, "backward": 8}


def test_a_pass_inside_a_pass_is_one(recorded: Run, model: Any) -> None:
    """Checkpointing that runs the engine again is part of the outer pass; its forward shows inside."""
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(1, 4, requires_grad=True)
    with annotate(model):
        checkpoint(model, x, use_reentrant=True).sum().backward()
    spans = finished(recorded)
    assert edges(spans) == {
        ("forward", None): 1,
        ("backward", None): 1,
        ("forward", "backward"): 1,
    }


def test_an_exception_in_forward(recorded: Run, model: Any) -> None:
    """The span is closed with the error, which is raised unchanged, and recording continues."""
    with annotate(model):
        with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
            model(torch.ones(1, 3))
        assert type(caught.value) is RuntimeError
        model(torch.ones(1, 4))
    assert statuses(finished(recorded)) == {("forward", "error"): 1, ("forward", "ok"): 1}
    [(name, span, about)] = events(recorded)
    assert (name, span, about["exception_type"]) == ("error", "forward", "RuntimeError")


def test_a_good_call_while_an_exception_is_handled(recorded: Run, model: Any) -> None:
    """An exception that the caller deals with is none of this call."""
    with annotate(model):
        try:
            raise ValueError("of the caller")
        except ValueError:
            model(torch.ones(1, 4))
            with pytest.raises(RuntimeError):
                model(torch.ones(1, 3))
    assert statuses(finished(recorded)) == {("forward", "error"): 1, ("forward", "ok"): 1}


def test_an_exception_in_backward(recorded: Run, model: Any) -> None:
    with annotate(model):
        loss = model(torch.ones(1, 4)).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        model(torch.ones(1, 4)).sum().backward()
    found = statuses(finished(recorded))
    assert found == {("forward", "ok"): 2, ("backward", "ok"): 2, ("backward", "error"): 1}


def test_an_interrupt_passes_no_hook(recorded: Run, model: Any) -> None:
    """Ctrl-C in a notebook: the span it hit is unfinished, and what follows is recorded as ever."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    optimizer, loader = make_optimizer(model), make_loader()
    with annotate(model, optimizer, loader):
        handle = model[0].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 4))
        handle.remove()
        train(model, optimizer, loader)
    spans = finished(recorded)
    assert statuses(spans)[("forward", "unfinished")] == 1
    assert counts(spans) == {"fetch": 4, "forward": 5, "backward": 4, "step": 4}
    assert {above for _, above in edges(spans)} == {None}


def test_a_step_that_fails(recorded: Run, model: Any) -> None:
    """No hook is called: the span is unfinished, the step does not advance, and recording continues."""
    optimizer, loader = make_optimizer(model), make_loader()
    with annotate(model, optimizer, loader):

        def closure() -> Any:
            raise ValueError("of the closure")

        with pytest.raises(ValueError, match="of the closure"):
            optimizer.step(closure)
        train(model, optimizer, loader)
    spans = finished(recorded)
    assert statuses(spans)[("step", "unfinished")] == 1
    assert {above for _, above in edges(spans)} == {None}
    one = {"fetch": 1, "forward": 1, "backward": 1, "step": 1}
    assert per_step(spans) == {0: {**one, "step": 2}, 1: one, 2: one, 3: one}


def test_an_optimizer_with_a_closure(recorded: Run, model: Any) -> None:
    """The passes of LBFGS are inside its step."""
    model[1].p = 0.0
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, max_eval=3)
    x, y = torch.rand(8, 4), torch.rand(8, 1)
    evaluated = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        evaluated.append(loss.item())
        return loss

    with annotate(model, optimizer):
        optimizer.step(closure)
    n = len(evaluated)
    assert n >= 2
    assert edges(finished(recorded)) == {
        ("step", None): 1,
        ("forward", "step"): n,
        ("backward", "step"): n,
    }


def test_several_optimizers_and_a_schedule(recorded: Run, model: Any) -> None:
    """Each is recorded; the first one counts the steps, however schedulers wrap them."""
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model[3].parameters(), lr=0.1)
    before = torch.optim.lr_scheduler.StepLR(first, 1)
    handle = annotate(model, [first, second])
    after = torch.optim.lr_scheduler.StepLR(second, 1)
    for _ in range(3):
        model(torch.ones(1, 4)).sum().backward()
        second.step()
        first.step()
        before.step()
        after.step()
    handle.remove()
    one = {"forward": 1, "backward": 1, "step": 2}
    assert per_step(finished(recorded)) == {0: one, 1: one, 2: one}


def test_a_gradient_scaler_that_skips(recorded: Run, model: Any) -> None:
    """A step that is left out because of infinite gradients is none."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with annotate(model, optimizer):
        for scale in (1.0, float("inf"), 1.0):
            scaler.scale(model(torch.ones(1, 4)).sum() * scale).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    spans = finished(recorded)
    assert counts(spans) == {"forward": 3, "backward": 3, "step": 2}
    assert max(spans["step"].drop_nulls()) == 1


def test_threads(recorded: Run, model: Any) -> None:
    """Calls of several threads at once are each their own, on their own thread."""
    meet = threading.Barrier(3)

    def work() -> None:
        for _ in range(20):
            meet.wait()
            model(torch.ones(1, 4)).sum().backward()

    with annotate(model):
        threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    spans = finished(recorded)
    assert counts(spans) == {"forward": 60, "backward": 60}
    assert {above for _, above in edges(spans)} == {None}
    assert spans.group_by("thread").len()["len"].to_list() == [40, 40, 40]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("when", ["before", "after", "in place before", "in place after"])
def test_compiled(recorded: Run, model: Any, when: str) -> None:
    """Compiled before or after being annotated, in place or not, without a break in the graph."""
    options = {"backend": "aot_eager", "fullgraph": True}
    called = model
    model[1].p = 0.0
    if when == "before":
        called = torch.compile(model, **options)
    elif when == "in place before":
        model.compile(**options)
    handle = annotate(called)
    if when == "after":
        called = torch.compile(model, **options)
    elif when == "in place after":
        model.compile(**options)
    for _ in range(3):
        called(torch.ones(1, 4)).sum().backward()
    handle.remove()
    called(torch.ones(1, 4))
    # A loop that an earlier test has left behind may come to its end only now.
    spans = finished(recorded).filter(pl.col("name").is_in(["forward", "backward"]))
    if when == "after":
        # The compiled copy is annotated for as long as it lives.
        assert counts(spans) == {"forward": 4, "backward": 3}
    else:
        assert counts(spans) == {"forward": 3, "backward": 3}


def test_what_is_traced_is_not_broken(recorded: Run, model: Any) -> None:
    """A whole function of forward and transfer compiles into one graph while annotated."""
    with annotate(model):

        @torch.compile(backend="eager", fullgraph=True)
        def run(x: Any) -> Any:
            return model(x.to(torch.float64).to("cpu").to(torch.float32)).to(torch.float64)

        assert run(torch.ones(1, 4)).dtype is torch.float64


def test_nodes_obey_their_switches(recorded: Run, model: Any) -> None:
    """enable, disable and update of the tree hold for what is recorded automatically."""
    optimizer = make_optimizer(model)
    with annotate(model, optimizer):
        ai.compute.forward.disable()
        ai.compute.update(phase="warm")
        model(torch.ones(1, 4)).sum().backward()
        ai.enable()
        ai.compute.disable()
        optimizer.step()
        ai.enable()
        model(torch.ones(1, 4))
        ai.compute.update(phase=None)
    spans = finished(recorded)
    assert counts(spans) == {"backward": 1, "forward": 1}
    assert set(spans["attributes"]) == {'{"phase":"warm"}'}


def test_disabled_in_the_middle_of_a_call(recorded: Run, model: Any) -> None:
    """A span that was entered is closed; one that was not entered closes no other span."""
    handles = []
    with annotate(model):
        handles.append(model[0].register_forward_pre_hook(lambda *_: ai.disable()))
        model(torch.ones(1, 4))
        handles.pop().remove()
        handles.append(model[0].register_forward_pre_hook(lambda *_: ai.enable()))
        with recorded.span("mine"):
            model(torch.ones(1, 4))
    spans = finished(recorded)
    assert statuses(spans) == {("forward", "ok"): 1, ("mine", "ok"): 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "resnet"}, "model must be a torch.nn.Module or a list of them, got str"),
        ({"model": 3}, "model must be .*, got int"),
        ({"optimizer": [3]}, "optimizer must be a torch.optim.* or a list of them, got int"),
        ({"loader": range(3)}, "cannot record a range. Write `for batch in ai"),
        ({"loader": (x for x in ())}, "cannot record a generator"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], message: str) -> None:
    """A wrong argument is said at once, and nothing stays switched on."""
    original = torch.autograd._engine_run_backward
    with pytest.raises(StepwellError, match=message):
        annotate(make_model(), **{"loader": None, **given}) if "model" not in given else annotate(
            **given
        )
    assert torch.autograd._engine_run_backward is original
