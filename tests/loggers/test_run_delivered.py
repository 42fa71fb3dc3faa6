"""A plain run, recorded without any logger, in real backends: ``stepwell forward``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.loggers.delivery.forwarder import forward_log
from tests.loggers.needs import needs
from tests.loggers.reading_back import Left
from tests.loggers.tensorboard_reading import accumulated, hparams, texts

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
        picture = np.full((2, 4, 3), 200, np.uint8)
        run.log({"sample": stepwell.Image(picture, caption="gray"), "phase": "training"}, step=2)
        run.log({"weights": stepwell.Histogram([0.0, 1.0, 1.0, 4.0], bins=2)}, step=2)
        run.log({"words": stepwell.Table([["a", 1]], columns=["word", "count"])}, step=2)
        run.log({"poem": stepwell.Text("# Title")}, step=2)
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


@needs("mlflow", "PIL")
def test_mlflow_items(folder: Path) -> None:
    """The image is one of MLflow's, the table one that it loads, the rest are artifacts."""
    left = sent(folder, "mlflow")
    run = left.mlflow_run()
    images = [file for file in left.mlflow_files("images") if file.endswith(".png")]
    assert [file.partition("+timestamp")[0] for file in images] == ["images/sample+step+2"]
    assert run.data.tags["mlflow.loggedImages"] == "True"
    shown = json.loads(run.data.tags["mlflow.loggedArtifacts"])
    assert shown == [{"path": "words.json", "type": "table"}]
    table = json.loads(
        Path(left.mlflow.download_artifacts(run.info.run_id, "words.json")).read_text()
    )
    assert table == {"columns": ["word", "count"], "data": [["a", 1]]}
    bins = Path(left.mlflow.download_artifacts(run.info.run_id, "weights.json")).read_text()
    assert json.loads(bins)["counts"] == [3, 1]
    assert {"poem.txt", "words.json", "weights.json"} <= set(left.mlflow_files())
    assert run.data.tags["phase"] == "training"


@pytest.mark.full
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
    (row,) = [
        record["history"]["item"]
        for record in records
        if record["type"] == "history" and "phase" in record["history"]["item"]
    ]
    expected = {
        "phase": "training",
        "poem": "# Title",
        "sample._type": "image-file",
        "sample.caption": "gray",
        "sample.width": 4,
        "weights._type": "histogram",
        "weights.values": [3, 1],
        "weights.bins": [0, 2, 4],
        "words._type": "table-file",
        "words.nrows": 1,
    }
    assert {key: row.get(key) for key in expected} == expected
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
    found = texts(left.tensorboard_folder)
    assert found["summary/note"] == [(0, '```json\n"converged"\n```')]
    assert found["poem"] == [(2, "# Title")]
    assert found["phase"] == [(2, "training")]
    assert found["words"] == [(2, "| word | count |\n|---|---|\n| a | 1 |")]
    events = accumulated(left.tensorboard_folder)
    (image,) = events.Images("sample")
    assert (image.step, image.width, image.height) == (2, 4, 2)
    assert events.SummaryMetadata("sample").summary_description == "gray"
    (bins,) = events.Histograms("weights")
    value = bins.histogram_value
    assert (bins.step, value.num, value.min, value.max, value.sum) == (2, 4, 0, 4, 6)
    assert value.sum_squares == pytest.approx(18)
    assert list(value.bucket_limit) == [0, 2, 4]
    assert list(value.bucket) == [0, 3, 1]
