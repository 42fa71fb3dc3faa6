"""Throughput by wall time, and the planned number of steps, in report, show and watch."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepwell
from stepwell._core.text import rate
from stepwell.analysis.live import LiveRun
from stepwell.analysis.overview import overview
from stepwell.analysis.report import report
from stepwell.analysis.throughput import Throughput
from stepwell.testing import FakeClock
from stepwell.training import data_loading, training_iteration, training_loop, validation_loop
from tests.harness import run_stepwell


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """60 steps of 32 samples: 0.5 s for data, 0.1 s to train. 4 s of validation, 30 s after the last step."""
    with (
        FakeClock() as clock,
        stepwell.init("job", dir=tmp_path, run_id="job") as run,
        training_loop(),
    ):
        for step in range(60):
            with data_loading():
                clock.advance(0.5)
            with training_iteration(samples=32, tokens=320):
                clock.advance(0.1)
            if step == 30:
                with validation_loop():
                    clock.advance(4)
        clock.advance(30)
    return run.path


@pytest.mark.full
def test_waiting_for_data_counts(run_path: Path) -> None:
    """1,920 samples in 40 s, of which 30 s are waiting for data."""
    run = stepwell.open_run(run_path)
    expected = Throughput(1920 / 40, 1920 / 10, 19200 / 40, 19200 / 10)
    for result in (report(run).throughput, overview(run).throughput):
        assert result is not None
        for name in Throughput.__dataclass_fields__:
            assert getattr(result, name) == pytest.approx(getattr(expected, name))
    now = LiveRun(run, findings=False).look()
    assert now.throughput == report(run).throughput
    line = "48.0 samples/s (192 without waiting for data) · 480 tokens/s (1,920 without"
    for command in ("report", "show"):
        shown = run_stepwell(command, str(run_path), cwd=run_path.parent).stdout
        assert line in " ".join(shown.split())
    shown = run_stepwell("watch", str(run_path), "--once", cwd=run_path.parent).stdout
    assert line in " ".join(shown.split())


def test_nothing_is_made_up_where_sizes_are_not_known(tmp_path: Path) -> None:
    """Steps without samples have no throughput."""
    with FakeClock() as clock, stepwell.init("job", dir=tmp_path) as run:  # noqa: SIM117
        with training_loop(), training_iteration():
            clock.advance(1)
    assert report(stepwell.open_run(run.path)).throughput is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01234, "0.0123"),
        (4.567, "4.57"),
        (48.0, "48.0"),
        (506.4, "506"),
        (3373.2, "3,370"),
        (0, "0"),
    ],
)
def test_three_digits(value: float, text: str) -> None:
    """And commas between thousands."""
    assert rate(value) == text


def test_the_number_of_steps_follows_from_loader_and_epochs(tmp_path: Path) -> None:
    """48 batches, 8 epochs, 2 batches a step: exactly 192, also during the first epoch."""
    config = {"epochs": 8}
    for each, target in ((1, 384), (2, 192)):
        with FakeClock() as clock, stepwell.init("job", dir=tmp_path, config=config) as run:
            facts = {"batches_per_epoch": 48, "batches_per_step": each}
            with stepwell.span("training_loop", **facts):
                for step in range(30):
                    run.set_step(step, 0)
                    with stepwell.span("training_single_iteration"):
                        clock.advance(0.1)
                clock.advance(0.01)
                run.flush()
                opened = stepwell.open_run(run.path)
                assert LiveRun(opened, findings=False).look().target == target
                left = report(opened).left
                assert left is not None
                assert (left.done, left.target) == (30, target)
