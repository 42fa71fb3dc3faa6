"""``stepwell.watch``: a plain loop is counted as it is, and left as it is."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell import Run  # noqa: E402
from stepwell.analysis.time import ledger  # noqa: E402
from stepwell.integrations.torch import watching_training  # noqa: E402
from stepwell.integrations.torch.following import following  # noqa: E402
from stepwell.reading import RecordedRun  # noqa: E402
from tests.integrations.torch.loops import (  # noqa: E402
    BATCHES,
    counts,
    make_loader,
    make_model,
    make_optimizer,
    train,
)
from tests.nesting.tree import check_tree, edges  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))
    yield
    assert following.follower is None


def parts() -> tuple[Any, Any, Any]:
    model = make_model()
    return model, make_optimizer(model), make_loader()


def read(run: Run) -> tuple[RecordedRun, pl.DataFrame]:
    found = stepwell.open_run(run.path)
    spans = found.spans().collect().sort("start_ns")
    check_tree(spans)
    return found, spans


def updates(run: RecordedRun) -> list[dict[str, Any]]:
    events = run.events().collect().sort("time_ns")
    found = events.filter(pl.col("name") == "training_metrics_update")
    return [json.loads(text) for text in found["attributes"]]


def curve(run: RecordedRun, name: str = "loss") -> list[tuple[int, float]]:
    found = run.metrics().collect().filter(pl.col("name") == name).sort("step")
    return found.select("step", "value").rows()


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
    assert curve(found, "learning_rate/group_0") == [(0, 0.1)]
    ((step, norm),) = curve(found, "gradient_norm/overall")
    assert step == 0
    assert norm > 0


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


def test_accumulated_gradients() -> None:
    """Iterations are optimizer steps; their samples and their loss are those of all passes."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        losses = train(model, optimizer, loader, epochs=2, accumulate=2)
    found, spans = read(watch.run)
    (last,) = updates(found)
    assert last["num_iterations"] == 4
    assert last["num_train_samples"] == 32
    sums = [a + b for a, b in zip(losses[::2], losses[1::2], strict=True)]
    assert curve(found) == list(enumerate(sums))
    assert spans.filter(pl.col("name") == "forward")["step"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]


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


def test_evaluation_is_no_training() -> None:
    """What the model does in evaluation mode is outside of the iterations; so is a look at a batch."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        next(iter(loader))
        for _ in range(2):
            train(model, optimizer, loader)
            model.eval()
            with torch.no_grad():
                for x, _ in make_loader():
                    model(x)
            model.train()
            with stepwell.span("afterwards"):
                pass
    found, spans = read(watch.run)
    tree = edges(spans)
    assert tree["forward", "training_single_iteration"] == 2 * BATCHES
    assert tree["forward", "validation_loop"] == 2 * BATCHES
    assert tree["validation_loop", "training_loop"] == 2
    assert tree["afterwards", "training_loop"] == 2
    # It ends with its last pass.
    validation = spans.filter(pl.col("name") == "validation_loop")
    later = spans.filter(pl.col("name") == "afterwards")["start_ns"]
    assert (validation["start_ns"] + validation["duration_ns"] < later).all()
    phases = ledger(found, by=()).filter(pl.col("phase") == "validation")
    assert phases["ns"].to_list() == [validation["duration_ns"].sum()]
    (last,) = updates(found)
    assert last["num_iterations"] == 2 * BATCHES
    assert last["num_train_samples"] == 32
    forward = spans.filter(pl.col("name") == "forward")
    assert forward["epoch"].to_list() == [0] * 8 + [1] * 8


def test_evaluation_on_what_is_trained_on() -> None:
    """Of the batches of the same loader, those that are only looked at are validation."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        run = watch.run
        assert run is not None
        for _ in range(2):
            train(model, optimizer, loader)
            model.eval()
            for x, _ in loader:
                model(x)
            model.train()
    found, spans = read(run)
    assert updates(found)[-1]["num_iterations"] == 2 * BATCHES
    assert edges(spans)["forward", "validation_loop"] == 2 * BATCHES
    assert counts(spans)["validation_loop"] == 2


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


def test_validation_that_the_user_records() -> None:
    """Is theirs, and none comes on top of it."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        train(model, optimizer, loader)
        model.eval()
        with stepwell.training.validation_loop():
            model(torch.ones(1, 4))
        model.train()
        train(model, optimizer, loader)
    _, spans = read(watch.run)
    assert counts(spans)["validation_loop"] == 1
    assert edges(spans)["forward", "validation_loop"] == 1


def test_left_early() -> None:
    """After ``break`` the iteration is over at once."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            break
        with stepwell.span("afterwards"):
            pass
    found, spans = read(watch.run)
    assert edges(spans)["afterwards", "training_loop"] == 1
    assert updates(found)[-1]["num_iterations"] == 1


@pytest.mark.parametrize("loader", ["none", "list", "generator", "not used"])
def test_loaders_that_cannot_be_followed(loader: str) -> None:
    """Then the forward pass begins an iteration, or ``watch.loader`` is gone through."""
    model, optimizer, batches = parts()
    items = list(batches)
    given: Any = {"none": None, "list": items, "generator": (i for i in items)}.get(loader, items)
    with stepwell.watch(model, optimizer, given) as watch:
        used = items if loader in ("none", "not used") else watch.loader
        losses = train(model, optimizer, used)
    found, spans = read(watch.run)
    (last,) = updates(found)
    assert last["num_iterations"] == BATCHES
    assert last["num_train_samples"] == 16
    assert curve(found) == list(enumerate(losses))
    assert counts(spans).get("fetch", 0) == (BATCHES if used is watch.loader and given else 0)


def test_fetched_by_another_thread() -> None:
    """Batches that a thread fetches ahead do not begin iterations."""
    import queue

    model, optimizer, loader = parts()
    ready: queue.Queue[Any] = queue.Queue(maxsize=1)

    def fetch() -> None:
        for batch in loader:
            ready.put(batch)
        ready.put(None)

    with stepwell.watch(model, optimizer, loader) as watch:
        thread = threading.Thread(target=fetch)
        thread.start()
        train(model, optimizer, iter(ready.get, None))
        thread.join()
    assert updates(read(watch.run)[0])[-1]["num_iterations"] == BATCHES


def test_several_steps_with_a_batch_and_a_closure() -> None:
    """Each step is an iteration; a closure that is called several times makes one loss."""
    model = make_model()
    optimizer, loader = torch.optim.LBFGS(model.parameters(), max_iter=3), make_loader()
    values = []
    with stepwell.watch(model, optimizer, loader) as watch:
        for x, y in loader:

            def closure(x: Any = x, y: Any = y) -> Any:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            for _ in range(2):
                values.append(optimizer.step(closure).item())
    found, _ = read(watch.run)
    (last,) = updates(found)
    assert last["num_iterations"] == 2 * BATCHES
    assert last["num_train_samples"] == 16
    assert curve(found) == list(enumerate(values))


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


def test_an_active_run_is_left_open() -> None:
    """Only what was started is finished; what was resumed goes on counting."""
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


def test_an_exception_in_training(tmp_path: Path) -> None:
    """It comes out untouched; every span is closed, and the run has failed."""
    model, optimizer, loader = parts()
    watch = stepwell.watch(model, optimizer, loader)

    def loop() -> None:
        with watch:
            for i, (x, y) in enumerate(loader):
                torch.nn.functional.mse_loss(model(x), y).backward()
                if i == 2:
                    raise ZeroDivisionError
                optimizer.step()

    with pytest.raises(ZeroDivisionError):
        loop()
    assert watch.run.status == "failed"
    found, spans = read(watch.run)
    assert set(spans["status"]) == {"ok", "error"}
    failed = spans.filter(pl.col("status") == "error")["name"].to_list()
    assert sorted(failed) == ["application", "training_loop", "training_single_iteration"]
    assert updates(found)[-1]["num_iterations"] == 2


def test_a_problem_of_ours_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails in here, training ends as it would have."""
    monkeypatch.delenv("STEPWELL_STRICT")
    expected = train(make_model(), make_optimizer(make_model()), make_loader())

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("broken")

    for name in ("_begin", "_find_loop", "_diagnose", "_look"):
        monkeypatch.setattr(watching_training.WatchedTraining, name, fail)
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader):
        assert len(train(model, optimizer, loader)) == len(expected)


def test_a_problem_with_validation_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended where a batch is asked for, which nothing of ours may spoil."""
    monkeypatch.delenv("STEPWELL_STRICT")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("broken")

    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader):
        train(model, optimizer, loader)
        model.eval()
        for x, _ in loader.dataset:
            model(x)
        model.train()
        with monkeypatch.context() as patch:
            patch.setattr(watching_training.Validation, "end", fail)
            train(model, optimizer, loader)


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
    """They are told at once, and nothing is left behind."""
    with pytest.raises(stepwell.StepwellError, match=next(iter(wrong))):
        stepwell.watch(**wrong)
    assert stepwell.active_run() is None


def test_at_the_end_of_the_program(tmp_path: Path) -> None:
    """Without ``close()`` the run is complete all the same."""
    program = """
import stepwell
from tests.integrations.torch.loops import *
model = make_model(); optimizer = make_optimizer(model); loader = make_loader()
stepwell.watch(model, optimizer, loader)
train(model, optimizer, loader)
"""
    root = Path(__file__).parents[3]
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        cwd=tmp_path,
        env={
            "PYTHONPATH": f"{root}:{root / 'src'}",
            "STEPWELL_DIR": str(tmp_path / "here"),
            "STEPWELL_RUNTIME": "off",
            "PATH": "/usr/bin",
        },
    )
    (found,) = stepwell.list_runs(tmp_path / "here")
    assert found.status == "finished"
    assert updates(found)[-1]["num_iterations"] == BATCHES
    assert len(curve(found)) == BATCHES


def test_interrupted_where_a_pass_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also there the passes that follow are recorded, and their losses."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        run = watch.run
        assert run is not None
        train(model, optimizer, loader)
        with monkeypatch.context() as patch:

            def interrupt(self: Any, outputs: Any) -> None:
                raise KeyboardInterrupt

            patch.setattr(watching_training.Loss, "add", interrupt)
            with pytest.raises(KeyboardInterrupt):
                train(model, optimizer, loader)
        train(model, optimizer, loader)
    found, spans = read(run)
    assert [step for step, _ in curve(found)] == list(range(2 * BATCHES))
    backward = spans.filter(pl.col("name") == "backward")["status"].to_list()
    assert (backward.count("ok"), len(backward)) == (2 * BATCHES, 2 * BATCHES + 1)


def test_in_a_running_loop() -> None:
    """As in a notebook: iterations belong to their own steps there too."""
    model, optimizer, loader = parts()

    async def cell() -> Run:
        with stepwell.watch(model, optimizer, loader) as watch:
            train(model, optimizer, loader)
            assert watch.run is not None
            return watch.run

    _, spans = read(asyncio.run(cell()))
    for name in ("training_single_iteration", "forward", "backward"):
        found = spans.filter(pl.col("name") == name)["step"].to_list()
        assert found == list(range(BATCHES)), name


def test_evaluated_in_another_thread() -> None:
    """While training goes on: that ends no iteration, and makes no validation of it."""
    model, optimizer, loader = parts()
    average = make_model().eval()
    with stepwell.watch([model, average], optimizer, loader) as watch:
        run = watch.run
        assert run is not None
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            other = threading.Thread(target=average, args=(x,))
            other.start()
            other.join()
            with stepwell.span("after the step"):
                pass
    found, spans = read(run)
    names = dict(zip(spans["id"], spans["name"], strict=True))
    after = spans.filter(pl.col("name") == "after the step")["parent"].to_list()
    assert [names[parent] for parent in after] == ["training_single_iteration"] * BATCHES
    assert "validation_loop" not in names.values()
    assert updates(found)[-1]["num_iterations"] == BATCHES
