"""Step numbers of iterations: set before, within or after the iteration, from any first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import stepwell
from stepwell.analysis.goodput import goodput
from stepwell.analysis.ranks import read_grids
from stepwell.analysis.timeline import steps
from stepwell.reading import RecordedRun
from stepwell.testing import FakeClock

Loop = Callable[[stepwell.Run, FakeClock, int], None]
COUNT = 8


def before(run: stepwell.Run, clock: FakeClock, step: int) -> None:
    """Set before the iteration."""
    run.set_step(step)
    with run.span("train step"):
        clock.advance(0.1)
    run.log({"loss": 1.0})


def within(run: stepwell.Run, clock: FakeClock, step: int) -> None:
    """Set when the batch is there."""
    with run.span("train step"):
        clock.advance(0.01)
        run.set_step(step)
        clock.advance(0.09)
    run.log({"loss": 1.0})


def after(run: stepwell.Run, clock: FakeClock, step: int) -> None:
    """Set after the iteration."""
    with run.span("train step"):
        clock.advance(0.1)
    run.set_step(step)
    run.log({"loss": 1.0})


def record(folder: Path, loop: Loop, first: int, warm_up: int = 0) -> RecordedRun:
    """Write a training from this step on."""
    with FakeClock() as clock, stepwell.init("numbered", dir=folder) as run:
        for _ in range(warm_up):
            with run.span("train step"):
                clock.advance(0.1)
        for step in range(first, first + COUNT):
            loop(run, clock, step)
    return stepwell.open_run(run.path)


@pytest.mark.parametrize("first", [0, 1, 1000])
@pytest.mark.parametrize("loop", [before, within, after])
def test_steps_have_the_numbers_of_the_metrics(tmp_path: Path, loop: Loop, first: int) -> None:
    """In the table of steps, in the grid of ranks, and counted once each."""
    run = record(tmp_path, loop, first)
    expected = list(range(first, first + COUNT))
    assert run.metrics().collect()["step"].to_list() == expected
    assert steps(run)["step"].to_list() == expected
    assert [grid.steps.tolist() for grid in read_grids(run)] == [expected]
    assert goodput(run).steps == COUNT


def test_iterations_before_the_first_step_are_none(tmp_path: Path) -> None:
    """A warm-up without steps does not shift the others."""
    run = record(tmp_path, before, 0, warm_up=3)
    assert steps(run)["step"].to_list() == list(range(COUNT))
    assert [grid.steps.tolist() for grid in read_grids(run)] == [list(range(COUNT))]


def test_without_a_step_iterations_are_counted(tmp_path: Path) -> None:
    """They count from 0, for goodput too."""
    with FakeClock() as clock, stepwell.init("uncounted", dir=tmp_path) as written:
        for _ in range(COUNT):
            with written.span("train step"):
                clock.advance(0.1)
    run = stepwell.open_run(written.path)
    assert steps(run)["step"].to_list() == list(range(COUNT))
    assert goodput(run).steps == COUNT
