"""Our callbacks and loggers are subclasses of Lightning's, in any order of imports."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from stepwell.compat.itwinai import ItwinaiLogger
from stepwell.integrations.lightning import StepwellLogger, TelemetryCallback
from tests.harness import environment
from tests.integrations.lightning.fits import BATCHES, Recorded, loader, model_class, options
from tests.loggers.logged import Own

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def package(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def test_they_are_subclasses(package: str) -> None:
    """Of the base classes of either package, and so are their instances."""
    module = import_module(package)
    callback = TelemetryCallback(call_on_app_start=False)
    assert type(callback) is TelemetryCallback
    assert isinstance(callback, module.Callback)
    assert issubclass(TelemetryCallback, module.Callback)
    assert issubclass(ItwinaiLogger, StepwellLogger)
    for made in (StepwellLogger(Own()), ItwinaiLogger(itwinai_logger=Own())):
        assert isinstance(made, module.loggers.Logger)
        assert issubclass(type(made), module.loggers.Logger)


def test_methods_have_their_own_names_and_a_docstring(package: str) -> None:
    """``help`` and ``inspect`` show them."""
    methods = {
        name: each for name, each in vars(TelemetryCallback).items() if inspect.isfunction(each)
    }
    assert {"on_validation_batch_end", "on_test_end", "on_model_init_start"} <= set(methods)
    for name, method in methods.items():
        assert method.__name__ == name
        assert method.__qualname__ == f"TelemetryCallback.{name}"
        assert inspect.getdoc(getattr(TelemetryCallback, name)) or name.startswith("_")


class Counting(TelemetryCallback):
    """A user's own: with an argument more, and a hook that Lightning's class has too."""

    def __init__(self, label: str) -> None:
        super().__init__(call_on_app_start=False)
        self.label = label
        self.batches = 0

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        super().on_train_batch_end(*args, **kwargs)
        self.batches += 1


def test_a_subclass_of_the_users_own(package: str) -> None:
    """Its hooks are called, and may call those above; all is recorded as ever."""
    callback = Counting("mine")
    trainer = import_module(package).Trainer(**options(max_epochs=1, callbacks=callback))
    trainer.fit(model_class(package)(), loader())
    assert callback.batches == BATCHES
    Recorded().check_fit(BATCHES)


def test_hooks_of_every_batch_that_nobody_uses_are_not_called() -> None:
    """Lightning leaves out a hook that is None."""
    assert TelemetryCallback(call_on_app_start=False).on_train_batch_end is None
    assert Counting("mine").on_train_batch_end is not None
    assert Counting("mine").on_before_backward is None


def test_callbacks_go_through_pickle_and_copy(package: str) -> None:
    """With what a subclass keeps, and without what belongs to this process."""
    callback = Counting("mine")
    callback.saves._steps.append(3)
    for other in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert type(other) is Counting
        assert isinstance(other, import_module(package).Callback)
        assert (other.label, other.diagnostics) == ("mine", True)
        assert not other.saves.has_seen_any
        assert other.on_before_backward is None


def test_loggers_of_itwinai_go_through_pickle_and_copy() -> None:
    logger = ItwinaiLogger(Own(), "all", skip_finalize=True)
    for other in (pickle.loads(pickle.dumps(logger)), copy.deepcopy(logger)):
        assert type(other) is ItwinaiLogger
        assert (other.log_model, other.keep_open) == ("all", True)
        assert isinstance(other.itwinai_logger, Own)


def in_new_interpreter(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_importing_the_module_does_not_import_lightning() -> None:
    code = """
import sys
import stepwell.integrations.lightning
print({"torch", "lightning", "pytorch_lightning"} & set(sys.modules))
"""
    assert in_new_interpreter(code) == "set()"


LATE = """
import lightning.pytorch
from stepwell.integrations.lightning import StepwellLogger, TelemetryCallback
from stepwell.loggers import Logger
import pytorch_lightning as pl

# Asked before anything of ours could notice the second package.
before = issubclass(StepwellLogger, pl.loggers.Logger)
callback, logger = TelemetryCallback(call_on_app_start=False), StepwellLogger(Logger())
assert isinstance(callback, pl.Callback) and isinstance(callback, lightning.pytorch.Callback)
assert isinstance(logger, pl.loggers.Logger) and isinstance(logger, lightning.pytorch.loggers.Logger)
assert pl.Trainer(callbacks=callback, logger=logger, accelerator="cpu").callbacks[0] is callback
print("all is well")
"""

ONLY_THE_OTHER = """
import sys
import pytorch_lightning as pl
from stepwell.integrations.lightning import StepwellLogger, TelemetryCallback, TelemetryTrainer

assert TelemetryCallback.__bases__ == (pl.Callback,)
assert StepwellLogger.__bases__ == (pl.loggers.Logger,)
assert issubclass(TelemetryTrainer, pl.Trainer)
assert "lightning" not in sys.modules
print("all is well")
"""


@pytest.mark.full
@pytest.mark.parametrize("code", [LATE, ONLY_THE_OTHER])
def test_the_order_of_imports(code: str) -> None:
    """A package that is imported later counts too, and none is imported that the program does not use."""
    pytest.importorskip("pytorch_lightning")
    assert in_new_interpreter(code).endswith("all is well")
