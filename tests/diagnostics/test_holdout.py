"""The holdout: which examples count, what is said of them, and that no trace is left."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402

from stepwell.diagnostics.config import TelemetryConfig  # noqa: E402
from stepwell.diagnostics.holdout import MAX_LOGITS, evaluate, keep_first  # noqa: E402
from stepwell.diagnostics.isolation import isolated_eval  # noqa: E402
from tests.diagnostics.siamese import Siamese, pairs  # noqa: E402

pytestmark = pytest.mark.torch
nn = torch.nn
CPU = torch.device("cpu")


def _evaluated(model: Any, data: Any, **options: Any) -> dict[str, Any]:
    config = TelemetryConfig(**options)
    found = evaluate(model, keep_first(data, config), CPU, config)
    return {name: value.tolist() for name, value in found.items()}


class Careless(nn.Module):
    """Does in its forward pass all that a careful model would not."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(3)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("nothing", None)
        self.calls = 0
        self.cache: Any = None
        self.fails = fails

    def forward(self, x: Any) -> Any:
        self.seen += x.sum(0)
        self.replaced = self.replaced + 1
        self.calls += 1
        self.cache = x
        self.new_attribute = x
        self.norm.running_mean.add_(1.0)
        self.linear.requires_grad_(False)
        random.random()
        np.random.rand()
        torch.rand(3)
        if self.fails:
            raise RuntimeError("no")
        return self.linear(self.dropout(self.norm(x)))


@pytest.mark.parametrize("fails", [False, True])
def test_no_trace(fails: bool) -> None:
    """Modes of each module, buffers, attributes, gradients and random numbers are as before."""
    model = Careless(fails)
    model.train()
    model.norm.eval()
    model.linear.weight.grad = torch.ones(2, 3)
    buffers = dict(model.named_buffers())
    values = {name: tensor.clone() for name, tensor in buffers.items()}
    versions = {name: tensor._version for name, tensor in buffers.items()}
    modes = {name: module.training for name, module in model.named_modules()}
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()

    data = [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))]
    if fails:
        with pytest.raises(RuntimeError, match="no"):
            _evaluated(model, data)
    else:
        assert len(_evaluated(model, data)["logits"]) == 4

    assert {name: module.training for name, module in model.named_modules()} == modes
    assert modes["norm"] is False
    assert modes["dropout"] is True
    for name, tensor in model.named_buffers():
        assert tensor is buffers[name]
        assert torch.equal(tensor, values[name])
        assert tensor._version == versions[name]
    assert model.calls == 0
    assert model.cache is None
    assert not hasattr(model, "new_attribute")
    assert torch.equal(model.linear.weight.grad, torch.ones(2, 3))
    assert model.linear.bias.grad is None
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_a_graph_that_waits_for_its_backward_pass() -> None:
    """A loss that was computed before and is propagated afterwards does not notice."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    loss = model(torch.randn(4, 3)).sum()
    _evaluated(model, [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))])
    loss.backward()
    assert model[0].weight.grad is not None


def test_autocast_is_as_around_the_call() -> None:
    """And a step inside the same autocast has its gradients afterwards."""
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    data = [(x, torch.tensor([0, 1, 0, 1]))]
    plain = _evaluated(model, data)["logits"]
    assert plain == model(x).tolist()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = _evaluated(model, data)["logits"]
        output = model(x)
        assert output.requires_grad
        output.float().sum().backward()
        assert inside == output.float().tolist()
    assert inside != plain
    assert model.weight.grad is not None
    assert _evaluated(model, data, holdout_dtype="bfloat16")["logits"] == inside
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert _evaluated(model, data, holdout_dtype="float32")["logits"] == plain
        assert torch.is_autocast_enabled("cpu")


def test_it_is_evaluation_without_gradients() -> None:
    """Dropout is off in there, whatever modes the modules are in."""
    model = nn.Sequential(nn.Dropout(0.9))
    with isolated_eval(model, CPU):
        assert not torch.is_grad_enabled()
        assert torch.equal(model(torch.ones(9)), torch.ones(9))
    assert model.training
    assert model[0].training


def test_a_scripted_model() -> None:
    """Its buffers and modes are put back too."""
    with warnings.catch_warnings():
        # Scripting is on its way out.
        warnings.simplefilter("ignore")
        model = torch.jit.script(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))
    model.train()
    mean = dict(model.named_buffers())["0.running_mean"].clone()
    _evaluated(model, [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))])
    assert torch.equal(dict(model.named_buffers())["0.running_mean"], mean)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [([1] * 51, [1] * 50), ([8] * 51, [8] * 6 + [2]), ([64], [50]), ([20, 20], [20, 20])],
)
def test_examples_count(sizes: list[int], kept: list[int]) -> None:
    """The first 50 examples, however many batches they come in."""
    data = [pairs(1, size, i)[0] for i, size in enumerate(sizes)]
    pieces = keep_first(data, TelemetryConfig())
    assert [piece.count for piece in pieces] == kept
    assert [len(piece.batch["winner"]) for piece in pieces] == kept
    labels = torch.cat([batch["winner"] for batch in data])[:50].tolist()
    assert _evaluated(Siamese(), data)["labels"] == labels


def test_only_what_counts_is_read() -> None:
    """A loader is not read to its end, and draws no random numbers of training's."""

    def endless() -> Any:
        while True:
            torch.rand(1)
            yield torch.zeros(20, 3), torch.zeros(20)

    before = torch.get_rng_state()
    assert [it.count for it in keep_first(endless(), TelemetryConfig())] == [20, 20, 10]
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_documented() -> None:
    """Logits, labels, predictions and accuracy, against plain PyTorch."""
    model = Siamese().train()
    data = pairs(7, 8)
    found = _evaluated(model, data)
    assert list(found) == ["logits", "labels", "predictions", "accuracy"]
    reference = Siamese()
    reference.load_state_dict(model.state_dict())
    reference.eval()
    with torch.no_grad():
        logits = torch.cat([reference(it["img1"], it["img2"]) for it in data])[:50]
    labels = torch.cat([it["winner"] for it in data])[:50]
    assert torch.allclose(torch.tensor(found["logits"]), logits)
    assert found["predictions"] == logits.argmax(1).tolist()
    assert found["accuracy"] == (logits.argmax(1) == labels).double().mean().item()


class Gives(nn.Module):
    """Returns a given value."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Any) -> Any:
        return self.output


@pytest.mark.parametrize(
    ("output", "labels", "accuracy"),
    [
        (torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]), 0.5),
        (torch.tensor([0.5, -0.5]), torch.tensor([1.0, 0.0]), 1.0),
        (torch.tensor([[0.5], [-0.5]]), torch.tensor([[1], [1]]), 0.5),
        ((torch.tensor([[2.0, 1.0], [0.0, 3.0]]), None), torch.tensor([0, 1]), 1.0),
        ({"logits": torch.tensor([[2.0, 1.0], [0.0, 3.0]])}, torch.tensor([0, 1]), 1.0),
        (torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.eye(2), 1.0),
        (torch.tensor([[torch.nan, 1.0], [3.0, 0.0]]), torch.tensor([0, 0]), 0.5),
        (torch.eye(3).repeat(2, 1, 1), torch.tensor([[0, 1, 0], [0, -100, -100]]), 3 / 4),
        (torch.eye(3)[:, :2].T.reshape(1, 2, 3).repeat(2, 1, 1), torch.zeros(2, 3).long(), 4 / 6),
    ],
)
def test_kinds_of_outputs(output: Any, labels: Any, accuracy: float) -> None:
    """One logit or many, in a tuple or dict, one-hot labels, sequences, pixels, NaN, what does not count."""
    found = _evaluated(Gives(output), [(torch.zeros(2, 3), labels)])
    assert found["accuracy"] == pytest.approx(accuracy)


def test_outputs_with_a_name() -> None:
    """Outputs of transformers have their logits under that name."""
    output = type("Output", (), {"logits": torch.tensor([[0.0, 1.0]])})()
    assert _evaluated(Gives(output), [(torch.zeros(1, 3), torch.tensor([1]))])["accuracy"] == 1.0


def test_without_labels() -> None:
    """There are still predictions."""
    assert _evaluated(Gives(torch.eye(2)), [torch.zeros(2, 3)]) == {
        "logits": [[1.0, 0.0], [0.0, 1.0]],
        "predictions": [0, 1],
    }


def test_regression() -> None:
    """Predictions, targets and both errors."""
    found = _evaluated(
        Gives(torch.tensor([[1.0], [2.0], [4.0]])),
        [(torch.zeros(3, 1), torch.tensor([1.0, 4.0, 3.0]))],
        task="regression",
    )
    assert found == {
        "predictions": [1.0, 2.0, 4.0],
        "targets": [1.0, 4.0, 3.0],
        "mse": 5 / 3,
        "mae": 1.0,
    }


def test_very_many_logits_are_left_out() -> None:
    """A record stays readable: accuracy and predictions are there all the same."""
    found = _evaluated(
        Gives(torch.zeros(2, MAX_LOGITS)), [(torch.zeros(2, 3), torch.tensor([0, 1]))]
    )
    assert set(found) == {"labels", "predictions", "accuracy"}


@pytest.mark.parametrize(
    ("output", "labels"),
    [(torch.eye(2), torch.zeros(2, 5).long()), (torch.eye(2), torch.ones(2, 2)), ("text", [0, 1])],
)
def test_what_does_not_fit_is_said(output: Any, labels: Any) -> None:
    """Not guessed at."""
    with pytest.raises(ValueError, match=r"labels|return"):
        _evaluated(Gives(output), [(torch.zeros(2, 3), labels)])


def test_wrapped_models_are_unwrapped() -> None:
    """The holdout causes neither a new compilation nor a synchronisation with other ranks."""
    model = Siamese()
    wrapped = nn.DataParallel(model)
    data = pairs(1, 4)
    assert _evaluated(wrapped, data) == _evaluated(model, data)

    class Compiled(nn.Module):
        """As torch.compile returns it, which takes long to import."""

        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = model

    assert _evaluated(Compiled(), data) == _evaluated(model, data)


def test_what_a_model_does_to_its_inputs_is_done_to_copies() -> None:
    """The examples are the same at the next collection, and the caller's own are never touched."""

    class Scales(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mul_(2)

    examples = torch.ones(2, 3)
    data = [(examples, torch.tensor([0, 0]))]
    assert _evaluated(Scales(), data)["logits"] == [[2.0, 2.0, 2.0]] * 2
    assert torch.equal(examples, torch.ones(2, 3))


def test_random_numbers_of_an_accelerator_of_another_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are put back too."""
    from stepwell.diagnostics.isolation import preserved_rng

    state = [7]
    monkeypatch.setattr(torch.xpu, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.xpu, "get_rng_state_all", lambda: list(state))
    monkeypatch.setattr(torch.xpu, "set_rng_state_all", lambda given: state.__setitem__(0, *given))
    with preserved_rng():
        state[0] = 8
    assert state == [7]
