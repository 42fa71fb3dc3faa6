"""Hooked trainer classes: every form that users write, and that the original class is unchanged."""

from __future__ import annotations

import pickle
from importlib import import_module

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import EarlyStopping

from stepwell.integrations.lightning import TelemetryCallback, TelemetryTrainer, hook_trainer_cls
from tests.integrations.lightning.fits import (
    BATCHES,
    Recorded,
    assert_untouched,
    hooked,
    loader,
    model_class,
    options,
)

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
Model = model_class()


def test_class_and_callback_in_both_forms() -> None:
    """hook_trainer_cls returns a class that can be unpacked into itself and its callback."""
    Hooked = hooked()
    cls, callback = Hooked
    assert cls is Hooked
    assert issubclass(Hooked, pl.Trainer)
    assert Hooked is not pl.Trainer
    assert Hooked.__name__ == "Trainer"
    assert isinstance(callback, TelemetryCallback)
    assert isinstance(callback, pl.Callback)
    first, second = Hooked(**options()), Hooked(**options())
    for trainer in (first, second):
        assert trainer.nv_one_logger_callback is callback
        assert trainer.telemetry_callback is callback
        assert trainer.callbacks.count(callback) == 1
    assert "save_checkpoint" not in vars(first)
    assert not hasattr(pl.Trainer, "telemetry_callback")
    assert Recorded().edges == {("application", None): 1}


@pytest.mark.parametrize("form", ["none", "one", "list", "left out"])
def test_callbacks_may_be_given_in_any_form(form: str) -> None:
    """None, one, a list, or nothing at all; ours comes first and the user's are kept."""
    mine = EarlyStopping("val_loss")
    given = {"none": None, "one": mine, "list": [mine]}
    more = {} if form == "left out" else {"callbacks": given[form]}
    Hooked, callback = hooked()
    trainer = Hooked(**options(**more))
    assert trainer.callbacks[0] is callback
    assert (mine in trainer.callbacks) is (form in ("one", "list"))


def test_hooking_twice_is_harmless() -> None:
    """Hooking a hooked class changes nothing: it is recorded once, also with another callback."""
    first = hooked()
    assert hook_trainer_cls(first) is first
    second = hook_trainer_cls(pl.Trainer)
    trainer = second(**options(max_epochs=1, callbacks=[TelemetryCallback()]))
    trainer.fit(Model(), loader())
    recorded = Recorded()
    recorded.check_fit(BATCHES)
    assert recorded.count("application", None) == 1
    assert recorded.count("training_loop", "application") == 1


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_plain_callback_is_enough(package: str) -> None:
    """Without a hook all is there but setting up communication, and no object stays changed."""
    module = import_module(package)
    callback = TelemetryCallback()
    trainer = module.Trainer(**options(max_epochs=1, callbacks=callback))
    model = model_class(package)()
    trainer.fit(model, loader(), loader())
    trainer.test(model, loader(), verbose=False)
    recorded = Recorded()
    recorded.check_fit(BATCHES)
    assert recorded.count("validation_loop", "training_loop") == 1
    assert recorded.count("testing_loop", "application") == 1
    assert recorded.count("optimizer_initialization", "application") == 1
    assert_untouched(trainer)


def test_the_trainer_that_comes_hooked() -> None:
    """It takes a dict or keywords, and has the callback."""
    trainer = TelemetryTrainer(options(max_epochs=3), max_steps=4)
    assert isinstance(trainer, pl.Trainer)
    trainer.fit(Model(), loader())
    Recorded().check_fit(4)
    assert trainer.telemetry_callback is trainer.nv_one_logger_callback is trainer.callbacks[0]


def test_environment_variables_of_lightning_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning finds its arguments in the signature of the class, which is that of the one below."""
    monkeypatch.setenv("PL_TRAINER_MAX_EPOCHS", "7")
    assert hooked()(**options()).max_epochs == 7


def test_a_hooked_trainer_can_be_pickled() -> None:
    """As Lightning does for the processes that it spawns."""
    trainer = hooked()(**options(max_epochs=5))
    copy = pickle.loads(pickle.dumps(trainer))
    assert type(copy).__name__ == "Trainer"
    assert isinstance(copy, pl.Trainer)
    assert copy.telemetry_callback in copy.callbacks
    assert copy.max_epochs == 5
