"""The Hugging Face example runs unchanged and records both trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.programs import run_example, run_of
from tests.harness import TRAINERS
from tests.nesting.tree import check_tree, edges

pytestmark = pytest.mark.torch


@pytest.mark.full
def test_trainer_and_accelerate_in_one_run(tmp_path: Path) -> None:
    """The Trainer and the Accelerate loop each make 8 steps of 16 samples in 3 epochs."""
    run = run_of(run_example("huggingface.py", tmp_path, modules=TRAINERS), tmp_path)
    spans = run.spans().collect()
    check_tree(spans)
    assert set(spans["status"]) == {"ok"}
    counts = edges(spans)
    assert counts["training_loop", "application"] == 2
    assert counts["training_single_iteration", "training_loop"] == 48
    assert counts["validation_loop", "training_loop"] == 3
    assert counts["checkpoint_save_sync", "training_loop"] == 3
    metrics = run.metrics().collect()
    losses = metrics.filter(metrics["name"] == "loss")["value"].to_list()
    assert len(losses) == 48
    assert losses[23] < losses[0]
    assert losses[-1] < losses[24]
