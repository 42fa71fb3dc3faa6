"""``stepwell.watch``: evaluation between training batches is a validation."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell.analysis.timeline import ledger  # noqa: E402
from stepwell.testing import FakeClock  # noqa: E402
from tests.integrations.torch.loops import BATCHES, counts, make_loader, make_model, train  # noqa: E402
from tests.integrations.torch.watched import evaluate, outliving, parts, read, updates  # noqa: E402
from tests.nesting.tree import edges  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]


def test_changing_the_mode_looks_through_the_wrapper_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """``train()`` reaches every module of a model: for each of them it is two comparisons."""
    model, optimizer, loader = parts()
    whole = torch.nn.Sequential(model)
    with stepwell.watch(whole, optimizer, loader):
        monkeypatch.delattr("stepwell.integrations.torch.watcher.training.unwrapped")
        whole.eval()
        whole.train()


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


def test_evaluated_in_another_thread() -> None:
    """During training: this neither ends an iteration nor counts as a validation."""
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


def test_spans_of_the_user_around_passes() -> None:
    """A validation is in the training loop, so that it ends before what it is in."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        train(model, optimizer, loader)
        model.eval()
        for x, _ in make_loader():
            with stepwell.span("a batch"):
                model(x)
        model.train()
        train(model, optimizer, loader)
    _, spans = read(watch.run)
    assert outliving(spans) == []
    assert edges(spans)["validation_loop", "training_loop"] == 1
    assert edges(spans)["forward", "validation_loop"] == BATCHES
    assert edges(spans)["a batch", "training_loop"] == BATCHES


def validations(spans: pl.DataFrame) -> list[dict[str, Any]]:
    """The recorded validations: where they lie in time, and their attributes."""
    found = spans.filter(pl.col("name") == "validation_loop").rows(named=True)
    return [
        {
            "start": each["start_ns"],
            "end": each["start_ns"] + each["duration_ns"],
            "mode": json.loads(each["attributes"] or "{}").get("model_mode"),
        }
        for each in found
    ]


def times(spans: pl.DataFrame, name: str) -> list[int]:
    """When the spans of this name start."""
    return spans.filter(pl.col("name") == name)["start_ns"].to_list()


class Slow(torch.utils.data.Dataset[Any]):
    """Items whose fetching shows as spans."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        with stepwell.span("item"):
            return torch.ones(4), torch.ones(1)


@pytest.mark.parametrize("through", ["model", "compiled", "parallel", "training mode"])
def test_validation_from_its_first_batch_to_its_metrics(through: str) -> None:
    """Fetching the first batch and computing metrics belong to it, whichever module is called."""
    model, optimizer, loader = parts()
    watched: Any = model
    if through == "compiled":
        watched = torch.compile(model, backend="eager")
    if through == "parallel":
        watched = torch.nn.DataParallel(model)
    held_out = torch.utils.data.DataLoader(Slow(), batch_size=2)
    with stepwell.watch(watched, optimizer, loader, diagnostics=False) as watch:
        for _ in range(2):
            train(watched, optimizer, loader)
            if through != "training mode":
                model.eval()
            with torch.no_grad():
                for x, _ in held_out:
                    model(x)
                    with stepwell.span("metrics"):
                        pass
            if through != "training mode":
                model.train()
                with stepwell.span("afterwards"):
                    pass
    found, spans = read(watch.run)
    first, second = validations(spans)
    assert [first["mode"], second["mode"]] == ["train" if through == "training mode" else None] * 2
    inside = [*times(spans, "item"), *times(spans, "metrics")]
    assert len(inside) == 2 * (4 + 2)
    assert all(any(v["start"] <= at <= v["end"] for v in (first, second)) for at in inside)
    for v, at in zip((first, second), times(spans, "afterwards"), strict=False):
        assert v["end"] <= at
    assert updates(found)[-1]["num_iterations"] == 2 * BATCHES


def test_validation_before_the_first_step() -> None:
    """It is one, and no part of the training loop."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        evaluate(model)
        train(model, optimizer, loader)
    _, spans = read(watch.run)
    tree = edges(spans)
    assert tree["validation_loop", "application"] == 1
    assert tree["forward", "validation_loop"] == BATCHES
    assert tree["forward", "training_single_iteration"] == BATCHES


def test_validation_in_the_body_of_the_loop() -> None:
    """The iteration ends before it, and the next one begins after it."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        for i, batch in enumerate(loader):
            train(model, optimizer, [batch])
            if i % 2:
                evaluate(model)
    found, spans = read(watch.run)
    tree = edges(spans)
    assert tree["validation_loop", "training_loop"] == 2
    assert tree["forward", "validation_loop"] == 2 * BATCHES
    assert outliving(spans) == []
    assert updates(found)[-1]["num_iterations"] == BATCHES


def test_rollouts_are_no_forward_passes() -> None:
    """Calls without gradients in training mode between steps do not count as forward."""
    model, optimizer, _ = parts()
    with stepwell.watch(model, optimizer) as watch:
        for _ in range(3):
            with torch.no_grad():
                model(torch.ones(2, 4))
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
    _, spans = read(watch.run)
    assert counts(spans)["forward"] == 3
    assert "validation_loop" not in counts(spans)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("end", ["train", "next epoch", "next watch", "close", "run"])
@pytest.mark.parametrize("through", ["loader", "break", "one call"])
def test_what_follows_a_validation_is_no_part_of_it(end: str, through: str) -> None:
    """Long after the last pass and the last batch, however its end shows: it took 3 s, not 100 s."""
    model, optimizer, loader = parts()
    with FakeClock() as clock:
        watch = stepwell.watch(model, optimizer, loader, diagnostics=False)
        train(model, optimizer, loader)
        model.eval()
        clock.advance(1.0)
        if through == "one call":
            model(torch.ones(1, 4))
        else:
            for i, (x, _) in enumerate(make_loader()):
                model(x)
                if i < 2:
                    clock.advance(1.0)
                elif through == "break":
                    break
        seconds = 1.0 if through == "one call" else 3.0
        clock.advance(100.0)
        if end == "train":
            model.train()
        if end == "next epoch":
            model.training = True
            train(model, optimizer, loader)
        if end == "next watch":
            stepwell.watch(model, optimizer, loader, diagnostics=False).close()
        if end == "run":
            assert watch.run is not None
            watch.run.finish()
        watch.close()
    _, spans = read(watch.run)
    (found,) = validations(spans)
    assert (found["end"] - found["start"]) / 1e9 == pytest.approx(seconds, abs=0.01)


@pytest.mark.parametrize(("metrics", "expected"), [(2.0, 5.0), (4.0, 3.0)])
def test_metrics_after_the_last_batch(metrics: float, expected: float) -> None:
    """They are part of a validation when ``train()`` comes after no longer than it took until then: 3 s."""
    model, optimizer, loader = parts()
    with FakeClock() as clock, stepwell.watch(model, optimizer, loader) as watch:
        train(model, optimizer, loader)
        model.eval()
        for x, _ in itertools.islice(make_loader(), 3):
            clock.advance(1.0)
            model(x)
        clock.advance(metrics)
        model.train()
        clock.advance(7.0)
        train(model, optimizer, loader)
    _, spans = read(watch.run)
    (found,) = validations(spans)
    assert (found["end"] - found["start"]) / 1e9 == pytest.approx(expected, abs=0.01)


def test_metrics_of_the_last_batch() -> None:
    """In the body of the loop, with the model left in evaluation mode: until there are no more batches."""
    model, optimizer, loader = parts()
    with FakeClock() as clock, stepwell.watch(model, optimizer, loader) as watch:
        train(model, optimizer, loader)
        model.eval()
        for x, _ in loader:
            model(x)
            clock.advance(1.0)
        clock.advance(100.0)
    _, spans = read(watch.run)
    (found,) = validations(spans)
    assert (found["end"] - found["start"]) / 1e9 == pytest.approx(BATCHES, abs=0.01)


def test_a_pass_that_fails_is_in_its_validation() -> None:
    """It is, with all the time until training continues."""
    model, optimizer, loader = parts()
    with FakeClock(), stepwell.watch(model, optimizer, loader) as watch:
        train(model, optimizer, loader)
        model.eval()
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 3))
        model.train()
        train(model, optimizer, loader)
    _, spans = read(watch.run)
    assert edges(spans)["forward", "validation_loop"] == 1
    assert outliving(spans) == []
