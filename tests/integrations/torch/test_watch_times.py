"""``stepwell.watch``: updates contain the times of passes and of data loading."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell.training import model_forward  # noqa: E402
from tests.integrations.torch.loops import train  # noqa: E402
from tests.integrations.torch.watched import evaluate, parts, read, updates  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]
STEPS = 60
ATTRIBUTES = {
    "forward": "avg_forward_time_sec",
    "backward": "avg_backward_time_sec",
    "fetch": "avg_dataloader_time_sec",
}


def batches(count: int = STEPS) -> list[Any]:
    return [(torch.rand(2, 4), torch.rand(2, 1))] * count


def seconds(spans: pl.DataFrame, name: str, steps: int, around: str) -> float:
    """Mean time that a step spent in these, by the spans that lie directly in others of a name."""
    above = spans.select(parent="id", above="name", of="step")
    found = spans.filter(pl.col("name") == name).join(above, on="parent")
    found = found.filter(pl.col("above") == around).sort("start_ns").head(steps)
    return float(found["duration_ns"].sum()) / steps / 1e9


@pytest.mark.parametrize("loss", [False, True])
def test_means_of_the_steps(loss: bool) -> None:
    """As in the spans; evaluations between them are left out."""
    model, optimizer, _ = parts()
    with stepwell.watch(model, optimizer, batches(STEPS // 2), loss=loss) as watch:
        for _ in range(2):
            train(model, optimizer, watch.loader)
            evaluate(model)
    found, spans = read(watch.run)
    first, last = updates(found)
    for name, attribute in ATTRIBUTES.items():
        around = "training_loop" if name == "fetch" else "training_single_iteration"
        assert first[attribute] == pytest.approx(seconds(spans, name, 50, around))
        assert last[attribute] == pytest.approx(seconds(spans, name, STEPS, around))


def test_over_many_segments() -> None:
    """Where the spans of some steps are out of reach, the mean is that of the others."""
    model, optimizer, _ = parts()
    note = stepwell.span("note")
    with stepwell.watch(model, optimizer, batches(), diagnostics=False) as watch:
        for batch in watch.loader:
            train(model, optimizer, [batch])
            for _ in range(700):
                with note:
                    pass
    found, spans = read(watch.run)
    for update in updates(found):
        for name, attribute in ATTRIBUTES.items():
            times = spans.filter(pl.col("name") == name)["duration_ns"] / 1e9
            assert times.min() <= update[attribute] <= times.max()


def test_who_tells_them_alone() -> None:
    """Phases that are recorded by hand count once."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader, diagnostics=False) as watch:
        for x, y in loader:
            with model_forward():
                output = model(x)
            torch.nn.functional.mse_loss(output, y).backward()
            optimizer.step()
    found, spans = read(watch.run)
    (last,) = updates(found)
    theirs = spans.filter(pl.col("name") == "model_forward")["duration_ns"]
    assert last["avg_forward_time_sec"] == pytest.approx(float(theirs.sum()) / len(theirs) / 1e9)
    assert last["avg_backward_time_sec"] > 0
