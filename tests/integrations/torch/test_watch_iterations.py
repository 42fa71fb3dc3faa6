"""``stepwell.watch``: iterations, defined by requested batches and optimizer steps."""

from __future__ import annotations

import threading
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from tests.integrations.torch.loops import BATCHES, counts, make_loader, make_model, train  # noqa: E402
from tests.integrations.torch.watched import curve, evaluate, parts, read, updates  # noqa: E402
from tests.nesting.tree import edges  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]


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


def test_a_look_at_a_batch_in_between() -> None:
    """Makes neither an epoch nor an iteration, wherever in the loop's body it is."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        for _ in range(2):
            for x, y in loader:
                next(iter(loader))
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                next(iter(loader))
                optimizer.zero_grad()
    found, spans = read(watch.run)
    tree = edges(spans)
    assert tree["training_single_iteration", "training_loop"] == 2 * BATCHES
    assert tree["forward", "training_single_iteration"] == 2 * BATCHES
    assert tree["fetch", "training_loop"] == 2 * BATCHES
    assert tree["fetch", "training_single_iteration"] == 2 * 2 * BATCHES
    iterations = spans.filter(pl.col("name") == "training_single_iteration")
    assert iterations["epoch"].to_list() == [0] * BATCHES + [1] * BATCHES
    assert updates(found)[-1]["num_train_samples"] == 32


def test_several_loaders_side_by_side() -> None:
    """A batch of each makes one iteration."""
    model, optimizer, first = parts()
    second = make_loader()
    with stepwell.watch(model, optimizer, [first, second]) as watch:
        for (x, y), (other, _) in zip(first, second, strict=True):
            torch.nn.functional.mse_loss(model(x + other), y).backward()
            optimizer.step()
    found, spans = read(watch.run)
    assert counts(spans)["training_single_iteration"] == BATCHES
    assert updates(found)[-1]["num_train_samples"] == 16
    assert set(spans.filter(pl.col("name") == "forward")["epoch"]) == {0}


def test_an_iterator_that_is_kept() -> None:
    """An abandoned pass does not disturb the next one; one that is started again is an epoch."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        kept = iter(loader)
        train(model, optimizer, [next(kept), next(kept)])
        train(model, optimizer, loader)
        for _ in range(2):
            batches = iter(loader)
            for _ in range(BATCHES - 1):
                train(model, optimizer, [next(batches)])
        del kept, batches
    found, spans = read(watch.run)
    steps = 2 + BATCHES + 2 * (BATCHES - 1)
    assert updates(found)[-1]["num_iterations"] == steps
    epochs = spans.filter(pl.col("name") == "step")["epoch"].to_list()
    assert epochs[-2 * (BATCHES - 1) :] == [2] * (BATCHES - 1) + [3] * (BATCHES - 1)


def test_going_on_after_another_pass() -> None:
    """What is evaluated on the same loader meanwhile belongs to the epoch that it is in."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        for _ in range(2):
            for i, batch in enumerate(loader):
                train(model, optimizer, [batch])
                if i == 1:
                    evaluate(model, loader)
    found, spans = read(watch.run)
    assert updates(found)[-1]["num_iterations"] == 2 * BATCHES
    assert edges(spans)["forward", "validation_loop"] == 2 * BATCHES
    assert counts(spans)["training_single_iteration"] == 2 * BATCHES
    assert spans.filter(pl.col("name") == "step")["epoch"].to_list() == [0] * 4 + [1] * 4


def test_an_iterator_that_outlives_a_watch() -> None:
    """Its batches are those of the next one, if there is one."""
    model, optimizer, loader = parts()
    batches = iter(loader)
    with stepwell.watch(model, optimizer, loader) as first:
        batches = iter(loader)
        train(model, optimizer, [next(batches)])
    with stepwell.watch(model, optimizer, loader) as second:
        train(model, optimizer, batches)
    for watch, steps in ((first, 1), (second, BATCHES - 1)):
        found, spans = read(watch.run)
        assert updates(found)[-1]["num_iterations"] == steps
        assert edges(spans)["training_single_iteration", "training_loop"] == steps


LEFT = ("break", "continue", "dropped", "accumulated", "evaluated", "looked at")


@pytest.mark.parametrize("how", LEFT)
def test_an_iteration_without_an_optimizer_step_is_none(how: str) -> None:
    """Spans, losses, the step and the counts of the updates agree with the optimizer steps."""
    model, optimizer, loader = parts()
    steps = 0
    with stepwell.watch(model, optimizer, loader) as watch:
        for _ in range(2):
            for i, (x, y) in enumerate(loader):
                if how == "break" and i == 2:
                    break
                if how == "continue" and i == BATCHES - 1:
                    continue
                torch.nn.functional.mse_loss(model(x), y).backward()
                if how == "accumulated" and i != 1:
                    continue
                if how != "dropped" or i < 2:
                    optimizer.step()
                    steps += 1
                optimizer.zero_grad()
            if how == "evaluated":
                evaluate(model, loader)
            if how == "looked at":
                with torch.no_grad():
                    for x, _ in loader:
                        model(x)
    found, spans = read(watch.run)
    iterations = spans.filter(pl.col("name") == "training_single_iteration")
    assert iterations["step"].unique().sort().to_list() == list(range(steps))
    assert [step for step, _ in curve(found)] == list(range(steps))
    assert updates(found)[-1]["num_iterations"] == steps
    assert found.processes().collect()["step"].to_list() == [steps - 1]


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_an_exception_and_the_optimizer_step(when: str) -> None:
    """A step that was made before the exception counts; a step that was not made is none."""
    model, optimizer, loader = parts()

    def loop() -> None:
        for i, (x, y) in enumerate(loader):
            if i == 2 and when == "before":
                raise ZeroDivisionError
            torch.nn.functional.mse_loss(model(x), y).backward()
            if i == 2 and when == "in":
                raise ZeroDivisionError
            optimizer.step()
            if i == 2 and when == "after":
                raise ZeroDivisionError

    watch = stepwell.watch(model, optimizer, loader)
    with pytest.raises(ZeroDivisionError), watch:
        loop()
    found, spans = read(watch.run)
    steps = 3 if when == "after" else 2
    iterations = spans.filter(
        (pl.col("name") == "training_single_iteration") & (pl.col("status") == "ok")
    )
    assert iterations["step"].to_list() == list(range(steps))
    assert len(curve(found)) == steps
    assert updates(found)[-1]["num_iterations"] == steps
    # It failed in the third iteration, whether that counts or not.
    assert found.processes().collect()["step"].to_list() == [2]
