"""The loggers example delivers its curves to every backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.programs import run_example
from tests.loggers.reading_back import Left

for _name in ("torch", "mlflow", "wandb", "tensorboard", "prov"):
    pytest.importorskip(_name)
pytestmark = [pytest.mark.full, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

STEPS = [0, 4, 8, 12, 16, 20, 24, 28, 32]
"""Every fourth of three epochs with twelve batches each."""


def test_loggers(tmp_path: Path) -> None:
    variables = {"STEPWELL_FINISH_TIMEOUT": "120", "WANDB_ERROR_REPORTING": "false"}
    done = run_example("loggers.py", tmp_path, variables)
    assert done.stderr == ""
    left = Left(tmp_path)
    for curve in (left.mlflow_curve, left.wandb_curve, left.tensorboard_curve):
        assert [step for step, _ in curve("train_loss")] == STEPS
        assert [step for step, _ in curve("validation_loss_epoch")] == [12, 24, 36]
    assert left.mlflow_models() == ["plane"]
    files = {Path(file).name for file in left.mlflow_files()}
    assert files == {"config.yaml", "model.pt", "state.pt", "remark.txt"}
    assert left.provenance_series("train_loss")["stepwell:count"] == "9"
