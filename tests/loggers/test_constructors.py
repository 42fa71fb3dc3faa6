"""Loggers as they are made: defaults, options, what is refused; and small things that each has."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from stepwell import Run, StepwellError
from stepwell.loggers import (
    ConsoleLogger,
    EmptyLogger,
    Logger,
    LoggersCollection,
    MLFlowLogger,
    Prov4ML,
    Prov4MLLogger,
    TensorBoardLogger,
    WandBLogger,
    get_mlflow_logger,
)
from tests.loggers.logged import Own, items, metrics


@pytest.mark.parametrize(
    ("make", "to", "folder"),
    [
        (ConsoleLogger, "console", "mllogs/simple-logger"),
        (MLFlowLogger, "mlflow", "mllogs/mlflow"),
        (WandBLogger, "wandb", "mllogs/wandb"),
        (TensorBoardLogger, "tensorboard", "mllogs/tensorboard"),
        (Prov4MLLogger, "prov", "mllogs/prov_logs"),
        (EmptyLogger, "empty", "mllogs"),
    ],
)
def test_constructors_have_defaults(
    make: Any, to: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As documented, and make nothing."""
    monkeypatch.chdir(tmp_path)
    logger = make()
    assert (logger.to, logger.savedir, logger.log_freq) == (to, Path(folder), "epoch")
    assert (logger.log_on_workers, logger.worker_rank) == (0, 0)
    assert not logger.is_initialized
    assert logger.experiment_id is None
    assert logger.run_id is None
    assert list(tmp_path.iterdir()) == []


def test_prov4ml_is_another_name() -> None:
    """The document uses it."""
    assert Prov4ML is Prov4MLLogger


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Own(savedir=5), "savedir must be a folder, such as 'mllogs', got 5"),  # type: ignore[arg-type]
        (lambda: WandBLogger(offline_mode="no"), "offline_mode must be True or False, got 'no'"),  # type: ignore[arg-type]
        (lambda: WandBLogger(tags="a,b"), "tags must be a list of strings"),
        (
            lambda: MLFlowLogger(experiment_name=5),
            "experiment_name must be a string or None, got 5",
        ),  # type: ignore[arg-type]
        (lambda: MLFlowLogger(tracking_uri="https://me:pw@host"), "MLFLOW_TRACKING_PASSWORD"),
        (
            lambda: Prov4MLLogger(save_after_n_logs=0),
            "save_after_n_logs must be a whole number of at least 1",
        ),
        (lambda: Prov4MLLogger(create_svg=1), "create_svg must be True or False, got 1"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused_at_once(make: Any, said: str) -> None:
    """With the wrong value, and what to write instead; a password is not repeated."""
    with pytest.raises(StepwellError) as error:
        make()
    assert said in str(error.value)
    assert "pw" not in str(error.value)


def test_options_go_to_the_backend_as_plain_values(tmp_path: Path) -> None:
    """And are absolute where they are paths: the sidecar may be elsewhere."""
    loggers: list[Logger] = [
        ConsoleLogger(),
        MLFlowLogger(tracking_uri="http://h:1", run_name="r", run_id="i", experiment_id="e"),
        WandBLogger(tags=["a"], entity="me"),
        TensorBoardLogger(run_name="x"),
        Prov4MLLogger(),
    ]
    for logger in loggers:
        options = logger.backend_options()
        assert json.loads(json.dumps(options)) == options
        folder = options.get("savedir") or options.get("provenance_save_dir")
        assert os.path.isabs(folder)


def test_should_log_of_a_subclass_counts(recorded: Run) -> None:
    """For each call, alone and in a collection."""

    class Odd(Own):
        def should_log(self, batch_idx: int | None = None) -> bool:
            return bool(batch_idx and batch_idx % 2)

    logger = Odd(log_freq="epoch")
    both = LoggersCollection([logger]).create_logger_context()
    for i in range(4):
        logger.log(float(i), "alone", batch_idx=i)
        both.log(float(i), "both", batch_idx=i)
        logger.log(f"{i}", "text", kind="text", batch_idx=i)
    recorded.finish()
    assert [m.value for m in metrics(recorded) if m.name == "alone"] == [1.0, 3.0]
    assert [m.value for m in metrics(recorded) if m.name == "both"] == [1.0, 3.0]
    assert [i.value for i in items(recorded)] == ["1", "3"]


def test_the_mlflow_logger_is_found() -> None:
    """Alone, in a collection, or not at all."""
    mlflow = MLFlowLogger()
    assert get_mlflow_logger(mlflow) is mlflow
    assert get_mlflow_logger(LoggersCollection([Own(), mlflow])) is mlflow
    assert get_mlflow_logger(Own()) is None
    assert get_mlflow_logger(None) is None


def test_serialize_gives_the_path(tmp_path: Path) -> None:
    """Which the published one forgets."""
    path = Own(savedir=tmp_path).serialize({"a": 1}, "things/object")
    assert pickle.loads(Path(path).read_bytes()) == {"a": 1}
    assert Path(path) == tmp_path / "things" / "object"
