"""The examples in docs/loggers.md work."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell.loggers import KINDS, BackendRun, MLFlowLogger, TensorBoardLogger, WandBLogger
from tests.loggers.logged import items, metrics
from tests.loggers.needs import needs

PAGE = (Path(__file__).parents[2] / "docs" / "loggers.md").read_text()


def block(containing: str) -> str:
    """The code block of the page that has this in it."""
    (found,) = [
        text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if containing in text
    ]
    return str(found)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")


def test_the_first_example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of the three gets the values of its frequency."""
    torch = pytest.importorskip("torch")
    import stepwell

    for logger_class in (MLFlowLogger, TensorBoardLogger, WandBLogger):
        monkeypatch.setattr(logger_class, "backend_class", "")
    space: dict[str, Any] = {
        "epochs": 2,
        "loader": [(1, 2)] * 150,
        "step": lambda x, y: torch.tensor(0.5),
        "validate": lambda: 0.75,
        "model": torch.nn.Linear(1, 1),
    }
    run = stepwell.init(dir=tmp_path)
    exec(block("= LoggersCollection("), space)
    run.finish()
    losses = [m.audience for m in metrics(run) if m.name == "train/loss"]
    assert losses.count((1, 2)) == 4
    assert losses.count((2,)) == 296
    assert [m.audience for m in metrics(run) if m.name == "val/accuracy"] == [(1, 2, 3)] * 2
    assert {i.name for i in items(run)} == {"lr", "optimizer.name", "digits"}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@needs("mlflow", "cloudpickle")
def test_models_and_contexts_in_mlflow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_database: Path
) -> None:
    """Logged models can be loaded as the page says."""
    torch = pytest.importorskip("torch")
    from mlflow import MlflowClient

    uri = f"sqlite:///{shutil.copy(empty_database, tmp_path / 'mlflow.db')}"
    trained, x = torch.nn.Linear(3, 2), torch.ones(5, 3)
    space: dict[str, Any] = {"model": trained, "x": x}
    with MLFlowLogger(tracking_uri=uri).start_logging() as logger:
        space["logger"] = logger
        exec(block('context="validation"'), space)
        exec(block("registered_model_name="), space)
        assert logger.flush(timeout=60)
        space["run_id"] = logger.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    exec(block("mlflow.pytorch.load_model"), space)
    assert space["model"] is not trained
    assert torch.equal(space["model"](x), trained(x))
    found = MlflowClient().get_run(space["run_id"]).data.metrics
    assert found == {"training/loss": 0.31, "validation/loss": 0.42}


def test_a_logger_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its backend runs in a separate process."""
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "lines.py").write_text(block("class LinesBackend"))
    monkeypatch.syspath_prepend(str(tmp_path))
    from my_package.lines import LinesLogger

    (tmp_path / "logs").mkdir()
    with LinesLogger(savedir=tmp_path / "logs").start_logging() as logger:
        logger.log(1.5, "loss")
        logger.log("words", "note", kind="text")
        assert logger.flush(timeout=60)
        found = logger.backend_run(timeout=60)
    assert found == BackendRun(folder=str(tmp_path / "logs"))
    lines = (tmp_path / "logs" / "lines.txt").read_text().splitlines()
    assert lines == ["metric loss 1.5", "item note words"]
    sys.modules.pop("my_package.lines")
    sys.modules.pop("my_package")


def test_the_trainer(tmp_path: Path) -> None:
    """It leaves what the page says."""
    torch = pytest.importorskip("torch")
    import stepwell
    from tests.loggers.logged import Own

    labels = torch.arange(12) % 3
    data = torch.utils.data.TensorDataset(torch.rand(12, 3), labels)
    space: dict[str, Any] = {
        "model": torch.nn.Linear(3, 3),
        "logger": Own(),
        **{f"{stage}_dataset": data for stage in ("train", "validation", "test")},
    }
    run = stepwell.init(dir=tmp_path / "runs")
    exec(block("TorchTrainer(").replace('"loss": ', '"num_workers_dataloader": 0, "loss": '), space)
    run.finish()
    names = {m.name for m in metrics(run)}
    by_epoch = {"train_loss_epoch", "validation_accuracy_epoch", "epoch_time_s"}
    assert names >= {"loss", *by_epoch}
    assert {path.name for path in Path("checkpoints").iterdir()} == {
        "best_model",
        "epoch_4",
        "epoch_9",
    }


def test_both_tables_have_every_kind() -> None:
    """None is left out."""
    section = PAGE.partition("## Kinds")[2].partition("\n## ")[0]
    tables = section.partition("And where it arrives")
    for table in (tables[0], tables[2]):
        first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
        assert re.findall(r"`(\w+)`", " ".join(first)) == list(KINDS)
