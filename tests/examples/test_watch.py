"""The example of ``watch`` runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import stepwell
from tests.nesting.tree import check_tree

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "watch.py"
STEPS = 3 * 12


def test_watch(tmp_path: Path) -> None:
    """It leaves a run with all its iterations, losses and collections, and prints where."""
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(Path(stepwell.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
            "STEPWELL_STRICT": "1",
            "STEPWELL_RUNTIME": "off",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = stepwell.list_runs(tmp_path / "runs")
    assert str(run.path) in done.stdout
    assert run.status == "finished"
    spans = run.spans().collect()
    check_tree(spans)
    assert spans.filter(pl.col("name") == "training_single_iteration").height == STEPS
    metrics = run.metrics().collect()
    losses = metrics.filter(pl.col("name") == "loss").sort("step")["value"].to_list()
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] / 10
    assert metrics.filter(pl.col("name") == "gradient_norm/overall").height == 4
