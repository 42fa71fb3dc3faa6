"""Batches of many shapes, and what is said about them."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell import Run  # noqa: E402
from stepwell.analysis.findings import findings  # noqa: E402
from stepwell.diagnostics import TrainingTelemetry  # noqa: E402
from stepwell.diagnostics.batches import (  # noqa: E402
    UnknownBatchError,
    first,
    parts_of,
    size_of,
    statistics,
)
from stepwell.diagnostics.config import TelemetryConfig  # noqa: E402

pytestmark = pytest.mark.torch

X = torch.arange(12.0).reshape(4, 3)
Y = torch.tensor([0, 1, 1, 1])
Named = namedtuple("Named", "image label")


class OneInput(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x


class TwoNamed(torch.nn.Module):
    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        return input_ids


class AnyNamed(torch.nn.Module):
    def forward(self, input_ids: Any, **kwargs: Any) -> Any:
        return input_ids


def _said(batch: Any, **config: Any) -> dict[str, Any]:
    found = statistics(batch, TelemetryConfig(**config))
    return {k: float(v) if isinstance(v, torch.Tensor) else v for k, v in found.items()}


@pytest.mark.parametrize(
    ("batch", "args", "kwargs"),
    [
        ({"img1": X, "img2": -X, "winner": Y, "image1": list("abcd")}, 2, []),
        ((X, Y), 1, []),
        ([X, Y], 1, []),
        ((X, X, Y), 2, []),
        (((X, X), Y), 2, []),
        (({"x": X}, Y), 0, ["x"]),
        ({"input": X, "label": Y}, 1, []),
        ({"x": X, "target": Y}, 0, ["x"]),
        ({"whatever": X, "y": Y, "file": list("abcd")}, 1, []),
        (Named(X, Y), 1, []),
    ],
)
def test_known_shapes(batch: Any, args: int, kwargs: list[str]) -> None:
    """Inputs and labels are recognised without an adapter."""
    parts = parts_of(batch, OneInput(), TelemetryConfig())
    assert len(parts.args) == args
    assert sorted(parts.kwargs) == kwargs
    assert parts.labels is Y


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_names_of_the_model(kind: Any) -> None:
    """A dict with the names of the model's arguments becomes keyword arguments, without the labels."""
    batch = kind({"input_ids": X, "attention_mask": X, "labels": Y, "idx": X})
    assert sorted(parts_of(batch, TwoNamed(), TelemetryConfig()).kwargs) == [
        "attention_mask",
        "input_ids",
    ]
    assert sorted(parts_of(batch, AnyNamed(), TelemetryConfig()).kwargs) == [
        "attention_mask",
        "idx",
        "input_ids",
    ]


def test_adapter() -> None:
    """Any other batch goes through a function."""
    config = TelemetryConfig(batch_adapter=lambda batch: ((batch.a, batch.a), batch.b))
    batch = type("B", (), {"a": X, "b": Y})()
    parts = parts_of(batch, OneInput(), config)
    assert len(parts.args) == 2
    assert parts.labels is Y
    with pytest.raises(UnknownBatchError, match="inputs, labels"):
        parts_of(batch, OneInput(), TelemetryConfig(batch_adapter=lambda batch: batch.a))


def test_what_is_not_clear_is_said() -> None:
    """Two tensors of unknown names are not guessed at; a label key that is not there is named."""
    with pytest.raises(UnknownBatchError, match=r"left, right.*batch_adapter"):
        parts_of({"left": X, "right": X, "label": Y}, OneInput(), TelemetryConfig())
    with pytest.raises(UnknownBatchError, match="'gold'"):
        parts_of({"x": X, "label": Y}, OneInput(), TelemetryConfig(label_key="gold"))


def test_documented_statistics() -> None:
    """Percentages of both winners, and the size."""
    assert _said({"img1": X, "img2": X, "winner": Y}) == {
        "winner_0_pct": 25.0,
        "winner_1_pct": 75.0,
        "batch_size": 4,
    }


def test_a_class_that_is_missing_has_no_share() -> None:
    """Both of two classes are recorded, even if a whole batch is of one class."""
    assert _said((X, torch.ones(4))) == {"label_0_pct": 0.0, "label_1_pct": 100.0, "batch_size": 4}


@pytest.mark.parametrize(
    ("batch", "config", "expected"),
    [
        (
            {"x": X, "gold": torch.tensor([2, 2, 5, 5])},
            {"label_key": "gold"},
            {"gold_2_pct": 50.0, "gold_5_pct": 50.0, "batch_size": 4},
        ),
        (
            (X, [0, 1, 0, 1]),
            {},
            {"label_0_pct": 50.0, "label_1_pct": 50.0, "batch_size": 4},
        ),
        (
            (X, torch.eye(3)[[0, 1, 2, 2]]),
            {},
            {"label_0_pct": 25.0, "label_1_pct": 25.0, "label_2_pct": 50.0, "batch_size": 4},
        ),
        (
            (X, torch.tensor([0, -100, 1, 1])),
            {},
            {"label_0_pct": 100 / 3, "label_1_pct": 200 / 3, "batch_size": 4},
        ),
        (
            (X, torch.tensor([1.0, 2.0, 3.0, 6.0])),
            {"task": "regression"},
            {
                "label_mean": 3.0,
                "label_std": 3.5**0.5,
                "label_min": 1.0,
                "label_max": 6.0,
                "batch_size": 4,
            },
        ),
        (X, {}, {"batch_size": 4}),
        ({"x": X}, {}, {"batch_size": 4}),
        ("text", {}, {}),
    ],
)
def test_statistics(batch: Any, config: dict[str, Any], expected: dict[str, Any]) -> None:
    """Labels under any key and of any kind."""
    assert _said(batch, **config) == pytest.approx(expected)


def test_many_classes_are_summed_up() -> None:
    """A thousand classes do not become a thousand fields."""
    labels = torch.cat([torch.arange(30), torch.zeros(30, dtype=torch.long)])
    found = _said((torch.zeros(60, 2), labels))
    assert found == {"label_classes": 30, "label_largest_pct": 100 * 31 / 60, "batch_size": 60}


def test_the_first_examples_of_a_batch() -> None:
    """All that has a row for each example is cut; what has not stays."""
    batch = {"x": X, "y": Y, "names": list("abcd"), "scale": torch.tensor(2.0), "pair": (X, X)}
    cut = first(batch, 3, 4)
    assert torch.equal(cut["x"], X[:3])
    assert torch.equal(cut["pair"][1], X[:3])
    assert cut["names"] == ["a", "b", "c"]
    assert cut["scale"] == 2.0
    assert cut["x"].untyped_storage().nbytes() == 9 * 4
    # A tuple of as many parts as there are examples is no list of examples.
    pair = first((torch.ones(2, 3), torch.ones(2)), 1, 2)
    assert [tuple(part.shape) for part in pair] == [(1, 3), (1,)]


def test_sizes() -> None:
    """The first tensor determines the number of examples."""
    assert size_of({"name": ["a"], "x": X}) == 4
    assert size_of(torch.tensor(1.0)) is None
    assert size_of("text") is None


def test_a_class_that_was_there_before_has_a_share_of_zero() -> None:
    """Otherwise its curve would cover only the batches that have it."""
    known: set[int] = set()
    config = TelemetryConfig()
    statistics((X, torch.tensor([0, 1, 2, 2])), config, known)
    found = statistics((X, torch.tensor([0, 0, 0, 1])), config, known)
    assert found == {"label_0_pct": 75.0, "label_1_pct": 25.0, "label_2_pct": 0.0, "batch_size": 4}
    # Of many classes a small batch has few, other ones each time.
    statistics((X, torch.arange(30)), config, known)
    found = statistics((X, torch.tensor([0, 0, 0, 1])), config, known)
    assert found == {"label_classes": 2, "label_largest_pct": 75.0, "batch_size": 4}


def test_arrays_are_tensors_to_the_model_and_have_a_size() -> None:
    numpy = pytest.importorskip("numpy")

    class Array(numpy.ndarray):
        """Whoever goes through its elements one by one takes a second for a batch of images."""

        def __iter__(self) -> Any:
            raise AssertionError("gone through one by one")

    x = X.numpy().view(Array)
    assert size_of({"x": x, "y": Y.numpy()}) == 4
    few = first({"x": x, "y": Y.numpy()}, 2, 4)
    parts = parts_of(few, OneInput(), TelemetryConfig()).to(torch.device("cpu"))
    assert torch.equal(parts.kwargs["x"], X[:2])
    assert torch.equal(parts.labels, Y[:2])


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("every", [20, 40])
def test_collections_that_come_upon_the_same_batches(
    recorded: Run, every: int, shuffle: bool
) -> None:
    """Balanced data, sorted by class, 40 batches an epoch: no class is said to be rare."""
    labels = torch.arange(320) // 160
    data = torch.utils.data.TensorDataset(torch.zeros(320, 1), labels)
    loader = torch.utils.data.DataLoader(
        data, 8, shuffle=shuffle, generator=torch.Generator().manual_seed(1)
    )
    switches = ("gradients", "weight_delta", "learning_rates", "holdout_logits")
    config = TelemetryConfig(collect_every_n=every, **{f"track_{it}": False for it in switches})
    telemetry = TrainingTelemetry(config)
    model = torch.nn.Linear(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(12):
        for batch_idx, batch in enumerate(loader, 1):
            telemetry.on_batch_end(model, optimizer, batch_idx, epoch, "cpu", batch)
    recorded.finish()
    found = {it.rule for it in findings(stepwell.open_run(recorded.path))}
    expected = {20: {"unshuffled-batches"}, 40: {"repeated-batches"}}
    about_batches = {rule for rule in found if rule.endswith("-batches")}
    assert about_batches == (set() if shuffle else expected[every])
