"""A program written for sim_bench's telemetry, with only its import changed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepwell import diagnostics
from stepwell.compat import sim_bench
from tests.diagnostics.siamese import Siamese, pairs, records, two_rates
from tests.harness import REPOSITORY, environment, run_script

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PROGRAM = REPOSITORY / "tests" / "compat" / "sim_bench_program.py"
PAGE = REPOSITORY / "docs" / "migrate" / "sim_bench.md"
EPOCHS, BATCHES, EVERY, PAIRS = 2, 25, 10, 5


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the output folder of the program."""
    folder = tmp_path_factory.mktemp("sim_bench")
    config = {
        "training": {"epochs": EPOCHS, "batches": BATCHES},
        "telemetry": {
            "enabled": True,
            "collect_every_n": EVERY,
            "output_dir": None,
            "track_gradients": True,
            "track_weight_delta": True,
            "track_learning_rates": True,
            "track_holdout_logits": True,
            "track_batch_stats": True,
            "track_weight_snapshots": True,
            "weight_snapshot_every_n": 20,
            "track_per_layer_stats": True,
            "holdout_size": PAIRS,
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    done = run_script(PROGRAM, "config.yaml", cwd=folder, env=environment(STEPWELL_STRICT="1"))
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "outputs"


def test_the_records(output: Path) -> None:
    """Values that the program measures itself, as sim_bench does, are in the records."""
    found = records(output / "telemetry" / "telemetry.jsonl")
    measured = records(output / "measured.jsonl")
    places = [(0, 10), (0, 20), (1, 10), (1, 20)]
    assert [(it["epoch"], it["batch_idx"]) for it in found] == places
    assert [(it["epoch"], it["batch_idx"]) for it in measured] == places
    for mine, theirs in zip(found, measured, strict=True):
        assert mine["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-5)
        assert mine["learning_rates"] == pytest.approx(theirs["learning_rates"])
        assert mine["batch_stats"] == pytest.approx(theirs["batch_stats"])
        holdout, expected = mine["holdout_logits"], theirs["holdout_logits"]
        assert torch.tensor(holdout["logits"]).allclose(torch.tensor(expected["logits"]), atol=1e-5)
        assert holdout["labels"] == expected["labels"]
        assert holdout["predictions"] == expected["predictions"]
        assert holdout["accuracy"] == expected["accuracy"]
    # At the first there is nothing to compare with; sim_bench says 0.0.
    assert set(found[0]["weight_delta"].values()) == {None}
    for mine, theirs in zip(found[1:], measured[1:], strict=True):
        assert mine["weight_delta"] == pytest.approx(theirs["weight_delta"], rel=1e-4)


def test_what_sim_bench_has_beyond_its_document(output: Path) -> None:
    """Snapshots every 20 batches, which are 2 collections; statistics of the weights."""
    names = sorted(path.name for path in (output / "telemetry" / "snapshots").iterdir())
    assert len(names) == 2
    found = records(output / "telemetry" / "telemetry.jsonl")
    assert all(math.isfinite(it["weight_stats"]["overall"]["norm"]) for it in found)


def test_the_folder_is_drawn(output: Path) -> None:
    from stepwell.analysis import plots
    from stepwell.analysis.diagnostics import find_diagnostics

    drawn = find_diagnostics(str(output))
    assert drawn is not None
    titles = [panel.title for panel in plots.panels([drawn])]
    assert titles[:4] == ["Accuracy", "Gradient norm", "Weight delta", "Learning rate"]


def test_the_names_are_ours() -> None:
    assert sim_bench.TrainingTelemetry is diagnostics.TrainingTelemetry
    assert issubclass(sim_bench.TelemetryConfig, diagnostics.TelemetryConfig)
    config = sim_bench.TelemetryConfig(
        track_weight_snapshots=True, weight_snapshot_every_n=500, track_per_layer_stats=True
    )
    assert (config.track_snapshots, config.snapshot_every, config.track_weight_stats) == (
        True,
        2,
        True,
    )
    assert sim_bench.TelemetryConfig(False, 7).collect_every_n == 7
    assert sim_bench.TelemetryConfig.from_dict({}) == sim_bench.TelemetryConfig()


@pytest.mark.parametrize("config", [{}, {"telemetry": None}, {"telemetry": {"enabled": False}}])
def test_without_telemetry_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    sim_bench.init({**config, "output_dir": tmp_path / "out"}, [])
    model = Siamese()
    sim_bench.record(model, two_rates(model), 0, 0, "cpu", pairs(1, 4)[0])
    assert list(tmp_path.iterdir()) == []


def test_the_migration_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop runs, and the names in its tables are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    text = PAGE.read_text(encoding="utf-8")
    model = Siamese()
    names: dict[str, Any] = {
        "output_dir": tmp_path / "out",
        "epochs": 1,
        "val_loader": pairs(3, 4, 1),
        "train_loader": pairs(200, 4),
        "model": model,
        "optimizer": two_rates(model),
        "device": "cpu",
        "compute_loss": torch.nn.functional.cross_entropy,
    }
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    names["telemetry"].close()
    (record,) = records(tmp_path / "out" / "telemetry" / "telemetry.jsonl")
    for field in re.findall(r"`(\w+)`", text.partition("with the fields ")[2].partition("|")[0]):
        assert field in record
    for _, ours in re.findall(r"^\| `(track_\w+)` \| `(track_\w+)`", text, re.M):
        assert hasattr(diagnostics.TelemetryConfig, ours)
