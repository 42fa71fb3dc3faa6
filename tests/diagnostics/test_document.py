"""The documented usage: the users' setup, loop and analysis, filled in."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell.diagnostics import TelemetryConfig, TrainingTelemetry  # noqa: E402
from tests.diagnostics.siamese import Siamese, pairs, records, two_rates  # noqa: E402
from tests.harness import REPOSITORY, environment, run_script  # noqa: E402

pytestmark = pytest.mark.torch

EPOCHS, BATCHES, EVERY = 2, 450, 200


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")


def compute_loss(outputs: Any, winner: Any) -> Any:
    return torch.nn.functional.cross_entropy(outputs, winner)


def setup(output_dir: Path, val_loader: list[Any]) -> TrainingTelemetry:
    """The setup in a training script: holdout batches are appended until there is one too many."""
    telemetry_config = TelemetryConfig(
        enabled=True,
        collect_every_n=EVERY,
        output_dir=output_dir / "telemetry",
        track_gradients=True,
        track_weight_delta=True,
        track_learning_rates=True,
        track_holdout_logits=True,
        track_batch_stats=True,
        holdout_size=50,
    )
    telemetry = TrainingTelemetry(telemetry_config)
    holdout_data = []
    for i, batch in enumerate(val_loader):
        holdout_data.append(batch)
        if i >= telemetry_config.holdout_size:
            break
    assert len(holdout_data) == 51
    telemetry.set_holdout_data(holdout_data)
    return telemetry


def train_epoch(
    model: Any, optimizer: Any, loader: Any, device: Any, telemetry: Any = None, epoch: int = 0
) -> None:
    """The hook in the training loop."""
    for batch_idx, batch in enumerate(loader, 1):
        outputs = model(batch["img1"], batch["img2"])
        loss = compute_loss(outputs, batch["winner"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if telemetry:
            telemetry.on_batch_end(model, optimizer, batch_idx, epoch, device, batch)


@pytest.mark.parametrize("val_size", [1, 8])
def test_as_documented(tmp_path: Path, val_size: int) -> None:
    """Both blocks run, and leave the documented records, whose analysis works."""
    torch.manual_seed(1)
    model = Siamese()
    optimizer = two_rates(model)
    val_loader = pairs(60, val_size, seed=2)
    telemetry = setup(tmp_path / "out", val_loader)
    for epoch in range(EPOCHS):
        train_epoch(
            model, optimizer, pairs(BATCHES, 8, epoch), torch.device("cpu"), telemetry, epoch
        )

    folder = tmp_path / "out" / "telemetry"
    assert sorted(path.name for path in folder.iterdir()) == [
        "last_checkpoint.pt",
        "telemetry.jsonl",
    ]
    found = records(folder / "telemetry.jsonl")
    assert [(it["epoch"], it["batch_idx"]) for it in found] == [
        (0, 200),
        (0, 400),
        (1, 200),
        (1, 400),
    ]
    labels = torch.cat([batch["winner"] for batch in val_loader])[:50].tolist()
    for it in found:
        assert datetime.fromisoformat(it["timestamp"])
        assert set(it["gradient_norm"]) == {"overall", "backbone", "head"}
        assert it["gradient_source"] == "step"
        assert it["learning_rates"] == {
            "group_0": 0.001,
            "group_1": 0.01,
            "backbone": 0.001,
            "head": 0.01,
        }
        assert it["holdout_logits"]["labels"] == labels
        assert [len(row) for row in it["holdout_logits"]["logits"]] == [2] * 50
        predicted = [row.index(max(row)) for row in it["holdout_logits"]["logits"]]
        assert it["holdout_logits"]["predictions"] == predicted
        right = sum(a == b for a, b in zip(predicted, labels, strict=True))
        assert it["holdout_logits"]["accuracy"] == right / 50
        assert set(it["batch_stats"]) == {"winner_0_pct", "winner_1_pct", "batch_size"}
        assert it["batch_stats"]["batch_size"] == 8
        assert "nonfinite" not in it
    assert found[0]["weight_delta"] == {"overall": None, "backbone": None, "head": None}
    assert all(it["weight_delta"]["overall"] > 0 for it in found[1:])


def test_its_analysis(tmp_path: Path) -> None:
    """The documented way to read and plot the file."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    model = Siamese()
    telemetry = setup(tmp_path / "out", pairs(60, 1))
    train_epoch(model, two_rates(model), pairs(401, 4), "cpu", telemetry)

    metrics = []
    with open(tmp_path / "out" / "telemetry" / "telemetry.jsonl") as file:
        for line in file:
            metrics.append(json.loads(line))
    batch_indices = [m["batch_idx"] for m in metrics]
    grad_norms = [m["gradient_norm"]["overall"] for m in metrics]
    plt.plot(batch_indices, grad_norms)
    plt.xlabel("Batch Index")
    plt.ylabel("Gradient Norm")
    plt.savefig(tmp_path / "grad_norm_plot.png")
    plt.close()
    assert batch_indices == [200, 400]
    assert (tmp_path / "grad_norm_plot.png").stat().st_size > 1000


def test_the_same_numbers_are_metrics_of_the_run(tmp_path: Path) -> None:
    """Each number of a record under its own name, at the number of the batch where no step is set."""
    model = Siamese()
    telemetry = setup(tmp_path / "out", pairs(60, 1))
    train_epoch(model, two_rates(model), pairs(401, 4), "cpu", telemetry)
    run = telemetry.run
    assert run is not None
    telemetry.close()
    (first, second) = records(tmp_path / "out" / "telemetry" / "telemetry.jsonl")
    table = stepwell.open_run(run.path).metrics().collect()
    assert set(table["name"]) == {
        "gradient_norm/overall",
        "gradient_norm/backbone",
        "gradient_norm/head",
        "weight_delta/overall",
        "weight_delta/backbone",
        "weight_delta/head",
        "learning_rate/group_0",
        "learning_rate/group_1",
        "learning_rate/backbone",
        "learning_rate/head",
        "holdout/accuracy",
        "batch/winner_0_pct",
        "batch/winner_1_pct",
        "batch/batch_size",
    }
    for name, field, key in [
        ("gradient_norm/overall", "gradient_norm", "overall"),
        ("learning_rate/group_0", "learning_rates", "group_0"),
        ("holdout/accuracy", "holdout_logits", "accuracy"),
        ("batch/winner_0_pct", "batch_stats", "winner_0_pct"),
    ]:
        rows = table.filter(pl.col("name") == name).sort("step")
        assert rows["step"].to_list() == [200, 400]
        assert rows["value"].to_list() == [first[field][key], second[field][key]]
    deltas = table.filter(pl.col("name") == "weight_delta/head")
    assert deltas["step"].to_list() == [400]


def test_a_metric_of_ones_own() -> None:
    """A new method in the document is one function here."""
    from stepwell.diagnostics import family, remove_family

    @family("my_metric")
    def my_metric(context: Any) -> dict[str, Any]:
        return {"value": 42}

    try:
        model = Siamese()
        telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=2))
        train_epoch(model, two_rates(model), pairs(2, 4), "cpu", telemetry)
        assert telemetry.metrics_file is not None
        (record,) = records(telemetry.metrics_file)
        assert record["my_metric"] == {"value": 42}
    finally:
        remove_family("my_metric")


def test_the_example(tmp_path: Path) -> None:
    """It runs by itself, says where its records are, and shows what it is about."""
    example = REPOSITORY / "examples" / "diagnostics.py"
    done = run_script(example, cwd=tmp_path, env=environment(STEPWELL_STRICT="1"), check=True)
    assert done.stderr == ""
    (file,) = (tmp_path / "runs").glob("*/telemetry/telemetry.jsonl")
    assert str(file) in done.stdout
    found = records(file)
    assert len(found) == 30
    assert found[-1]["train_accuracy"]["batch"] > 0.9
    assert found[-1]["holdout_logits"]["accuracy"] < 0.7
