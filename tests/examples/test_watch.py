"""The ``watch`` example runs unchanged."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.examples.programs import run_example, run_of
from tests.nesting.tree import check_tree

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

STEPS = 3 * 12


def test_watch(tmp_path: Path) -> None:
    """The run has all iterations, losses and gradient norms, and its path is printed."""
    done = run_example("watch.py", tmp_path)
    assert done.stderr == ""
    run = run_of(done, tmp_path)
    spans = run.spans().collect()
    check_tree(spans)
    assert spans.filter(pl.col("name") == "training_single_iteration").height == STEPS
    metrics = run.metrics().collect()
    losses = metrics.filter(pl.col("name") == "loss").sort("step")["value"].to_list()
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] / 10
    assert metrics.filter(pl.col("name") == "gradient_norm/overall").height == STEPS
