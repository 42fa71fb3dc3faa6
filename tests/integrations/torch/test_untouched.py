"""Training is unchanged: same numbers, same objects, nothing kept alive, and no exception of stepwell."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell import Run  # noqa: E402
from stepwell.integrations.torch import annotate, recording  # noqa: E402
from tests.harness import run_script  # noqa: E402
from tests.integrations.torch.loops import (  # noqa: E402
    counts,
    make_loader,
    make_model,
    make_optimizer,
    train,
)
from tests.nesting.tree import finished  # noqa: E402

pytestmark = pytest.mark.torch


def test_bit_identical(recorded: Run) -> None:
    """Losses, weights, gradients, optimizer state and random numbers are the same, bit for bit."""

    def result(annotated: bool) -> list[Any]:
        model = make_model()
        optimizer, loader = make_optimizer(model), make_loader(shuffle=True)
        handle = annotate(model, optimizer, loader) if annotated else None
        losses = train(model, optimizer, loader, epochs=5)
        if handle is not None:
            handle.remove()
        state = [v for s in optimizer.state.values() for v in s.values()]
        return [torch.tensor(losses), *model.parameters(), *state, torch.get_rng_state()]

    plain, annotated = result(False), result(True)
    assert len(plain) == len(annotated) > 10
    assert all(torch.equal(a, b) for a, b in zip(plain, annotated, strict=True))
    assert counts(finished(recorded))["forward"] == 20


@pytest.mark.full
@pytest.mark.parametrize("removed", [False, True])
def test_nothing_is_kept(recorded: Run, removed: bool) -> None:
    """Model, optimizer, loader, batches and losses go when the user lets go of them, at once."""
    model = make_model()
    optimizer, loader = make_optimizer(model), make_loader()
    handle = annotate(model, optimizer, loader)
    train(model, optimizer, loader)
    output = model(torch.ones(1, 4))
    output.sum().backward()
    if removed:
        handle.remove()
    optimizer.zero_grad()
    refs = [weakref.ref(each) for each in (model, optimizer, loader, output, model[0].weight)]
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    del model, loader, output
    assert [ref() is None for ref in refs] == [True, False, True, True, False]
    if was_enabled:
        gc.enable()
    del optimizer
    gc.collect()
    assert [ref() for ref in refs] == [None] * 5
    handle.remove()


def test_an_error_keeps_nothing(recorded: Run) -> None:
    """The exception that went through a model is not held on to."""
    model = make_model()
    with annotate(model):
        batch = torch.ones(1, 3)
        ref = weakref.ref(batch)
        with pytest.raises(RuntimeError):
            model(batch)
        del batch
        gc.collect()
        assert ref() is None


def test_copies_and_pickles(recorded: Run, tmp_path: Path) -> None:
    """They are models like any other: same numbers, not recorded, and loaded without stepwell."""
    model = make_model().eval()
    keys = list(model.state_dict())
    x = torch.ones(1, 4)
    with annotate(model, make_optimizer(model)):
        assert list(model.state_dict()) == keys
        expected = model(x)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        copies = [
            copy.deepcopy(model),
            copy.deepcopy(copy.deepcopy(model)),
            pickle.loads(pickle.dumps(model)),
            torch.load(buffer, weights_only=False),
        ]
        for each in copies:
            assert torch.equal(each(x), expected)
        with annotate(copies[0]):
            copies[0](x)
        fresh = make_model()
        fresh.load_state_dict(model.state_dict())
        torch.save(model, tmp_path / "model.pt")
    assert counts(finished(recorded)) == {"forward": 2}
    program = (
        "import sys, torch\n"
        "for name in [n for n in sys.modules if n.partition('.')[0] == 'stepwell']:\n"
        "    sys.modules[name] = None\n"
        f"m = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False);"
        "print(float(m(torch.ones(1, 4))))"
    )
    printed = run_script(program, check=True, cwd=tmp_path)
    assert float(printed.stdout) == pytest.approx(expected.item())


def test_a_shallow_copy_of_a_model_computes_with_its_own_weights(recorded: Run) -> None:
    """As data parallel replicas are made: the namespace is copied, the parameters are replaced."""
    model = torch.nn.Linear(1, 1, bias=False)
    with annotate(model):
        replica = model._replicate_for_data_parallel()
        replica._parameters = {}
        replica.weight = torch.full((1, 1), 42.0)
        replica.bias = None
        assert replica(torch.ones(1, 1)).item() == 42.0


def test_optimizers_are_copied_and_saved(recorded: Run) -> None:
    model = make_model()
    optimizer = make_optimizer(model)
    train(model, optimizer, make_loader())
    plain = optimizer.state_dict()
    with annotate(model, optimizer):
        assert optimizer.state_dict().keys() == plain.keys()
        other = copy.deepcopy(optimizer)
        other.step()
        pickle.loads(pickle.dumps(optimizer)).step()
    assert counts(finished(recorded)) == {}


def test_a_problem_of_ours_stays_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails in the hooks is reported in the run, and training ends as it would have."""
    run = stepwell.init(dir=tmp_path)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("broken")

    model = make_model()
    optimizer, loader = make_optimizer(model), make_loader()
    expected = train(make_model(), make_optimizer(make_model()), make_loader())
    for name in ("begin_call", "end_call"):
        monkeypatch.setattr(f"stepwell.integrations.torch.hooks.{name}", fail)
        monkeypatch.setattr(f"stepwell.integrations.torch.hooks.{name}", fail)
    with annotate(model, optimizer, loader):
        monkeypatch.setattr(recording, "context", None)
        losses = train(model, optimizer, loader)
    monkeypatch.undo()
    assert len(losses) == len(expected)
    assert counts(finished(run)) == {}
    found = stepwell.open_run(run.path).events().collect()
    assert set(found["name"]) == {"telemetry_data_error"}
    assert any("broken" in text for text in found["attributes"])


def test_without_a_run_nothing_is_recorded(tmp_path: Path) -> None:
    """Annotated before a run begins and after it ends: only what is in between is there."""
    model = make_model()
    optimizer, loader = make_optimizer(model), make_loader()
    with annotate(model, optimizer, loader):
        train(model, optimizer, loader)
        run = stepwell.init(dir=tmp_path)
        train(model, optimizer, loader)
        run.finish()
        train(model, optimizer, loader)
    spans = stepwell.open_run(run.path).spans().collect()
    assert counts(spans) == {"fetch": 4, "forward": 4, "backward": 4, "step": 4}


def test_a_run_that_begins_or_ends_inside_a_call(tmp_path: Path) -> None:
    """A span whose beginning was not seen is none; one whose end was not is unfinished."""
    model = make_model()
    runs = []
    with annotate(model):
        begin = model[0].register_forward_pre_hook(
            lambda *_: runs.append(stepwell.init(dir=tmp_path)) and None
        )
        model(torch.ones(1, 4))
        begin.remove()
        end = model[0].register_forward_pre_hook(lambda *_: stepwell.finish())
        model(torch.ones(1, 4))
        end.remove()
    (run,) = runs
    spans = stepwell.open_run(run.path).spans().collect()
    assert spans.select("name", "status").rows() == [("forward", "unfinished")]
