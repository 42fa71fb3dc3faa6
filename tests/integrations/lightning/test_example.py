"""The example runs as it is, and leaves what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stepwell
from tests.integrations.lightning.fits import Recorded
from tests.processes.programs import environ

pytestmark = [pytest.mark.torch, pytest.mark.full]
EXAMPLE = Path(__file__).parents[3] / "examples" / "lightning_fit.py"


def test_example(tmp_path: Path) -> None:
    """Three epochs of twelve steps, validated and saved after each; the application ends by itself."""
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        cwd=tmp_path,
        env=environ(tmp_path),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    (run,) = stepwell.list_runs(tmp_path / "runs")
    assert done.stdout == f"recorded in {run.path}\n"
    assert run.status == "finished"
    recorded = Recorded(run)
    recorded.check_fit(36)
    assert recorded.count("validation_loop", "training_loop") == 3
    assert recorded.count("checkpoint_save_sync", "training_loop") == 3
    assert recorded.open() == recorded.failed() == []
    ends = [update["current_iteration"] for update in recorded.about("training_metrics_update")]
    assert ends == [9, 19, 29, 35]
