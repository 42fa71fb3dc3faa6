"""``stepwell.watch``: a plain loop is recorded and not changed."""

from __future__ import annotations

import gc
import json
import warnings
import weakref
from pathlib import Path
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from tests.harness import run_script  # noqa: E402
from tests.integrations.torch.loops import (  # noqa: E402
    BATCHES,
    counts,
    make_loader,
    make_model,
    make_optimizer,
    train,
)
from tests.integrations.torch.watched import curve, parts, read, updates  # noqa: E402
from tests.nesting.tree import edges  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]


def test_the_length_of_a_loader_is_asked_for_without_a_trace() -> None:
    """A DataLoader that was asked warns when its dataset yields more; a length that fails is none."""

    class Longer(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Any:
            return iter(torch.ones(6, 4))

    class Failing(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            raise RuntimeError("not connected")

        def __iter__(self) -> Any:
            return iter(torch.ones(6, 4))

    for dataset in (Longer(), Failing()):
        model = make_model()
        optimizer = make_optimizer(model)
        loader = torch.utils.data.DataLoader(dataset, batch_size=2)
        with warnings.catch_warnings(), stepwell.watch(model, optimizer, loader) as watch:
            warnings.simplefilter("error")
            for x in loader:
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
        assert counts(read(watch.run)[1])["training_single_iteration"] == 3


def test_spans_steps_samples_and_losses() -> None:
    """One iteration for each optimizer step, with its passes inside; losses as the loop saw them."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        assert watch.loader is loader
        losses = train(model, optimizer, loader, epochs=3)
        run = watch.run
    assert run is not None
    assert run.status == "finished"
    found, spans = read(run)
    steps = 3 * BATCHES
    assert edges(spans) == {
        ("application", None): 1,
        ("training_loop", "application"): 1,
        ("fetch", "training_loop"): steps,
        ("training_single_iteration", "training_loop"): steps,
        ("forward", "training_single_iteration"): steps,
        ("backward", "training_single_iteration"): steps,
        ("step", "training_single_iteration"): steps,
        ("diagnostics", "training_single_iteration"): 1,
    }
    iterations = spans.filter(pl.col("name") == "training_single_iteration")
    assert iterations["step"].to_list() == list(range(steps))
    assert iterations["epoch"].to_list() == [i // BATCHES for i in range(steps)]
    (last,) = updates(found)
    assert last["is_final"]
    assert last["num_iterations"] == steps
    assert last["num_train_samples"] == 16 * 3
    assert last["avg_batch_size"] == 4
    assert last["latest_loss"] == losses[-1]
    assert curve(found) == list(enumerate(losses))
    assert curve(found, "learning_rate/group_0") == [(step, 0.1) for step in range(steps)]
    norms = curve(found, "gradient_norm/overall")
    assert [step for step, _ in norms] == list(range(steps))
    assert all(norm > 0 for _, norm in norms)


def test_bit_identical() -> None:
    """Weights, losses, optimizer state and random numbers are the same with and without."""

    def result(watched: bool) -> list[Any]:
        model = make_model()
        optimizer, loader = make_optimizer(model), make_loader(shuffle=True)
        if watched:
            watch = stepwell.watch(model, optimizer, loader, diagnostics=3)
        losses = train(model, optimizer, loader, epochs=5)
        if watched:
            watch.close()
        state = [v for s in optimizer.state.values() for v in s.values()]
        return [torch.tensor(losses), *model.parameters(), *state, torch.get_rng_state()]

    plain, watched = result(False), result(True)
    assert len(plain) == len(watched) > 10
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


@pytest.mark.parametrize("scaled", [False, True])
def test_mixed_precision(scaled: bool) -> None:
    """With autocast and a gradient scaler the loss is the unscaled one; a step left out is none."""
    model, optimizer, loader = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    losses = []
    with stepwell.watch(model, optimizer, loader, diagnostics=2) as watch:
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = torch.nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            if i == 1 and scaled:
                model[0].weight.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    found, _ = read(watch.run)
    (last,) = updates(found)
    if scaled:
        assert last["num_iterations"] == BATCHES - 1
        assert last["num_train_samples"] == 16
        assert curve(found) == [(0, losses[0]), (1, losses[2]), (2, losses[3])]
    else:
        assert curve(found) == list(enumerate(losses))
    assert all(value < 100 for _, value in curve(found, "gradient_norm/overall"))


@pytest.mark.parametrize("how", ["copy", "in place"])
def test_a_compiled_model(how: str) -> None:
    """Counted from the outside; operations are not, since looking would make it run uncompiled."""
    model, optimizer, loader = parts()
    called: Any = model
    if how == "copy":
        called = torch.compile(model, backend="aot_eager")
    else:
        model.compile(backend="aot_eager")
    with stepwell.watch(called, optimizer, loader) as watch:
        losses = train(called, optimizer, loader, epochs=2)
    found, spans = read(watch.run)
    assert counts(spans)["forward"] == counts(spans)["training_single_iteration"] == 2 * BATCHES
    assert curve(found) == list(enumerate(losses))
    assert "total_flops" not in updates(found)[-1]
    torch._dynamo.reset()


def test_an_active_run_is_left_open() -> None:
    """Only a run that was started here is finished; a resumed one continues counting."""
    with stepwell.init("mine") as run:
        model, optimizer, loader = parts()
        with stepwell.watch(model, optimizer, loader, step=100, epoch=7, target_steps=104) as watch:
            assert watch.run is run
            train(model, optimizer, loader)
        watch.close()
        assert run.status == "running"
    found, spans = read(run)
    assert spans.filter(pl.col("name") == "step")["step"].to_list() == [100, 101, 102, 103]
    assert set(spans.filter(pl.col("name") == "step")["epoch"]) == {7}
    loop = json.loads(spans.filter(pl.col("name") == "training_loop")["attributes"][0])
    assert loop["train_iterations_start"] == 100
    assert loop["train_iterations_target"] == 104
    assert [step for step, _ in curve(found)] == [100, 101, 102, 103]


def test_the_users_own_iterations() -> None:
    """Where the user counts already, nothing is counted twice."""
    from stepwell.training import training_iteration, training_loop

    model, optimizer, loader = parts()
    with stepwell.init() as run, stepwell.watch(model, optimizer, loader), training_loop():
        for x, y in loader:
            with training_iteration(samples=4):
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
    found, spans = read(run)
    assert counts(spans)["training_single_iteration"] == BATCHES
    assert updates(found)[-1]["num_iterations"] == BATCHES


def test_a_second_watch_ends_the_first() -> None:
    """As in a notebook, where a cell is run again."""
    runs = []
    for _ in range(2):
        model, optimizer, loader = parts()
        watch = stepwell.watch(model, optimizer, loader)
        train(model, optimizer, loader)
        runs.append(watch.run)
    watch.close()
    assert runs[0].id != runs[1].id
    for run in runs:
        assert updates(read(run)[0])[-1]["num_iterations"] == BATCHES


def test_several_optimizers() -> None:
    """The first one counts, the others are recorded."""
    model, optimizer, loader = parts()
    other = make_optimizer(model)
    with stepwell.watch(model, [optimizer, other], loader) as watch:
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            other.step()
    found, spans = read(watch.run)
    assert counts(spans)["step"] == 2 * BATCHES
    assert updates(found)[-1]["num_iterations"] == BATCHES


def test_nothing_is_kept() -> None:
    """Without diagnostics, model and optimizer go when the user lets go of them."""
    model, optimizer, loader = parts()
    watch = stepwell.watch(model, optimizer, loader, diagnostics=False)
    train(model, optimizer, loader)
    refs = [weakref.ref(each) for each in (model, optimizer, model[0].weight)]
    del model, optimizer
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3
    watch.close()


def test_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither hooks nor files; nor on ranks that are not chosen."""
    model, optimizer, loader = parts()
    monkeypatch.setenv("STEPWELL_MODE", "off")
    with stepwell.watch(model, optimizer, loader) as watch:
        assert not watch.is_on
        assert watch.loader is loader
    monkeypatch.delenv("STEPWELL_MODE")
    for ranks in (1, [1, 2], lambda rank: rank > 0):
        with stepwell.watch(model, optimizer, loader, ranks=ranks) as watch:
            assert not watch.is_on
            assert not model._forward_hooks
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": 3},
        {"optimizer": "adam"},
        {"loader": 3},
        {"diagnostics": 0},
        {"step": -1},
        {"ranks": 0.5},
        {"peak_flops": 0},
    ],
)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    """They are reported at once, and nothing is left behind."""
    with pytest.raises(stepwell.StepwellError, match=next(iter(wrong))):
        stepwell.watch(**wrong)
    assert stepwell.active_run() is None


@pytest.mark.parametrize("accumulate", [1, 2])
def test_facts_about_the_loop(accumulate: int) -> None:
    """How many parameters are trained and how long an epoch is: for findings and the time left."""
    model, _, loader = parts()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([model[0].weight, model[3].bias], lr=0.1)
    with stepwell.watch(model, optimizer, loader) as watch:
        train(model, optimizer, loader, accumulate=accumulate)
    _, spans = read(watch.run)
    facts = json.loads(spans.filter(pl.col("name") == "training_loop")["attributes"][0])
    assert facts["trainable_parameters"] == 3
    assert facts["optimized_parameters"] == 2
    assert facts["not_optimized"] == ["3.weight"]
    assert facts["not_optimized_numbers"] == model[3].weight.numel()
    assert facts["batches_per_epoch"] == BATCHES
    assert facts.get("batches_per_step", 1) == accumulate


@pytest.mark.parametrize("shuffle", [False, True])
def test_passes_that_are_stopped(shuffle: bool) -> None:
    """How many there are, and how many batches they use; and whether the loader shuffles."""
    model, optimizer, loader = parts()
    loader = torch.utils.data.DataLoader(loader.dataset, batch_size=2, shuffle=shuffle)
    with stepwell.watch(model, optimizer, loader) as watch:
        for _ in range(12):
            train(model, optimizer, [next(iter(loader))])
    _, spans = read(watch.run)
    facts = json.loads(spans.filter(pl.col("name") == "training_loop")["attributes"][0])
    assert facts["shuffle"] is shuffle
    assert facts["stopped_passes"] == facts["batches_of_stopped_passes"] == 12
    assert facts["complete_passes"] == 0


def test_an_optimizer_of_another_model(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is not an internal problem, and is not reported as one."""
    monkeypatch.delenv("STEPWELL_STRICT")
    model, _, loader = parts()
    optimizer = make_optimizer(make_model())
    with stepwell.watch(model, optimizer, loader) as watch:
        train(model, optimizer, loader)
    assert "inside stepwell" not in caplog.text
    assert "the optimizer updates none of the model's parameters" in caplog.text
    _, spans = read(watch.run)
    facts = json.loads(spans.filter(pl.col("name") == "training_loop")["attributes"][0])
    assert facts["optimized_parameters"] == 0


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_the_target_by_loader_and_epochs(epochs: int) -> None:
    """Exactly as many steps as the epochs have batches, from the first step on."""
    from stepwell.analysis.findings import Facts
    from stepwell.analysis.progress import time_left

    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader, config={"epochs": 96}) as watch:
        train(model, optimizer, loader, epochs=epochs)
        batches = iter(loader)
        train(model, optimizer, [next(batches)])
    assert watch.run is not None
    left = time_left(Facts(stepwell.open_run(watch.run.path)))
    assert left is not None
    assert (left.done, left.target) == (epochs * BATCHES + 1, 384)


def test_model_optimizer_and_batch_size_are_in_the_configuration(recorded: stepwell.Run) -> None:
    """So that runs can be compared; what the user configured stays."""
    recorded.add_config({"batch_size": "mine"})
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(
        [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=0.1, weight_decay=0.3
    )
    loader = torch.utils.data.DataLoader(torch.randn(6, 3), batch_size=2)
    with stepwell.watch(model, optimizer, loader):
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
    recorded.finish()
    config = stepwell.open_run(recorded.path).config
    assert config["model"] == {"class": "Linear", "parameters": 8, "trainable_parameters": 8}
    assert config["optimizer"]["class"] == "AdamW"
    assert config["optimizer"]["lr"] == [0.1, 0.5]
    assert config["optimizer"]["weight_decay"] == 0.3
    assert config["batch_size"] == "mine"


def test_the_first_step_imports_nothing(tmp_path: Path) -> None:
    """Modules needed to inspect the model are imported by ``watch``, not in the first step."""
    code = """
import sys, torch, stepwell
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
stepwell.watch(model, optimizer)
before = set(sys.modules)
model(torch.ones(2)).backward()
optimizer.step()
print(sorted(name for name in set(sys.modules) - before if name.startswith("stepwell")))
"""
    assert run_script(code, cwd=tmp_path, check=True).stdout == "[]\n"
