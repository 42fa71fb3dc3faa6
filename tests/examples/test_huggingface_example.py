"""The example of Hugging Face's libraries runs as it is, and leaves what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepwell
from tests.nesting.tree import check_tree, edges

pytestmark = pytest.mark.torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "huggingface.py"
SOURCE = Path(stepwell.__file__).parents[1]


def test_trainer_and_accelerate_in_one_run(tmp_path: Path) -> None:
    """8 steps of 16 samples in each of 3 epochs, by the Trainer and by a loop of one's own."""
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
            "STEPWELL_STRICT": "1",
            "STEPWELL_RUNTIME": "off",
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    (run,) = stepwell.list_runs(tmp_path / "runs")
    assert str(run.path) in done.stdout
    assert run.status == "finished"
    spans = run.spans().collect()
    check_tree(spans)
    assert set(spans["status"]) == {"ok"}
    found = edges(spans)
    assert found["training_loop", "application"] == 2
    assert found["training_single_iteration", "training_loop"] == 48
    assert found["validation_loop", "training_loop"] == 3
    assert found["checkpoint_save_sync", "training_loop"] == 3
    metrics = run.metrics().collect()
    losses = metrics.filter(metrics["name"] == "loss")["value"].to_list()
    assert len(losses) == 48
    assert losses[23] < losses[0]
    assert losses[-1] < losses[24]
