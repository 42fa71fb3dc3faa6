"""Trainer classes that record: ``hook_trainer_cls``, and a Trainer that comes hooked."""

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
from stepwell.telemetry.place import STARTER
from stepwell.telemetry.run import active_run
from stepwell.training.provider import TrainingTelemetryProvider
from stepwell.vocabulary import StandardTrainingJobSpanName as Name


class Hooked:
    """What a hooked Trainer has beside what it had before."""

    _stepwell_base: type
    _stepwell_callback: TelemetryCallback | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        callbacks = self.callbacks  # type: ignore[has-type]
        if self.telemetry_callback not in callbacks:
            # First: what others do at the start and the end of a batch is outside of it.
            self.callbacks = [self.telemetry_callback, *callbacks]
        _tell_ranks(self)

    @property
    def telemetry_callback(self) -> TelemetryCallback:
        """The callback that records; all trainers of this class share it."""
        callback = type(self)._stepwell_callback
        assert callback is not None
        return callback

    @property
    def nv_one_logger_callback(self) -> TelemetryCallback:
        """The same, by the name that code for one-logger knows it by."""
        return self.telemetry_callback

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint, and record it."""
        original = super().save_checkpoint  # type: ignore[misc]
        return self.telemetry_callback.save(self, original, *args, **kwargs)

    @contextmanager
    def init_module(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Make a model inside of this; see Lightning. It is recorded as the model's initialisation."""
        told = self.telemetry_callback.told
        original = super().init_module  # type: ignore[misc]
        with told.seen(Name.MODEL_INIT), original(*args, **kwargs) as result:
            yield result
        told.note(Name.MODEL_INIT)

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


def _tell_ranks(trainer: Any) -> None:
    """Let the ranks that this process is going to start write into its run."""
    run = active_run()
    launcher = getattr(trainer.strategy, "launcher", None)
    if run is not None and type(launcher).__name__ == "_SubprocessScriptLauncher":
        os.environ[STARTER] = f"{run.id}:{run.attempt}"


_metaclasses: dict[type, type] = {}


def _metaclass(cls: type) -> type:
    """A metaclass for a hooked class: going through the class gives the class and its callback."""
    base = type(cls)
    if base not in _metaclasses:

        def __iter__(self: Any) -> Iterator[Any]:
            return iter((self, self._stepwell_callback))

        made = type("HookedType", (base,), {"__iter__": __iter__})
        # Processes that Lightning spawns hook the class again.
        copyreg.pickle(made, _reduce)
        _metaclasses[base] = made
    return _metaclasses[base]


def _reduce(cls: Any) -> Any:
    if "_stepwell_base" in vars(cls):
        return _hook, (cls._stepwell_base, cls._stepwell_callback)
    if "_stepwell_package" in vars(cls):
        return trainer_class, (cls._stepwell_package,)
    # A class of the user's own, derived from a hooked one.
    return cls.__qualname__


def _hook(cls: type, callback: TelemetryCallback) -> Any:
    @functools.wraps(cls.__init__)  # type: ignore[misc]
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        Hooked.__init__(self, *args, **kwargs)

    body = {
        "__init__": __init__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_stepwell_base": cls,
        "_stepwell_callback": callback,
    }
    return _metaclass(cls)(cls.__name__, (Hooked, cls), body)


def hook_trainer_cls(
    cls: type,
    provider: TrainingTelemetryProvider | None = None,
    telemetry_callback: TelemetryCallback | None = None,
) -> Any:
    """A subclass of this Trainer class whose trainers are recorded; the application starts now.

    The class can be taken as it is, or apart: ``HookedTrainer, callback = hook_trainer_cls(Trainer)``. The
    given class stays as it is. A class that is hooked already is returned.

    Args:
        cls: a Trainer class, of ``lightning`` or ``pytorch_lightning``, or derived from one.
        provider: says how it is recorded; that of this process by default.
        telemetry_callback: a callback to use instead of a new one.
    """
    if issubclass(cls, Hooked):
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
    """A Trainer class of this package that comes hooked; of the one that is imported by default."""
    package = package or loaded_packages()[0]
    if package not in _trainers:
        _trainers[package] = _make_trainer(package)
    return _trainers[package]


def _make_trainer(package: str) -> Any:
    base = module_of(package).Trainer

    class TelemetryTrainer(Hooked, base, metaclass=_metaclass(base)):  # type: ignore[misc, valid-type, metaclass]
        """Lightning's Trainer, recorded.

        Args:
            trainer_config: what the Trainer is made with, as a dict.
            provider: says how it is recorded; that of this process by default.
            **kwargs: what the Trainer is made with, as usual.
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
