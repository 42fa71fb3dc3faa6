"""The families that are off by default, each compared with a separate computation."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stepwell.diagnostics import TelemetryConfig, TrainingTelemetry  # noqa: E402
from tests.diagnostics.siamese import Siamese, pairs, records, train, two_rates  # noqa: E402

pytestmark = pytest.mark.torch
nn = torch.nn


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")


def _collected(
    model: Any, batches: int = 2, holdout: Any = None, **options: Any
) -> list[dict[str, Any]]:
    with TrainingTelemetry(TelemetryConfig(collect_every_n=1, **options)) as telemetry:
        telemetry.set_holdout_data(holdout)
        train(model, two_rates(model), pairs(batches, 8), telemetry)
    assert telemetry.metrics_file is not None
    return records(telemetry.metrics_file)


def _flat(parameters: Any) -> Any:
    return torch.cat([p.detach().double().flatten() for p in parameters])


def test_update_ratio() -> None:
    """The change since the collection before, by the norm of the weights."""
    model = Siamese()
    found = _collected(model, 3, track_update_ratio=True, track_weight_delta=False)
    assert found[0]["update_ratio"] == {"overall": None, "backbone": None, "head": None}
    assert "weight_delta" not in found[1]
    # Again, with the weights of every batch at hand.
    again = _collected(model, 1, track_update_ratio=True)
    assert again[0]["update_ratio"]["overall"] is None
    before = _flat(model.head.parameters())
    optimizer = two_rates(model)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=2, track_update_ratio=True))
    batches = pairs(4, 8)
    train(model, optimizer, batches[:2], telemetry)
    before = _flat(model.head.parameters())
    train(model, optimizer, batches[2:], telemetry, first=3)
    after = _flat(model.head.parameters())
    assert telemetry.metrics_file is not None
    ratio = records(telemetry.metrics_file)[-1]["update_ratio"]["head"]
    assert ratio == pytest.approx(float((after - before).norm() / after.norm()), rel=1e-5)


@pytest.mark.parametrize("groups", [None, "layers"])
def test_weight_stats(groups: Any) -> None:
    """Norm, mean, spread and extreme of each group, or of each layer."""
    model = Siamese()
    stats = _collected(model, 1, track_weight_stats=True, groups=groups)[0]["weight_stats"]
    expected = {"overall", "backbone", "head"} if groups is None else None
    assert set(stats) == (expected or {"overall", "backbone.0", "backbone.1", "head"})
    for name, parameters in (("overall", model.parameters()), ("head", model.head.parameters())):
        flat = _flat(parameters)
        assert stats[name] == pytest.approx(
            {
                "norm": float(flat.norm()),
                "mean": float(flat.mean()),
                "std": float(flat.std(correction=0)),
                "abs_max": float(flat.abs().max()),
                "count": flat.numel(),
            },
            rel=1e-6,
        )


def test_one_weight_has_no_spread() -> None:
    """Zero, not NaN."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, track_weight_stats=True))
    telemetry.on_batch_end(model, optimizer, 1, 0)
    assert telemetry.metrics_file is not None
    (record,) = records(telemetry.metrics_file)
    assert record["weight_stats"]["overall"]["std"] == pytest.approx(0.0, abs=1e-7)
    assert "gradient_norm" not in record


def test_activations_and_dead_units() -> None:
    """Of all examples of the holdout together, in evaluation mode."""
    model = Siamese()
    with torch.no_grad():
        # Two of the eight units never get above zero.
        model.backbone[1].weight[:2] = 0.0
        model.backbone[1].bias[:2] = -1.0
    holdout = pairs(3, 4, seed=5)
    (found,) = _collected(model, 1, holdout, track_activations=True, track_dead_units=True)
    model.eval()
    second = torch.cat([batch["img2"] for batch in holdout])
    with torch.no_grad():
        output = model.backbone[:3](second).double()
    assert set(found["activations"]) == {
        "backbone.0",
        "backbone.1",
        "backbone.2",
        "backbone.3",
        "head",
    }
    assert found["activations"]["backbone.2"] == pytest.approx(
        {
            "mean": float(output.mean()),
            "std": float(output.std(correction=0)),
            "abs_max": float(output.abs().max()),
            "zero_pct": 100 * float((output == 0).double().mean()),
        },
        rel=1e-5,
    )
    dead = 100 * float((output == 0).all(0).double().mean())
    assert dead >= 25.0
    assert found["dead_units"] == {"backbone.2": pytest.approx(dead)}


def test_chosen_layers() -> None:
    """Only those that are named; one that is not there is said to be missing."""
    model = Siamese()
    (found,) = _collected(model, 1, track_activations=True, activation_layers=["head"])
    assert set(found["activations"]) == {"head"}
    with pytest.raises(Exception, match="no layer 'tail'"):
        _collected(model, 1, track_activations=True, activation_layers=["tail"])


@pytest.mark.parametrize("layer", [None, "backbone"])
def test_embeddings(layer: str | None) -> None:
    """The input of the last linear layer, or the output of the named layer."""
    model = Siamese()
    holdout = pairs(3, 4, seed=5)
    (found,) = _collected(model, 1, holdout, track_embeddings=True, embedding_layer=layer)
    model.eval()
    first, second = (torch.cat([batch[key] for batch in holdout]) for key in ("img1", "img2"))
    with torch.no_grad():
        both = [model.backbone(first).double(), model.backbone(second).double()]
    rows = torch.cat(both, 0 if layer else 1)
    cosines = nn.functional.cosine_similarity(rows[:, None], rows[None], dim=2)
    count = len(rows)
    mean = (cosines.sum() - cosines.diagonal().sum()) / (count * (count - 1))
    assert found["embeddings"]["norm_mean"] == pytest.approx(float(rows.norm(dim=1).mean()), 1e-5)
    assert found["embeddings"]["norm_max"] == pytest.approx(float(rows.norm(dim=1).max()), 1e-5)
    assert found["embeddings"]["cosine_mean"] == pytest.approx(float(mean), rel=1e-4)


def test_gradient_noise() -> None:
    """For a model of one weight noise and signal are known: the spread and the mean of the examples."""

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x: Any) -> Any:
            return x * self.weight

    torch.manual_seed(0)
    model = One()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    telemetry = TrainingTelemetry(
        TelemetryConfig(
            collect_every_n=1,
            track_gradient_noise=True,
            task="regression",
            loss=lambda outputs, labels: (outputs.squeeze(1) * labels).mean(),
        )
    )
    # The gradient of an example is its label: mean 2, variance 9.
    for i in range(1, 201):
        labels = 2.0 + 3.0 * torch.randn(32)
        telemetry.on_batch_end(model, optimizer, i, 0, None, (torch.ones(32, 1), labels))
    assert telemetry.metrics_file is not None
    last = records(telemetry.metrics_file)[-1]["gradient_noise"]
    assert last["signal"] == pytest.approx(4.0, rel=0.1)
    assert last["noise"] == pytest.approx(9.0, rel=0.1)
    assert last["scale"] == pytest.approx(9 / 4, rel=0.2)
    assert last["examples"] == 32
    assert model.weight.grad is None


def test_class_balance() -> None:
    """Over all batches that were looked at."""
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, track_class_balance=True))
    for i, labels in enumerate(([0, 0, 1, 2], [0, 0, 0, 0]), 1):
        telemetry.on_batch_end(model, optimizer, i, 0, None, (torch.zeros(4, 2), labels))
    assert telemetry.metrics_file is not None
    found = records(telemetry.metrics_file)[-1]["class_balance"]
    entropy = -(0.75 * math.log(0.75) + 2 * 0.125 * math.log(0.125))
    assert found == {
        "classes": 3,
        "largest_to_smallest": 6.0,
        "evenness": pytest.approx(entropy / math.log(3)),
        "pct": {"0": 75.0, "1": 12.5, "2": 12.5},
    }


def test_snapshots(tmp_path: Path) -> None:
    """Weights of every second collection, readable without unpickling, named in the record."""
    model = Siamese()
    optimizer = two_rates(model)
    telemetry = TrainingTelemetry(
        TelemetryConfig(
            collect_every_n=2, track_snapshots=True, snapshot_every=2, output_dir=tmp_path / "out"
        )
    )
    kept = {}
    for batch_idx, batch in enumerate(pairs(8, 4), 1):
        train(model, optimizer, [batch], telemetry, first=batch_idx)
        kept[batch_idx] = copy.deepcopy(dict(model.named_parameters()))
    found = records(tmp_path / "out" / "telemetry.jsonl")
    files = [it["snapshot"]["file"] for it in found if "snapshot" in it]
    assert files == [f"snapshots/epoch-00000.batch-{i:08d}.pt" for i in (2, 6)]
    for file, batch_idx in zip(files, (2, 6), strict=True):
        loaded = torch.load(tmp_path / "out" / file, weights_only=True)
        assert list(loaded) == list(kept[batch_idx])
        assert all(torch.equal(loaded[name], kept[batch_idx][name]) for name in loaded)


def test_class_balance_of_very_many_classes() -> None:
    """Their shares would be as many metrics, at every collection."""
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1, track_class_balance=True))
    telemetry.on_batch_end(model, optimizer, 1, 0, None, (torch.zeros(30, 2), torch.arange(30)))
    assert telemetry.metrics_file is not None
    found = records(telemetry.metrics_file)[-1]["class_balance"]
    assert found == {"classes": 30, "largest_to_smallest": 1.0, "evenness": pytest.approx(1.0)}


def test_dead_units_that_cannot_be_seen_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """A model that calls torch.relu has no layer to look at."""

    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = nn.Linear(12, 4), nn.Linear(4, 2)

        def forward(self, a: Any, b: Any) -> Any:
            return self.head(torch.relu(self.backbone(torch.cat([a, b], 1))))

    found = _collected(Functional(), track_dead_units=True)
    assert "dead_units" not in found[-1]
    assert "nn.ReLU" in caplog.text
