"""The example about loggers leaves its curves everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepwell
from tests.loggers.reading_back import Left

for _name in ("torch", "mlflow", "wandb", "tensorboard", "prov"):
    pytest.importorskip(_name)
pytestmark = [pytest.mark.full, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "loggers.py"
STEPS = [0, 4, 8, 12, 16, 20, 24, 28, 32]
"""Of three epochs with twelve batches each."""


def test_loggers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(Path(stepwell.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
            "STEPWELL_STRICT": "1",
            "STEPWELL_RUNTIME": "off",
            "STEPWELL_EXPORT_TIMEOUT": "120",
            "WANDB_ERROR_REPORTING": "false",
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    left = Left(tmp_path)
    for curve in (left.mlflow_curve, left.wandb_curve, left.tensorboard_curve):
        assert [step for step, _ in curve("train/loss")] == STEPS
        assert [step for step, _ in curve("val/loss")] == [11, 23, 35]
    assert left.mlflow_files() == ["plane.pt", "remark.txt"]
    assert left.provenance_series("train/loss")["stepwell:count"] == "9"
