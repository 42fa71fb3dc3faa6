"""Hugging Face Accelerate: a tracker for ``log_with=`` that also records the loop, like ``stepwell.watch``.

accelerator = Accelerator(log_with=StepwellTracker("my training"))
accelerator.init_trackers("my project", config={"lr": 0.1})
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

Imports telemetry, loggers and the PyTorch integration.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.tracking import GeneralTracker, on_main_process

from stepwell._core.errors import StepwellError, report
from stepwell.integrations.configuration import record_config
from stepwell.integrations.torch.patches import Patch, Patches
from stepwell.integrations.torch.watcher.watch import Watch, is_watched, watch
from stepwell.integrations.wrappers import Wrappings, record_save, standard_span
from stepwell.journal import metrics
from stepwell.loggers import Logger
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.start import borrow_run
from stepwell.training.config import script_name
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

WHERE = "accelerate"

__all__ = ["StepwellTracker", "prepare"]


class StepwellTracker(GeneralTracker):  # type: ignore[misc]
    """Records the values of ``accelerator.log()``, and the training of the prepared objects.

    Pass it in ``log_with=``. ``accelerator.init_trackers()`` or ``accelerator.prepare()`` starts a run if
    none is active, and ``accelerator.end_training()`` finishes it. A run that was active before is not
    finished.

    Args:
        run_name: name of the run, if one is started here. Default: the name of the script.
        dir: folder of the runs. Default: ``STEPWELL_DIR``, else ``./runs``.
        main_process_only: False records the training on all processes, each as a rank of the same run.
            Values of ``accelerator.log()`` are always those of the main process.
    """

    name = "stepwell"
    requires_logging_directory = False

    def __init__(
        self,
        run_name: str | None = None,
        *,
        dir: str | os.PathLike[str] | None = None,
        main_process_only: bool = True,
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self.dir = dir
        self.main_process_only = main_process_only
        self._run: Run | None = None
        self._is_own = False
        self._off: Run | None = None
        self._logger: Logger | None = None
        self._watch: Watch | None = None
        self._saves: Wrappings | None = None
        # References to the prepared objects, and the arguments of ``watch``.
        self._prepared: list[Callable[[], Any]] = []
        self._options: dict[str, Any] = {}
        self._remove: Callable[[], None] | None = None
        self._listen()

    def _listen(self) -> None:
        """Patch ``Accelerator.prepare`` until ``finish()``."""
        if self._remove is None:
            self._remove = PREPARES.install()

    @property
    def tracker(self) -> Run | None:
        """The run, None if this process does not record."""
        return self._run

    @on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def start(self) -> None:
        """Start recording, unless it has started. ``init_trackers()`` and ``prepare()`` call it."""
        self._listen()
        run = active_run()
        if self._run is not None and self._run in (run, self._off):
            return
        run, self._is_own = borrow_run(self.run_name or script_name(), dir=self.dir)
        if self._is_own:
            self._off = run if run.disabled else None
        self._run = run
        _record_settings()

    @on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Add these to the configuration of the run. Secrets are masked."""
        if self._run is not None:
            self._run.add_config(dict(values))

    @on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record numbers at this step (default: the current step). A text is recorded as an event."""
        if self._run is not None:
            metrics.log(values, step)

    @on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record one or several images per name: arrays, tensors or PIL images.

        Pass ``dataformats="CHW"`` if the order of the axes is ambiguous.
        """
        try:
            logger = self._images()
            for name, given in values.items() if logger is not None else ():
                pictures = given if isinstance(given, (list, tuple)) else [given]
                for number, picture in enumerate(pictures):
                    full_name = name if len(pictures) == 1 else f"{name}/{number}"
                    logger.log(picture, full_name, kind="image", step=step, **kwargs)
        except Exception as error:
            report(WHERE, error)

    def _images(self) -> Any:
        if self._run is None or self._run.disabled:
            return None
        if self._logger is None:
            logger: Logger = Logger(log_freq="batch", log_on_workers=-1)
            self._logger = logger.create_logger_context(self._run.rank)
        return self._logger

    @on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def finish(self) -> None:
        """Stop recording, and finish the run if the tracker started it. ``end_training()`` calls it."""
        run, self._run = self._run, None
        watched, self._watch = self._watch, None
        saves, self._saves = self._saves, None
        logger, self._logger = self._logger, None
        remove, self._remove = self._remove, None
        self._prepared, self._options = [], {}
        if remove is not None:
            remove()
        if saves is not None:
            saves.remove()
        if watched is not None:
            watched.close()
        try:
            if logger is not None:
                logger.destroy_logger_context()
        except Exception as error:
            report(WHERE, error)
        if run is not None and self._is_own:
            run.finish()

    def _watch_prepared(self, accelerator: Any, prepared: Any) -> None:
        """Record the training of all objects prepared so far, unless that has started."""
        # Accelerate may not have called it yet, and calls it on the main process only.
        self.start()
        watched = self._watch if self._watch is not None and self._watch.is_on else None
        is_theirs = watched is None and is_watched() and not self._options
        if self._run is None or is_theirs:
            return
        if watched is not None and watched.steps:
            models, optimizers, _ = _trained(prepared)
            if not (models and optimizers):
                return
            # Another training begins.
            self._prepared = []
        objects = [each for ref in self._prepared if (each := ref()) is not None]
        before = _trained(objects)
        # Preparing an object again returns the same object.
        objects += [each for each in prepared if not any(each is other for other in objects)]
        models, optimizers, loader = now = _trained(objects)
        kept = [*models, *optimizers] if loader is None else [*models, *optimizers, loader]
        self._prepared = [weakref.ref(each) for each in kept]
        if now == before or not (models and optimizers):
            return
        options = {"replicas": accelerator.num_processes, **self._options}
        watched = self._watch = watch(models, optimizers, loader, **options)
        _record_settings()
        if self._saves is not None:
            self._saves.remove()
        self._saves = _record_saves(accelerator, watched)


def prepare(accelerator: Any, *objects: Any, **options: Any) -> Any:
    """Call ``accelerator.prepare()``, and record the training of its result like ``stepwell.watch``.

    Use it for accelerators without a ``StepwellTracker``, or to pass ``options``. With a tracker, plain
    ``accelerator.prepare()`` is recorded too.

    Args:
        accelerator: the accelerator. If it has a ``StepwellTracker``, that decides which processes record.
        objects: arguments of ``accelerator.prepare()``. Training uses the first model, optimizer and loader.
        options: arguments of ``stepwell.watch``, such as ``diagnostics=False`` or ``step=1000``.
    """
    tracker = _tracker_of(accelerator)
    if tracker is not None:
        tracker._listen()
        tracker._options = options
        return accelerator.prepare(*objects)
    prepared = accelerator.prepare(*objects)
    models, optimizers, loader = _trained(_several(prepared))
    options = {"replicas": accelerator.num_processes, **options}
    watched = watch(models or None, optimizers or None, loader, **options)
    _record_settings()
    _record_saves(accelerator, watched)
    return prepared


def _prepare(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace ``Accelerator.prepare``: if the accelerator has a tracker, its training is recorded."""

    @wraps(original)
    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = original(self, *args, **kwargs)
        tracker = _tracker_of(self)
        try:
            if tracker is not None:
                tracker._watch_prepared(self, _several(prepared))
        except Exception as error:
            if isinstance(error, StepwellError) and tracker is not None and tracker._options:
                # A wrong option of the user.
                raise
            report(WHERE, error)
        return prepared

    return prepare


PREPARES = Patches(lambda: [Patch(Accelerator, "prepare", _prepare)])


def _several(prepared: Any) -> Any:
    return prepared if isinstance(prepared, (list, tuple)) else (prepared,)


def _record_saves(accelerator: Any, watched: Watch) -> Wrappings:
    """Record the saves and loads of this accelerator from now on."""

    def save_state(original: Any, *args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else kwargs.get("output_dir")
        if path is None and accelerator.project_dir is not None:
            # The accelerator numbers its checkpoints itself.
            name = f"checkpoint_{accelerator.save_iteration}"
            path = os.path.join(accelerator.project_dir, "checkpoints", name)
        return save(original, args, kwargs, path)

    def save_to(argument: str) -> Callable[..., Any]:
        def save_there(original: Any, *args: Any, **kwargs: Any) -> Any:
            path = args[1] if len(args) > 1 else kwargs.get(argument)
            return save(original, args, kwargs, path)

        return save_there

    def save(original: Any, args: Any, kwargs: Any, path: Any) -> Any:
        is_whole = isinstance(path, (str, os.PathLike)) and accelerator.is_main_process
        return record_save(original, args, kwargs, step=watched.steps, path=path, is_whole=is_whole)

    def load_state(original: Any, *args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else kwargs.get("input_dir")
        with standard_span(Name.CHECKPOINT_LOAD, checkpoint_path=str(path)):
            return original(*args, **kwargs)

    saves = Wrappings()
    saves.wrap(accelerator, "save_state", save_state)
    saves.wrap(accelerator, "save_model", save_to("save_directory"))
    saves.wrap(accelerator, "save", save_to("f"))
    saves.wrap(accelerator, "load_state", load_state)
    return saves


def _record_settings() -> None:
    """Record the settings of Accelerate, if there is an Accelerator."""
    try:
        if not AcceleratorState._shared_state:
            return
        state, gradients = AcceleratorState(), GradientState()
        settings = {
            "mixed_precision": state.mixed_precision,
            "num_processes": state.num_processes,
            "distributed_type": state.distributed_type.value,
            "gradient_accumulation_steps": gradients.num_steps,
            "device": state.device.type,
        }
        record_config({"accelerate": settings})
    except Exception as error:
        report(WHERE, error)


def _tracker_of(accelerator: Any) -> StepwellTracker | None:
    for tracker in [*accelerator.trackers, *(accelerator.log_with or ())]:
        if isinstance(tracker, StepwellTracker):
            return tracker
    return None


def _trained(prepared: Any) -> tuple[list[Any], list[Any], Any]:
    """Return the models, the optimizers and the first loader (None without any)."""
    models = [each for each in prepared if isinstance(each, torch.nn.Module)]
    loaders = [each for each in prepared if isinstance(each, torch.utils.data.DataLoader)]
    optimizers = [each for each in prepared if isinstance(each, torch.optim.Optimizer)]
    return models, optimizers, loaders[0] if loaders else None
