"""Trainer classes that record: ``hook_trainer_cls`` and ``TelemetryTrainer``."""

from __future__ import annotations

import copyreg
import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stepwell.integrations.lightning.callback import TelemetryCallback
from stepwell.integrations.lightning.packages import (
    check_trainer_class,
    loaded_packages,
    module_of,
)
from stepwell.telemetry.rank_info import STARTER
from stepwell.telemetry.run import active_run
from stepwell.training.provider import TrainingTelemetryProvider
from stepwell.vocabulary import StandardTrainingJobSpanName as Name


class HookedTrainer:
    """Mixin of hooked Trainer classes."""

    _stepwell_base: type
    _stepwell_callback: TelemetryCallback | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        callbacks = self.callbacks  # type: ignore[has-type]
        if self.telemetry_callback not in callbacks:
            # First in the list, so that the work of other callbacks is outside the iteration.
            self.callbacks = [self.telemetry_callback, *callbacks]
        _share_run_with_ranks(self)

    @property
    def telemetry_callback(self) -> TelemetryCallback:
        """The callback that records. All trainers of this class share it."""
        callback = type(self)._stepwell_callback
        assert callback is not None
        return callback

    @property
    def nv_one_logger_callback(self) -> TelemetryCallback:
        """Alias of ``telemetry_callback``, the name in nv-one-logger."""
        return self.telemetry_callback

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint, and record it."""
        original = super().save_checkpoint  # type: ignore[misc]
        return self.telemetry_callback.save(self, original, *args, **kwargs)

    @contextmanager
    def init_module(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Create the model inside this context; see Lightning. Recorded as model initialization."""
        declared = self.telemetry_callback.declared
        original = super().init_module  # type: ignore[misc]
        with declared.record(Name.MODEL_INIT), original(*args, **kwargs) as result:
            yield result
        declared.note(Name.MODEL_INIT)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        callback = self.telemetry_callback
        recording = callback.begin(self)
        if recording is None:
            return super()._run(*args, **kwargs)  # type: ignore[misc]
        recording.is_hooked = True
        try:
            result = super()._run(*args, **kwargs)  # type: ignore[misc]
        except BaseException as error:
            callback.end(self, error)
            raise
        callback.end(self)
        return result


def _share_run_with_ranks(trainer: Any) -> None:
    """Make the ranks that this process starts write to its run."""
    run = active_run()
    launcher = getattr(trainer.strategy, "launcher", None)
    if run is not None and type(launcher).__name__ == "_SubprocessScriptLauncher":
        os.environ[STARTER] = f"{run.id}:{run.attempt}"


_metaclasses: dict[type, type] = {}


def _metaclass(cls: type) -> type:
    """Return a metaclass for a hooked class: iterating over the class yields the class and its callback."""
    base = type(cls)
    if base not in _metaclasses:

        def __iter__(self: Any) -> Iterator[Any]:
            return iter((self, self._stepwell_callback))

        metaclass = type("HookedType", (base,), {"__iter__": __iter__})
        # Pickled by a function that hooks the class again, for processes that Lightning spawns.
        copyreg.pickle(metaclass, _reduce)
        _metaclasses[base] = metaclass
    return _metaclasses[base]


def _reduce(cls: Any) -> Any:
    if "_stepwell_base" in vars(cls):
        return _hook, (cls._stepwell_base, cls._stepwell_callback)
    if "_stepwell_package" in vars(cls):
        return trainer_class, (cls._stepwell_package,)
    # A class of the user, derived from a hooked one.
    return cls.__qualname__


def _hook(cls: type, callback: TelemetryCallback) -> Any:
    @functools.wraps(cls.__init__)  # type: ignore[misc]
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        HookedTrainer.__init__(self, *args, **kwargs)

    body = {
        "__init__": __init__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_stepwell_base": cls,
        "_stepwell_callback": callback,
    }
    return _metaclass(cls)(cls.__name__, (HookedTrainer, cls), body)


def hook_trainer_cls(
    cls: type,
    provider: TrainingTelemetryProvider | None = None,
    telemetry_callback: TelemetryCallback | None = None,
) -> Any:
    """Return a subclass of a Trainer class whose trainers are recorded, and start the application.

    The result can be used as a class or unpacked: ``HookedTrainer, callback = hook_trainer_cls(Trainer)``.
    The given class is not changed. A class that is hooked already is returned as it is.

    Args:
        cls: the Trainer class of ``lightning`` or ``pytorch_lightning``, or a subclass.
        provider: the provider to use. Default: that of this process.
        telemetry_callback: a callback to use instead of a new one.
    """
    if issubclass(cls, HookedTrainer):
        if cls._stepwell_callback is not None:
            cls._stepwell_callback.on_app_start()
        return cls
    check_trainer_class(cls)
    if telemetry_callback is None:
        telemetry_callback = TelemetryCallback(provider)
    else:
        telemetry_callback.on_app_start()
    return _hook(cls, telemetry_callback)


_trainers: dict[str, Any] = {}


def trainer_class(package: str | None = None) -> Any:
    """Return the hooked Trainer class of a package. Default: the package that the program has imported."""
    package = package or loaded_packages()[0]
    if package not in _trainers:
        _trainers[package] = _make_trainer(package)
    return _trainers[package]


def _make_trainer(package: str) -> Any:
    base = module_of(package).Trainer
    kind = _metaclass(base)

    class TelemetryTrainer(HookedTrainer, base, metaclass=kind):  # type: ignore[misc,valid-type,metaclass]
        """Lightning's Trainer, recorded.

        Args:
            trainer_config: arguments of the Trainer as a dict.
            provider: the provider to use. Default: that of this process.
            **kwargs: arguments of the Trainer; they override ``trainer_config``.
        """

        _stepwell_package = package

        def __init__(
            self,
            trainer_config: Mapping[str, Any] | None = None,
            provider: TrainingTelemetryProvider | None = None,
            **kwargs: Any,
        ) -> None:
            self._stepwell_own = TelemetryCallback(provider)
            kwargs = {**(trainer_config or {}), **kwargs}
            super().__init__(**kwargs)

        @property
        def telemetry_callback(self) -> TelemetryCallback:
            """The callback that records this trainer."""
            return self._stepwell_own

    return TelemetryTrainer
