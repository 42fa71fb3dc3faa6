"""Standard spans without disk space or at the size cap: training and counting continue."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import stepwell
from stepwell.journal.journal import Journal
from stepwell.journal.lane import Lane
from stepwell.journal.state import local, state
from stepwell.telemetry import timed_span
from stepwell.training import (
    application,
    checkpoint_save,
    model_forward,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
)
from tests.nesting.tree import edges, finished

PASSES = 50


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No segment can be had until it is undone; a problem inside stepwell is raised."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    return monkeypatch


def _fill(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "take", lambda *args, **kwargs: None)
    if hasattr(local, "lane"):
        local.lane.limit = 0


def _train() -> None:
    for _ in range(PASSES):
        with training_iteration(), model_forward():
            pass
    with validation_loop(), validation_iteration():
        pass
    with checkpoint_save(global_step=PASSES):
        pass


@pytest.mark.parametrize("begun", ["nothing", "in the first segment", "in a later segment"])
def test_no_space_for_a_while(tmp_path: Path, full: pytest.MonkeyPatch, begun: str) -> None:
    """Nothing stays open behind spans that were not recorded, and what follows them is as it should be."""
    run = stepwell.init("test", dir=tmp_path)
    with full.context() as patch:
        if begun == "nothing":
            _fill(patch)
        with application(), training_loop():
            if begun != "nothing":
                for _ in range(2 * (begun == "in a later segment")):
                    lane: Lane = local.lane
                    lane.roll()
                _fill(patch)
            depth = len(local.lane.stack)
            _train()
            assert len(local.lane.stack) == depth
    with application(), training_loop(), training_iteration(), model_forward():
        pass
    assert state.journal is not None
    assert (local.lane.stack, state.journal.objects) == ([0], {})
    run.finish()
    spans = finished(run)
    assert edges(spans)["model_forward", "training_single_iteration"] == 1
    assert spans["name"].to_list().count("training_single_iteration") == 1


def test_no_space_in_a_task(tmp_path: Path, full: pytest.MonkeyPatch) -> None:
    """The same inside an event loop, for the user's own spans too."""
    run = stepwell.init("test", dir=tmp_path)

    async def train() -> None:
        with application(), training_loop():
            with full.context() as patch:
                _fill(patch)
                open_before = len(local.lane.frames)
                _train()
                with timed_span("own"):
                    pass
                assert len(local.lane.frames) == open_before
            with timed_span("after"):
                pass

    asyncio.run(train())
    run.finish()
    spans = finished(run)
    assert edges(spans)["after", "training_loop"] == 1
    assert "own" not in spans["name"].to_list()


def test_iterations_without_space_are_counted(tmp_path: Path, full: pytest.MonkeyPatch) -> None:
    """The iterations in a checkpoint include those for which there was no space."""
    stepwell.init("test", dir=tmp_path)
    with application(), training_loop(), full.context() as patch:
        _fill(patch)
        for _ in range(PASSES):
            with training_iteration(), model_forward():
                pass
        with checkpoint_save(global_step=PASSES) as save:
            pass
    success = next(event for event in save.events if event.name == "save_checkpoint_success")
    assert success.attributes["productive_train_iterations"] == PASSES
