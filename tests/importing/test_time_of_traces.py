"""The time table of a run is the same after it was exported as a trace and imported again."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepwell
from stepwell.analysis.report import report
from stepwell.testing import FakeClock
from stepwell.training import (
    application,
    checkpoint_save,
    data_loading,
    model_backward,
    model_forward,
    optimizer_update,
    testing_loop,
    training_iteration,
    training_loop,
    validation_loop,
)
from tests.harness import run_stepwell


def test_chrome(tmp_path: Path) -> None:
    """Standard spans, whose names stand in a trace beside the category of the `ai` tree, and own ones."""
    with (
        FakeClock() as clock,
        stepwell.init("job", dir=tmp_path / "runs", run_id="job") as run,
        application(),
        training_loop(),
    ):
        for step in range(30):
            with data_loading():
                clock.advance(0.01)
            with training_iteration(samples=4):
                for part in (model_forward, model_backward, optimizer_update):
                    with part():
                        clock.advance(0.02)
            if step % 10 == 9:
                with validation_loop():
                    clock.advance(0.5)
                with checkpoint_save(step, path="model.pt"):
                    clock.advance(0.25)
                with stepwell.span("rollout"):
                    clock.advance(1)
        with testing_loop():
            clock.advance(2)
    trace = tmp_path / "trace.json"
    for command in (
        ("export", str(run.path), "--to", "chrome", "-o", str(trace)),
        ("import", str(trace), "--dir", str(tmp_path / "imported")),
    ):
        done = run_stepwell(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    (again,) = stepwell.list_runs(tmp_path / "imported")
    tables = [
        {line.phase: line.ns / 1e9 for line in report(each).time}
        for each in (stepwell.open_run(run.path), again)
    ]
    assert tables[1] == pytest.approx(tables[0], abs=0.011)
    assert tables[0]["validation"] == pytest.approx(1.5)
