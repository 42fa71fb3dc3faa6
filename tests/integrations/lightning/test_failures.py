"""Failures in a fit: exceptions, interrupts, and problems inside stepwell."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch

import stepwell
from stepwell.integrations.lightning.fit import FitRecorder
from stepwell.integrations.lightning.recorder import LightningRecorder
from stepwell.integrations.torch.diagnostics import TrainerDiagnostics
from tests.integrations.lightning.fits import (
    Recorded,
    assert_untouched,
    hooked,
    loader,
    model_class,
    options,
)

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
Model = model_class()


def test_an_exception_in_training_step() -> None:
    """It is recorded on what it went through, all of which is closed; the step is not counted."""
    trainer = hooked()(**options(max_epochs=2))
    with pytest.raises(ValueError, match="as asked"):
        trainer.fit(Model(fail_at=4), loader())
    recorded = Recorded()
    assert recorded.open() == ["application"]
    through = ["training_loop", "training_single_iteration", "model_forward"]
    assert recorded.failed() == through
    (error,) = recorded.attributes_of("error")
    assert (error["exception_type"], error["exception_message"]) == ("ValueError", "as asked")
    (update,) = recorded.attributes_of("training_metrics_update")
    assert update["num_iterations"] == trainer.global_step == 4
    assert_untouched(trainer)
    # The next fit is as if nothing had been.
    hooked()(**options(max_steps=2)).fit(Model(), loader())
    assert Recorded().attributes_of("training_metrics_update")[-1]["num_iterations"] == 2
    assert Recorded().open() == ["application"]


@pytest.mark.parametrize("where", ["validation", "data", "optimizer", "setup"])
def test_exceptions_elsewhere(where: str) -> None:
    """Wherever it is raised, only the application stays open."""

    class Failing(Model):  # type: ignore[misc, valid-type]
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if where == "validation" and not self.trainer.sanity_checking:
                raise ValueError("as asked")

        def configure_optimizers(self) -> Any:
            if where == "setup":
                raise ValueError("as asked")
            return super().configure_optimizers()

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            if where == "optimizer":
                raise ValueError("as asked")

    class Data(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, i: int) -> Any:
            if where == "data" and i == 6:
                raise ValueError("as asked")
            return torch.ones(3), torch.ones(1)

    batches = torch.utils.data.DataLoader(Data(), batch_size=2)
    with pytest.raises(ValueError, match="as asked"):
        hooked()(**options(max_epochs=2)).fit(Failing(), batches, loader())
    recorded = Recorded()
    assert recorded.open() == ["application"]
    failed = {
        "validation": ["training_loop", "validation_loop"],
        "data": ["training_loop", "data_loading"],
        "optimizer": ["training_loop", "training_single_iteration", "optimizer_update"],
        "setup": ["optimizer_initialization"],
    }
    found = recorded.failed()
    assert [name for name in failed[where] if name not in found] == []
    assert recorded.attributes_of("error")[0]["exception_message"] == "as asked"


def test_keyboard_interrupt() -> None:
    """Lightning ends the program then; the run says what was interrupted."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            hooked()(**options(max_epochs=2)).fit(
                Model(fail_at=3, error=KeyboardInterrupt), loader()
            )
    finally:
        signal.signal(signal.SIGINT, before)
    recorded = Recorded()
    assert recorded.open() == ["application"]
    assert recorded.attributes_of("error")[0]["exception_type"] == "KeyboardInterrupt"
    (update,) = recorded.attributes_of("training_metrics_update")
    assert update["num_iterations"] == 3


def test_the_users_own_spans_around_a_fit_stay_open() -> None:
    """Spans that were open before the fit are not ended by its failure."""
    Hooked = hooked()
    with stepwell.telemetry.timed_span("experiment") as span:
        with pytest.raises(ValueError, match="as asked"):
            Hooked(**options(max_epochs=1)).fit(Model(fail_at=0), loader())
        assert span.active
    assert Recorded().count("training_loop", "experiment") == 1


def test_a_problem_inside_stepwell_never_reaches_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever breaks in the telemetry, the fit is as it would be without."""
    monkeypatch.delenv("STEPWELL_STRICT")
    Hooked = hooked()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("inside")

    monkeypatch.setattr(FitRecorder, "_end_batch", broken)
    monkeypatch.setattr(LightningRecorder, "_wrap_loop", broken)
    trainer = Hooked(**options(max_steps=3))
    trainer.fit(Model(), loader())
    assert trainer.global_step == 3


def test_problems_at_the_start_of_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is recorded without diagnostics; without a record the fit runs all the same."""
    monkeypatch.delenv("STEPWELL_STRICT")
    Hooked = hooked()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise AttributeError("param_groups")

    monkeypatch.setattr(TrainerDiagnostics, "begin", broken)
    trainer = Hooked(**options(max_steps=3))
    trainer.fit(Model(), loader())
    assert trainer.global_step == 3
    assert Recorded().count("training_single_iteration", "training_loop") == 3
    monkeypatch.setattr(FitRecorder, "_begin", broken)
    trainer = Hooked(**options(max_steps=2))
    trainer.fit(Model(), loader())
    assert trainer.global_step == 2
