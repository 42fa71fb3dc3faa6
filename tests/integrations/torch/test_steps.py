"""The run's step: counted, unless it is set in another way."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell import Run, ai  # noqa: E402
from stepwell.integrations.torch import annotate  # noqa: E402
from tests.integrations.torch.loops import make_loader, make_model, make_optimizer  # noqa: E402
from tests.nesting.tree import finished  # noqa: E402

pytestmark = pytest.mark.torch


def loop(optimizer: Any, model: Any, each: Any = lambda i: None) -> None:
    for i in range(3):
        each(i)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        stepwell.log({"loss": float(i)})


def steps_of(run: Run, name: str = "forward") -> list[int | None]:
    spans = finished(run)
    return spans.filter(spans["name"] == name)["step"].to_list()


@pytest.fixture
def parts() -> tuple[Any, Any]:
    model = make_model()
    return make_optimizer(model), model


def test_metrics_join_on_it(recorded: Run, parts: Any) -> None:
    """What is logged after the optimizer's step belongs to the next one."""
    with annotate(parts[1], parts[0]):
        loop(*parts)
    recorded.finish()
    logged = stepwell.open_run(recorded.path).metrics().collect().sort("step")
    assert logged.select("step", "value").rows() == [(1, 0.0), (2, 1.0), (3, 2.0)]


@pytest.mark.parametrize("way", ["run", "tree"])
def test_the_user_counts(recorded: Run, parts: Any, way: str) -> None:
    """A step that the user sets is used, whether it advances or not."""

    def each(i: int) -> None:
        if way == "run":
            recorded.set_step(100 + i // 2)
        else:
            ai.update(step=100 + i // 2)

    with annotate(parts[1], parts[0]):
        loop(*parts, each)
    assert steps_of(recorded) == [100, 100, 101]


def test_the_users_numbers_may_be_ours(recorded: Run, parts: Any) -> None:
    """Setting the very number that was counted makes it the user's all the same."""
    with annotate(parts[1], parts[0]):
        loop(*parts, lambda i: recorded.set_step(i if i < 2 else 1))
    assert steps_of(recorded) == [0, 1, 1]


def test_an_epoch_alone_takes_nothing_away(recorded: Run, parts: Any) -> None:
    with annotate(parts[1], parts[0]):
        loop(*parts, lambda i: ai.update(epoch=i))
    spans = finished(recorded)
    forward = spans.filter(spans["name"] == "forward")
    assert forward.select("step", "epoch").rows() == [(0, 0), (1, 1), (2, 2)]


def test_a_run_that_begins_later(parts: Any, tmp_path: Any) -> None:
    """Each run is counted from 0, though the annotations were there before it."""
    with annotate(parts[1], parts[0]):
        loop(*parts)
        for _ in range(2):
            run = stepwell.init(dir=tmp_path)
            loop(*parts)
            assert steps_of(run) == [0, 1, 2]


def test_without_an_optimizer_nothing_is_counted(recorded: Run, parts: Any) -> None:
    """There is no step then, and metrics are numbered by how often they were logged."""
    with annotate(parts[1]):
        loop(*parts)
    assert steps_of(recorded) == [None, None, None]
    logged = stepwell.open_run(recorded.path).metrics().collect().sort("step")
    assert logged.select("step", "value").rows() == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_the_next_optimizer_takes_over(recorded: Run) -> None:
    """When the first one is gone or removed, the next one counts."""
    model, loader = make_model(), make_loader()
    first, second = make_optimizer(model), make_optimizer(model)
    one, two = annotate(model, first, loader), annotate(optimizer=second)
    first.step()
    second.step()
    one.remove()
    with annotate(model):
        model(torch.ones(1, 4))
        second.step()
        model(torch.ones(1, 4))
    two.remove()
    assert steps_of(recorded) == [1, 2]


def test_training_iterations_win(recorded: Run, parts: Any) -> None:
    """The step that training_iteration() sets is not touched."""
    from stepwell.journal.metrics import context, set_context

    with annotate(parts[1], parts[0]):
        set_context(5, None)
        loop(*parts)
        assert context.step == 5
    assert steps_of(recorded) == [5, 5, 5]
