"""Families: one function, one decorator; and no fault in one of them stops anything."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell._core import errors  # noqa: E402
from stepwell._core.errors import StepwellError  # noqa: E402
from stepwell.diagnostics import (  # noqa: E402
    TelemetryConfig,
    TrainingTelemetry,
    collector,
    families,
    family,
    remove_family,
)
from stepwell.diagnostics.families import (  # noqa: E402
    BUILT_IN,
    MetricFamily,
    _families,
)
from tests.diagnostics.siamese import Siamese, pairs, records, train, two_rates  # noqa: E402

pytestmark = pytest.mark.torch

EVERYTHING: dict[str, Any] = {
    name: True for name in TelemetryConfig.__annotations__ if name.startswith("track_")
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = dict(_families)
    errors.counts.clear()
    yield
    _families.clear()
    _families.update(before)


def _collected(batches: int = 2, **options: Any) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = Siamese()
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, **options))
    telemetry.set_holdout_data(pairs(5, 4, seed=9))
    train(model, two_rates(model), pairs(batches, 8), telemetry)
    telemetry.close()
    assert telemetry.metrics_file is not None
    return records(telemetry.metrics_file)


def test_all_of_ours_are_there() -> None:
    """In the order of the fields; each has a switch."""
    assert collector.families is families
    assert tuple(it.name for it in families()) == BUILT_IN
    assert all(it.switch in TelemetryConfig.__annotations__ for it in families())


def test_one_function_one_decorator() -> None:
    """Its dict is a field and its numbers are metrics, tensors included; it sees the moment it is called."""
    seen: list[Any] = []

    @family("my_metric")
    def my_metric(context: Any) -> dict[str, Any]:
        seen.append(context)
        context.memory["calls"] = context.memory.get("calls", 0) + 1
        return {
            "value": 42,
            "calls": context.memory["calls"],
            "bias": context.model.head.bias.sum(),
            "list": [1, torch.tensor(2.5)],
            "text": "hello",
            "deep": {"down": 1.5, "array": torch.ones(2)},
        }

    @family
    def plain_number(context: Any) -> float:
        return 0.5

    @family("nothing")
    def nothing(context: Any) -> None:
        return None

    found = _collected()
    assert [it["my_metric"]["calls"] for it in found] == [1, 2]
    assert found[0]["my_metric"]["list"] == [1, 2.5]
    assert found[0]["my_metric"]["deep"] == {"down": 1.5, "array": [1.0, 1.0]}
    assert found[0]["my_metric"]["text"] == "hello"
    assert found[0]["plain_number"] == 0.5
    assert "nothing" not in found[0]
    context = seen[1]
    assert (context.batch_idx, context.epoch, context.step) == (2, 0, 2)
    assert context.device == torch.device("cpu")
    assert len(context.batch["winner"]) == 8
    assert set(context.groups) == {"overall", "backbone", "head"}
    assert [name for name, _ in context.groups["head"]] == ["head.weight", "head.bias"]
    assert set(context.gradients) == set(context.weights) == set(context.weight_delta)
    expected = torch.cat([p.detach().double().flatten() for p in context.model.parameters()]).norm()
    assert float(context.weights["overall"]) == pytest.approx(float(expected), rel=1e-6)
    (run,) = stepwell.list_runs()
    names = set(run.metrics().collect()["name"])
    assert {
        "my_metric/value",
        "my_metric/bias",
        "my_metric/deep/down",
        "plain_number",
    } <= names
    assert not {"my_metric/list", "my_metric/text", "my_metric/deep/array"} & names


def test_a_switch_of_ones_own() -> None:
    """A family may hang on a field of the configuration, and its metrics on another name."""

    @family("balance", switch="track_class_balance", metrics="data")
    def balance(context: Any) -> dict[str, Any]:
        return {"n": 1}

    assert "balance" not in _collected()[0]
    assert _collected(track_class_balance=True)[0]["balance"] == {"n": 1}


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "epoch", "gradient_norm", "nonfinite"])
def test_names_that_cannot_be(name: str) -> None:
    """Fields of the record are not overwritten."""
    with pytest.raises(StepwellError, match="family"):
        family(name)(lambda context: None)


def test_names_that_are_taken() -> None:
    """By another function; the same one, defined again as in a notebook, replaces itself."""

    def make(value: int) -> Any:
        @family("mine")
        def mine(context: Any) -> int:
            return value

        return mine

    make(1)
    make(2)
    assert _collected()[0]["mine"] == 2
    with pytest.raises(StepwellError, match="already"):
        family("mine")(lambda context: 3)
    with pytest.raises(StepwellError, match="must be a field"):
        family("other", switch="track_others")(lambda context: 3)
    remove_family("mine")
    with pytest.raises(StepwellError, match="no family"):
        remove_family("mine")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("error", [ValueError("broken"), torch.OutOfMemoryError("no memory")])
def test_a_fault_is_one_warning_and_a_missing_field(
    name: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """For every family: training continues, and the other fields are there."""
    there = _families[name]

    def broken(context: Any) -> Any:
        raise error

    _families[name] = MetricFamily(name, broken, there.switch, there.metrics)
    with caplog.at_level(logging.WARNING, logger="stepwell"):
        found = _collected(3, **EVERYTHING)
    assert len(found) == 3
    assert all(name not in it for it in found)
    others = set(BUILT_IN) - {name}
    assert all(others <= set(it) for it in found)
    messages = [it.getMessage() for it in caplog.records]
    assert len(messages) == 1
    assert f"family {name}" in messages[0]


@pytest.mark.parametrize(
    "value",
    [
        {"a": object()},
        object(),
        {"a": torch.zeros(2, device="meta")},
        {"a": torch.zeros((), device="meta")},
        {1: 2, "n": float("nan")},
        {"z": 1 + 2j},
    ],
)
def test_whatever_a_family_gives(value: Any) -> None:
    """A record is written, in strict JSON; unknown values are missing or described."""

    @family("odd")
    def odd(context: Any) -> Any:
        return value

    found = _collected()
    assert len(found) == 2
    assert found[1]["gradient_norm"]["overall"] > 0


def test_a_value_that_holds_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Is left out."""
    cycle: dict[str, Any] = {}
    cycle["again"] = cycle

    @family("cycle")
    def endless(context: Any) -> Any:
        return cycle

    found = _collected()
    assert len(found) == 2
    assert "cycle" not in found[0]
    assert found[0]["gradient_norm"]


def test_a_fault_in_the_holdout_leaves_the_model_alone() -> None:
    """Training continues in training mode."""

    class Moody(Siamese):
        def forward(self, first: Any, second: Any) -> Any:
            if not self.training:
                raise RuntimeError("not now")
            return super().forward(first, second)

    model = Moody()
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1))
    telemetry.set_holdout_data(pairs(5, 4))
    train(model, two_rates(model), pairs(3, 4), telemetry)
    assert model.training
    assert model.backbone.training
    assert telemetry.metrics_file is not None
    assert all("holdout_logits" not in it for it in records(telemetry.metrics_file))


def test_a_fault_in_the_data_of_the_holdout(caplog: pytest.LogCaptureFixture) -> None:
    """Is said, and the rest is collected."""

    def data() -> Iterator[Any]:
        raise OSError("the disk is gone")
        yield

    model = Siamese()
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1))
    telemetry.set_holdout_data(data())
    train(model, two_rates(model), pairs(1, 4), telemetry)
    assert telemetry.metrics_file is not None
    assert len(records(telemetry.metrics_file)) == 1
    assert "the disk is gone" in caplog.text


def test_a_fault_inside_the_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Gradients that cannot be taken do not stop the optimizer."""
    from stepwell.diagnostics import gradients

    def broken(*args: Any) -> Any:
        raise ValueError("no norms today")

    monkeypatch.setattr(gradients, "_norms", broken)
    found = _collected(3)
    assert len(found) == 3
    assert all("gradient_norm" not in it for it in found)
    assert len([it for it in caplog.records if "gradient_norm" in it.getMessage()]) == 1


def test_an_error_is_raised_for_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """With STEPWELL_STRICT=1 faults are not only said."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")

    @family("broken")
    def broken(context: Any) -> Any:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        _collected()


def test_metrics_of_a_second_model(tmp_path: Path) -> None:
    """Have a prefix, so that series are not mixed."""
    models = [Siamese(), Siamese()]
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1))
    for model in models:
        train(model, two_rates(model), pairs(2, 4), telemetry)
    telemetry.close()
    (run,) = stepwell.list_runs()
    table = run.metrics().collect()
    for name in ("gradient_norm/overall", "model_1/gradient_norm/overall"):
        assert table.filter(pl.col("name") == name).height == 2


def test_yours_that_fails_is_said_to_be_yours(caplog: pytest.LogCaptureFixture) -> None:
    """With its name, and where it failed."""

    @family("mine")
    def mine(context: Any) -> Any:
        return 1 / 0

    assert all("mine" not in it for it in _collected())
    (said,) = [it.getMessage() for it in caplog.records if "'mine'" in it.getMessage()]
    assert "test_families.py, line" in said
    assert "ZeroDivisionError" in said
    assert "inside stepwell" not in said


def test_yours_may_draw_and_ask_the_model() -> None:
    """Random numbers are put back, and in ``context.no_trace()`` everything is."""

    def trained(watched: bool) -> Any:
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 4),
            torch.nn.BatchNorm1d(4),
            torch.nn.Dropout(),
            torch.nn.Linear(4, 2),
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with TrainingTelemetry(TelemetryConfig(enabled=watched, collect_every_n=1)) as telemetry:
            for i, batch in enumerate(pairs(4, 8), 1):
                model(batch["img1"]).square().sum().backward()
                optimizer.step()
                telemetry.on_batch_end(model, optimizer, i, 0, "cpu", batch)
        return torch.cat([one.flatten().double() for one in model.state_dict().values()])

    seen = []

    @family("mine")
    def mine(context: Any) -> Any:
        torch.rand(3)
        with context.no_trace() as model:
            seen.append(model.training)
            return {"mean": model(context.batch["img1"]).mean()}

    assert torch.equal(trained(True), trained(False))
    assert seen == [False] * 4
