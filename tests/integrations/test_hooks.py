"""No integration adds or removes a hook of PyTorch while PyTorch iterates over it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import stepwell
from stepwell import Run
from stepwell._core.errors import StepwellError
from stepwell.diagnostics import TelemetryConfig, TrainingTelemetry
from stepwell.integrations.torch import diagnostics
from tests.guarded_hooks import changes, guard
from tests.integrations.torch.loops import make_loader, make_model, make_optimizer
from tests.loggers.logged import Own

pytestmark = pytest.mark.torch

EVERYTHING = {
    "track_update_ratio": True,
    "track_weight_stats": True,
    "track_activations": True,
    "track_dead_units": True,
    "track_class_balance": True,
    "task": "regression",
}


@pytest.fixture(autouse=True)
def _guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    guard(monkeypatch)
    yield
    assert changes == []


def train(model: Any, optimizer: Any, loader: Any, telemetry: Any = None, epochs: int = 1) -> int:
    """A plain loop that drops its gradients right after the step; returns the number of batches."""
    count = 0
    for epoch in range(epochs):
        for number, (x, y) in enumerate(loader, 1):
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            count += 1
            if telemetry is not None:
                telemetry.on_batch_end(model, optimizer, number, epoch, None, (x, y))
    return count


@pytest.mark.full
def test_watch_diagnostics_and_watched_models_at_once(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells run again, models that are gone, and all of it over one optimizer, beyond the first steps."""
    monkeypatch.setattr(diagnostics, "DENSE", 10)
    logger: Own = Own(log_freq="batch").create_logger_context()
    model = make_model()
    optimizer, loader = make_optimizer(model), make_loader()
    steps = 0
    for cell in range(3):
        gone = make_model()
        other_optimizer = make_optimizer(gone)
        logger.log(gone, f"gone {cell}", kind="watch", every=2)
        logger.log(model, f"net {cell}", kind="watch", every=2)
        stepwell.watch(
            model, optimizer, loader, diagnostics=TelemetryConfig(collect_every_n=3, **EVERYTHING)
        )
        telemetry = TrainingTelemetry(TelemetryConfig(collect_every_n=1 + cell, **EVERYTHING))
        steps += train(model, optimizer, loader, telemetry, epochs=4)
        del gone
        gc.collect()
        other_optimizer.step()
        other_optimizer.step()
    assert steps == 3 * 16
    stepwell.watch(model, optimizer, loader).close()
    logger.destroy_logger_context()
    telemetry.close()


def test_a_watch_that_is_closed_inside_a_hook(recorded: Run) -> None:
    """Training ends early, from wherever the user finds out."""
    model = make_model()
    optimizer, loader = make_optimizer(model), make_loader()
    watched = stepwell.watch(model, optimizer, loader)
    calls = []

    def stop(*args: Any) -> None:
        calls.append(args)
        watched.close()

    optimizer.register_step_post_hook(stop)
    optimizer.register_step_post_hook(lambda *args: calls.append(args))
    steps = train(model, optimizer, loader)
    assert len(calls) == 2 * steps
    assert not watched.is_on


def test_a_watch_that_begins_inside_a_hook(recorded: Run) -> None:
    """It cannot, and the error explains why."""
    model = make_model()
    optimizer, loader = make_optimizer(model), make_loader()
    refused = []

    def begin(*args: Any) -> None:
        with pytest.raises(StepwellError, match="outside its step") as error:
            stepwell.watch(model, optimizer, loader)
        refused.append(error)

    handle = optimizer.register_step_pre_hook(begin)
    steps = train(model, optimizer, loader)
    assert len(refused) == steps
    handle.remove()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_run_that_is_finished_inside_a_hook(recorded: Run) -> None:
    """As a handler of a signal does that comes during a step."""
    model = make_model()
    optimizer, loader = make_optimizer(model), make_loader()
    watch = stepwell.watch(model, optimizer, loader)
    logger: Own = Own(log_freq="batch").create_logger_context()
    logger.log(model, "net", kind="watch", every=1)
    later = []
    handles = [
        register_optimizer_step_pre_hook(lambda *args: recorded.finish()),
        register_optimizer_step_pre_hook(lambda *args: later.append(args)),
    ]
    steps = train(model, optimizer, loader)
    assert len(later) == steps
    for handle in handles:
        handle.remove()
    watch.close()


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The callback with its diagnostics, and a logger that watches the model from inside a training step."""
    pytest.importorskip("lightning")
    from lightning.pytorch import Trainer

    from stepwell.integrations.lightning import TelemetryCallback
    from stepwell.integrations.lightning.logger import StepwellLogger
    from tests.integrations.lightning.fits import loader, model_class, options

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")

    class Watching(model_class()):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 0:
                self.logger.logger.log(
                    self.layer, f"net {self.current_epoch}", kind="watch", every=2
                )
            return super().training_step(batch, batch_idx)

    trainer = Trainer(
        **options(
            max_epochs=3,
            logger=StepwellLogger(Own(log_freq="batch")),
            callbacks=[TelemetryCallback(diagnostics=TelemetryConfig(collect_every_n=2))],
        )
    )
    trainer.fit(Watching(), loader(), loader(4))
    assert trainer.global_step == 18


@pytest.mark.full
def test_transformers(recorded: Run, tmp_path: Path) -> None:
    """A Trainer with the callback, twice over one model."""
    pytest.importorskip("transformers")
    from stepwell.integrations.transformers import StepwellCallback
    from tests.integrations.trainers import make_trainer

    diagnostics = TelemetryConfig(collect_every_n=2, track_holdout_logits=False)
    trainer = make_trainer(tmp_path, [StepwellCallback(diagnostics=diagnostics)])
    trainer.train()
    trainer.train()
    assert trainer.state.global_step == 14


@pytest.mark.full
def test_accelerate(recorded: Run) -> None:
    """A tracker, with what was prepared trained twice."""
    pytest.importorskip("accelerate")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from stepwell.integrations.accelerate import StepwellTracker, prepare

    try:
        accelerator = Accelerator(log_with=StepwellTracker(), cpu=True)
        accelerator.init_trackers("project")
        model = make_model()
        parts = prepare(accelerator, model, make_optimizer(model), make_loader(), diagnostics=2)
        for _ in range(2):
            model, optimizer, loader = parts
            for x, y in loader:
                accelerator.backward(nn.functional.mse_loss(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
        accelerator.end_training()
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def test_a_model_that_is_annotated_inside_its_own_hooks(recorded: Run) -> None:
    """And left alone inside them too."""
    model = make_model()
    x = torch.zeros(2, *next(iter(make_loader()))[0].shape[1:])
    handles = []

    def annotate(*args: Any) -> None:
        handles.append(stepwell.integrations.torch.annotate(model))

    hook = model.register_forward_pre_hook(annotate)
    model(x)
    model(x)
    hook.remove()
    model.register_forward_hook(lambda *args: handles.pop().remove() if handles else None)
    model(x)
    model(x)
    assert handles == []
