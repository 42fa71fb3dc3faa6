"""The example of Hugging Face's libraries runs as it is, and leaves what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.programs import run_example, run_of
from tests.harness import TRAINERS
from tests.nesting.tree import check_tree, edges

pytestmark = pytest.mark.torch


@pytest.mark.full
def test_trainer_and_accelerate_in_one_run(tmp_path: Path) -> None:
    """8 steps of 16 samples in each of 3 epochs, by the Trainer and by a loop of one's own."""
    run = run_of(run_example("huggingface.py", tmp_path, modules=TRAINERS), tmp_path)
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
