"""Hugging Face's Accelerate: a tracker for ``log_with=``, and the spans of a loop by one more line.

accelerator = Accelerator(log_with=StepwellTracker("my training"))
accelerator.init_trackers("my project", config={"lr": 0.1})
model, optimizer, loader = prepare(accelerator, model, optimizer, loader)

Imports telemetry, loggers and the integration of PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from accelerate.tracking import GeneralTracker, on_main_process

from stepwell.integrations.checkpoints import record_save
from stepwell.integrations.configuration import record_config
from stepwell.integrations.torch.watching import Watch, watch
from stepwell.integrations.wrapping import Wrappings, standard_span
from stepwell.journal import metrics
from stepwell.journal.errors import report
from stepwell.loggers import Logger
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.start import init
from stepwell.training.config import script_name
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

WHERE = "accelerate"

__all__ = ["StepwellTracker", "prepare"]


class StepwellTracker(GeneralTracker):  # type: ignore[misc]
    """Records what ``accelerator.log()`` is given; pass it in ``log_with=``.

    ``accelerator.init_trackers()``, or ``prepare()``, starts a run when none is active, and
    ``accelerator.end_training()`` finishes it. A run that was active before is left as it is.

    Args:
        run_name: what a run is called that is started here; else as the script.
        dir: where run folders are; else ``STEPWELL_DIR``, else ``./runs``.
        main_process_only: False records what ``prepare()`` is given on all processes, each as a rank
            of the one run. What ``accelerator.log()`` is given is always that of the main process.
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

    @property
    def tracker(self) -> Run | None:
        """The run, None where this process records none."""
        return self._run

    @on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def start(self) -> None:
        """Begin to record, unless it has begun; ``init_trackers()`` and ``prepare()`` call it."""
        run = active_run()
        if self._run is not None and self._run in (run, self._off):
            return
        self._is_own = run is None
        if run is None:
            run = init(self.run_name or script_name(), dir=self.dir)
            self._off = run if run.disabled else None
        self._run = run
        _record_settings()

    @on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Keep these as the configuration of the run; secrets are masked."""
        if self._run is not None:
            self._run.add_config(dict(values))

    @on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record numbers at this step, else at the current one; a text is kept as an event."""
        if self._run is not None:
            metrics.log(values, step)

    @on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Keep pictures with the run: of each name one, or several, as arrays, tensors or of PIL.

        ``dataformats="CHW"`` says what the axes are where that cannot be told.
        """
        try:
            logger = self._images()
            for name, given in values.items() if logger is not None else ():
                pictures = given if isinstance(given, (list, tuple)) else [given]
                for number, picture in enumerate(pictures):
                    called = name if len(pictures) == 1 else f"{name}/{number}"
                    logger.log(picture, called, kind="image", step=step, **kwargs)
        except Exception as error:
            report(WHERE, error)

    def _images(self) -> Any:
        if self._run is None or self._run.disabled:
            return None
        if self._logger is None:
            made: Logger = Logger(log_freq="batch", log_on_workers=-1)
            self._logger = made.create_logger_context(self._run.rank)
        return self._logger

    @on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def finish(self) -> None:
        """End what this has begun; ``accelerator.end_training()`` calls it."""
        run, self._run = self._run, None
        watched, self._watch = self._watch, None
        saves, self._saves = self._saves, None
        logger, self._logger = self._logger, None
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


def prepare(accelerator: Any, *objects: Any, **options: Any) -> Any:
    """What ``accelerator.prepare()`` gives, with the training of it recorded, as by ``stepwell.watch``.

    Args:
        accelerator: the accelerator; the process records where its ``StepwellTracker`` does.
        objects: as for ``accelerator.prepare()``. The first model, the first optimizer and the first loader
            are those that train.
        options: as for ``stepwell.watch``, such as ``diagnostics=False`` or ``step=1000``.
    """
    prepared = accelerator.prepare(*objects)
    several = prepared if isinstance(prepared, (list, tuple)) else (prepared,)
    tracker = _tracker_of(accelerator)
    if tracker is not None:
        # Accelerate may not have done so yet, and does so on the main process only.
        tracker.start()
        if tracker.tracker is None:
            return prepared
    made = _watch(several, {"replicas": accelerator.num_processes, **options})
    _record_settings()
    saves = _record_saves(accelerator, made)
    if tracker is not None:
        tracker._watch, tracker._saves = made, saves
    return prepared


def _record_saves(accelerator: Any, watched: Watch) -> Wrappings:
    """Record what this accelerator saves and loads from now on."""

    def save_state(original: Any, *args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else kwargs.get("output_dir")
        if path is None and accelerator.project_dir is not None:
            # The accelerator counts its checkpoints itself.
            name = f"checkpoint_{accelerator.save_iteration}"
            path = os.path.join(accelerator.project_dir, "checkpoints", name)
        return save(original, args, kwargs, path)

    def save_model(original: Any, *args: Any, **kwargs: Any) -> Any:
        path = args[1] if len(args) > 1 else kwargs.get("save_directory")
        return save(original, args, kwargs, path)

    def save_object(original: Any, *args: Any, **kwargs: Any) -> Any:
        path = args[1] if len(args) > 1 else kwargs.get("f")
        return save(original, args, kwargs, path)

    def save(original: Any, args: Any, kwargs: Any, path: Any) -> Any:
        is_whole = isinstance(path, (str, os.PathLike)) and accelerator.is_main_process
        return record_save(original, args, kwargs, step=watched.steps, path=path, is_whole=is_whole)

    def load_state(original: Any, *args: Any, **kwargs: Any) -> Any:
        path = args[0] if args else kwargs.get("input_dir")
        with standard_span(Name.CHECKPOINT_LOAD, checkpoint_path=str(path)):
            return original(*args, **kwargs)

    saves = Wrappings()
    saves.wrap(accelerator, "save_state", save_state)
    saves.wrap(accelerator, "save_model", save_model)
    saves.wrap(accelerator, "save", save_object)
    saves.wrap(accelerator, "load_state", load_state)
    return saves


def _record_settings() -> None:
    """Record how Accelerate was set up, unless there is no Accelerator yet."""
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
    for one in [*accelerator.trackers, *(accelerator.log_with or ())]:
        if isinstance(one, StepwellTracker):
            return one
    return None


def _watch(prepared: Any, options: dict[str, Any]) -> Watch:
    models = [one for one in prepared if isinstance(one, torch.nn.Module)]
    loaders = [one for one in prepared if isinstance(one, torch.utils.data.DataLoader)]
    # Accelerate's own is called for every batch; the one inside only when there is a step to make.
    optimizers = [
        getattr(one, "optimizer", one) for one in prepared if isinstance(one, torch.optim.Optimizer)
    ]
    return watch(models or None, optimizers or None, loaders[0] if loaders else None, **options)
