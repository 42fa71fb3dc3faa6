"""The example runs unchanged, and records what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepwell
from tests.harness import REPOSITORY, TRAINERS, environment, run_script
from tests.integrations.lightning.fits import Recorded

pytestmark = pytest.mark.torch
EXAMPLE = REPOSITORY / "examples" / "lightning_fit.py"


def test_example(tmp_path: Path) -> None:
    """Three epochs of twelve steps, validated and saved after each; the application ends by itself."""
    env = environment(STEPWELL_STRICT="1")
    done = run_script(EXAMPLE, cwd=tmp_path, env=env, check=True, timeout=240, modules=TRAINERS)
    (run,) = stepwell.list_runs(tmp_path / "runs")
    assert done.stdout == f"recorded in {run.path}\n"
    assert run.status == "finished"
    recorded = Recorded(run)
    recorded.check_fit(36)
    assert recorded.count("validation_loop", "training_loop") == 3
    assert recorded.count("checkpoint_save_sync", "training_loop") == 3
    assert recorded.open() == recorded.failed() == []
    ends = [
        update["current_iteration"] for update in recorded.attributes_of("training_metrics_update")
    ]
    assert ends == [9, 19, 29, 35]
