"""``stepwell.watch``: exceptions, interrupts and problems, and how a run ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell.integrations.torch.watcher import loop, training  # noqa: E402
from tests.harness import environment, run_script  # noqa: E402
from tests.integrations.torch.loops import BATCHES, make_loader, make_model, make_optimizer, train  # noqa: E402
from tests.integrations.torch.watched import curve, parts, read, updates  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]


def test_an_exception_in_training(tmp_path: Path) -> None:
    """It comes out untouched; every span is closed, and the run has failed."""
    model, optimizer, loader = parts()
    watch = stepwell.watch(model, optimizer, loader)

    def loop() -> None:
        with watch:
            for i, (x, y) in enumerate(loader):
                torch.nn.functional.mse_loss(model(x), y).backward()
                if i == 2:
                    raise ZeroDivisionError
                optimizer.step()

    with pytest.raises(ZeroDivisionError):
        loop()
    assert watch.run.status == "failed"
    found, spans = read(watch.run)
    assert set(spans["status"]) == {"ok", "error"}
    failed = spans.filter(pl.col("status") == "error")["name"].to_list()
    assert sorted(failed) == ["application", "training_loop", "training_single_iteration"]
    assert updates(found)[-1]["num_iterations"] == 2


def test_a_problem_of_ours_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails in here, training ends as it would have."""
    monkeypatch.delenv("STEPWELL_STRICT")
    expected = train(make_model(), make_optimizer(make_model()), make_loader())

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("broken")

    for name in ("_begin", "_find_loop", "_diagnose", "_look"):
        monkeypatch.setattr(training.WatchedTraining, name, fail)
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader):
        assert len(train(model, optimizer, loader)) == len(expected)


def test_a_problem_with_validation_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended where a batch is asked for, which nothing of ours may spoil."""
    monkeypatch.delenv("STEPWELL_STRICT")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("broken")

    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader):
        train(model, optimizer, loader)
        model.eval()
        for x, _ in loader.dataset:
            model(x)
        model.train()
        with monkeypatch.context() as patch:
            patch.setattr(training.Validation, "end", fail)
            train(model, optimizer, loader)


def test_at_the_end_of_the_program(tmp_path: Path) -> None:
    """Without ``close()`` the run is complete all the same."""
    program = """
import stepwell
from tests.integrations.torch.loops import *
model = make_model(); optimizer = make_optimizer(model); loader = make_loader()
stepwell.watch(model, optimizer, loader)
train(model, optimizer, loader)
"""
    env = environment(STEPWELL_DIR=str(tmp_path / "here"))
    run_script(program, cwd=tmp_path, env=env, check=True)
    (found,) = stepwell.list_runs(tmp_path / "here")
    assert found.status == "finished"
    assert updates(found)[-1]["num_iterations"] == BATCHES
    assert len(curve(found)) == BATCHES


def test_interrupted_where_a_pass_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also there the passes that follow are recorded, and their losses."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        run = watch.run
        assert run is not None
        train(model, optimizer, loader)
        with monkeypatch.context() as patch:

            def interrupt(self: Any, outputs: Any) -> None:
                raise KeyboardInterrupt

            patch.setattr(loop.StepLoss, "backward_begins", interrupt)
            with pytest.raises(KeyboardInterrupt):
                train(model, optimizer, loader)
        train(model, optimizer, loader)
    found, spans = read(run)
    assert [step for step, _ in curve(found)] == list(range(2 * BATCHES))
    backward = spans.filter(pl.col("name") == "backward")["status"].to_list()
    assert (backward.count("ok"), len(backward)) == (2 * BATCHES, 2 * BATCHES + 1)


@pytest.mark.parametrize("looked", [False, True])
def test_closed_before_the_first_step(looked: bool, caplog: pytest.LogCaptureFixture) -> None:
    """There is nothing to be said about it."""
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer, loader) as watch:
        if looked:
            next(iter(loader))
    assert watch.run is not None
    assert watch.run.status == "finished"
    assert caplog.messages == []
