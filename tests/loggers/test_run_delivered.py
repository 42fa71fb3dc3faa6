"""A plain run, recorded without any logger, in real backends: ``stepwell forward``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.loggers.delivery.forwarding import forward_log
from tests.loggers.needs import needs
from tests.loggers.reading_back import Left
from tests.loggers.tensorboard_reading import hparams, texts

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with one finished run."""
    place = tmp_path_factory.mktemp("delivered")
    patch = pytest.MonkeyPatch()
    patch.chdir(place)
    patch.setenv("STEPWELL_RUNTIME", "off")
    config = {"lr": 0.1, "optimizer": {"name": "sgd", "decay": float("nan")}, "api_key": "secret"}
    with stepwell.init("digits", config=config, tags=["baseline", "small"], quiet=True) as run:
        for step in range(3):
            run.log({"loss": 3.0 - step}, step=step)
        run.config["late"] = 7
        run.summary["best_loss"] = 0.5
        run.summary["note"] = "converged"
    yield place
    patch.undo()


PARAMS = {"lr": 0.1, "optimizer.name": "sgd", "api_key": "***", "late": 7}


def sent(folder: Path, to: str, **options: Any) -> Left:
    (run,) = stepwell.list_runs(folder / "runs")
    place = {"savedir": str(folder / "mllogs" / to), **options}
    (done,) = forward_log(run.path, to, place)
    assert not done.running
    return Left(folder)


def updates(records: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The last values that W&B has of its configuration or its summary."""
    changes = [record[kind].get("update", {}) for record in records if record["type"] == kind]
    return {key: value for change in changes for key, value in change.items()}


@needs("mlflow")
def test_mlflow(folder: Path) -> None:
    """Parameters, tags and final values are there."""
    found = sent(folder, "mlflow").mlflow_run()
    decay = {"optimizer.decay": "nan"}
    assert found.data.params == {name: str(value) for name, value in PARAMS.items()} | decay
    assert found.data.metrics == {"loss": 1.0, "summary/best_loss": 0.5}
    assert found.data.tags["summary/note"] == "converged"
    assert found.data.tags["stepwell.tags"] == "baseline, small"


@needs("wandb")
def test_wandb(folder: Path) -> None:
    """Configuration, tags and summary of the W&B run."""
    records = sent(folder, "wandb", offline_mode=True).wandb_records
    config, summary = updates(records, "config"), updates(records, "summary")
    assert config == {**PARAMS, "optimizer.decay": "nan"}
    assert {key: summary[key] for key in ("loss", "best_loss", "note")} == {
        "loss": 1.0,
        "best_loss": 0.5,
        "note": "converged",
    }
    assert [one["run"]["tags"] for one in records if one["type"] == "run"] == [
        ["baseline", "small"]
    ]


@needs("tensorboard")
def test_tensorboard(folder: Path) -> None:
    """Hyperparameters, and final values as scalars and texts."""
    left = sent(folder, "tensorboard")
    values, status = hparams(left.tensorboard_folder)
    assert values == {**PARAMS, "optimizer.decay": "nan"}
    assert status == "STATUS_SUCCESS"
    assert left.tensorboard_curve("summary/best_loss") == [(0, 0.5)]
    assert texts(left.tensorboard_folder)["summary/note"] == [(0, '```json\n"converged"\n```')]
