"""``StepwellLogger``: use any logger of stepwell as a logger of Lightning."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from stepwell._core.errors import StepwellError, report, report_misuse
from stepwell._core.values import shown
from stepwell.integrations.configuration import record_config
from stepwell.integrations.lightning.packages import LOGGER, base_classes, join_packages
from stepwell.journal.metrics import context, set_context
from stepwell.journal.state import state
from stepwell.loggers import Logger, LoggersCollection
from stepwell.loggers.base import begin_logging, end_logging
from stepwell.telemetry.identity import config_to_dict
from stepwell.telemetry.outcome import outcome_of
from stepwell.telemetry.rank_info import find_rank_info
from stepwell.telemetry.run import active_run

F = TypeVar("F", bound=Callable[..., Any])

UNNAMED = "lightning_logs"
"""Lightning's own default name."""
LogModel = bool | Literal["all"]


def _guarded(method: F) -> F:
    """Decorate a method so that it never raises: problems are logged, and training continues."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except StepwellError as error:
            report_misuse(f"lightning logger {method.__name__}", str(error))
        except Exception as error:
            report(f"StepwellLogger.{method.__name__}", error)
        return None

    return call  # type: ignore[return-value]


class BatchRange(int):
    """The batches since a metric was last logged, as the number of the last one.

    Lightning logs only every ``log_every_n_steps`` steps, which may never be a batch that ``log_freq``
    selects: with 50 and 100, Lightning logs batches 49, 99, 149, … . So ``batch % log_freq`` is 0 if any
    batch of the range is a multiple.
    """

    first: int

    def __new__(cls, last: int, first: int) -> BatchRange:
        """Create the range from the first to the last batch."""
        batches = super().__new__(cls, last)
        batches.first = min(first, last)
        return batches

    def __mod__(self, number: int) -> int:
        """Return 0 if a batch of the range is a multiple of ``number``."""
        rest = int(self) % number
        return 0 if int(self) - rest >= self.first else rest


class StepwellLogger(*base_classes(LOGGER)):  # type: ignore[misc]
    """A logger for a Trainer of ``lightning`` or ``pytorch_lightning`` that wraps a logger of stepwell.

    Its context is created with the first fit, test or validation, and stays open afterwards, so that a fit
    and a test are one run. It ends with the process, with ``finish()``, or when training fails. A context
    that existed before is not ended.

    Args:
        logger: the logger, with its own ``log_freq`` and ``log_on_workers``. Without a ``log_freq`` it logs
            every value that Lightning logs, which is every ``log_every_n_steps`` steps.
        log_model: True logs the checkpoints that ``ModelCheckpoint`` callbacks have kept, when a fit ends;
            ``"all"`` logs each one as soon as it is saved.
        prefix: prefix of all metric names, followed by a slash.
        name: name of Lightning's folder for checkpoints. Default: the experiment or project.
        keep_open: do not end the run, even if training fails.
    """

    def __init__(
        self,
        logger: Logger,
        log_model: LogModel = False,
        *,
        prefix: str = "",
        name: str | None = None,
        keep_open: bool = False,
    ) -> None:
        if not isinstance(logger, Logger):
            raise StepwellError(
                "logger must be a logger of stepwell.loggers, as in StepwellLogger(MLFlowLogger(…)), "
                f"got {shown(logger)}"
            )
        if log_model not in (True, False, "all"):
            raise StepwellError(f'log_model must be True, False or "all", got {shown(log_model)}')
        super().__init__()
        # Lightning decides how often to log, by log_every_n_steps.
        logger.set_default_log_freq("batch")
        self.logger = logger
        self.log_model = log_model
        self.prefix = prefix
        self.keep_open = keep_open
        self._name = name
        self._forget()

    def _forget(self) -> None:
        """Reset the state that belongs to this process and its trainers."""
        join_packages(StepwellLogger, LOGGER)
        self._owns_context = False
        self._checkpoints = LoggedCheckpoints()
        self._trainer: Callable[[], Any] = _no_trainer
        self._drawn: weakref.WeakSet[Any] = weakref.WeakSet()
        self._batches: dict[str, BatchRange] = {}
        self._hyperparameters: dict[str, Any] = {}

    # Names and folders

    @property
    def name(self) -> str:
        """The name of the experiment or project."""
        return self._name or self.logger._application({}) or UNNAMED

    @property
    def version(self) -> str:
        """The run id. Reading it starts the run if there is none."""
        run = active_run()
        if run is None or not self.logger.is_initialized:
            self._begin()
            run = active_run()
        return "off" if run is None else run.id

    @property
    def save_dir(self) -> str:
        """The folder of the logger; for a collection, the common folder of its members."""
        if isinstance(self.logger, LoggersCollection) and len(self.logger):
            folders = [os.path.abspath(member.savedir) for member in self.logger]
            shared = os.path.commonpath(folders)
            here = os.path.relpath(shared)
            return shared if here.startswith("..") else here
        return str(self.logger.savedir)

    @property
    def root_dir(self) -> str:
        """The folder of all versions."""
        return os.path.join(self.save_dir, self.name)

    @property
    def log_dir(self) -> str:
        """The folder of this version, which is the default folder for checkpoints."""
        return os.path.join(self.root_dir, self.version)

    @property
    def group_separator(self) -> str:
        """The separator between a group and the name of a metric."""
        return "/"

    @property
    def experiment(self) -> Logger:
        """The wrapped logger, to log other kinds of items: ``experiment.log(image, …)``."""
        self._begin()
        return self.logger

    # Methods that Lightning calls

    @_guarded
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log metrics. Inside a batch, ``log_freq`` decides which ones."""
        self._begin()
        batch = self._current_batch()
        for name, value in metrics.items():
            name = f"{self.prefix}/{name}" if self.prefix else name
            counted = None if batch is None else self._since(name, batch)
            self.logger.log(value, name, step=step, batch_idx=counted)

    @_guarded
    def log_hyperparams(self, params: Any = None, *args: Any, **kwargs: Any) -> None:
        """Log hyperparameters: a dict or a Namespace, and keyword arguments."""
        self._begin()
        metrics = kwargs.pop("metrics", args[0] if args else None)
        for given in (params, kwargs):
            if given:
                plain = config_to_dict(given)
                self.logger.save_hyperparameters(plain)
                self._hyperparameters.update(plain)
        record_config({"hyperparameters": self._hyperparameters})
        if metrics is not None:
            named = metrics if isinstance(metrics, Mapping) else {"hp_metric": metrics}
            self.log_metrics(named, step=0)

    @_guarded
    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Log the structure of a model as text, once. Lightning calls it when a run of a trainer begins."""
        trainer = getattr(model, "_trainer", None)
        if trainer is not None:
            self._trainer = weakref.ref(trainer)
        self._begin()
        if model not in self._drawn:
            self._drawn.add(model)
            self.logger.log(str(model), "model_graph", kind="text")

    @_guarded
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Log checkpoints after a callback has saved one, depending on ``log_model``."""
        if self.log_model is False:
            return
        self._checkpoints.note(checkpoint_callback)
        keeps_all = getattr(checkpoint_callback, "save_top_k", None) == -1
        if self.log_model == "all" or keeps_all:
            self._begin()
            self._checkpoints.log(self.logger)

    def save(self) -> None:
        """Do nothing: logged values are in the run already."""

    @_guarded
    def finalize(self, status: str) -> None:
        """End a fit, test, validation or prediction. Only a failure ends the run too."""
        if not self.logger.is_initialized:
            return
        self._checkpoints.log(self.logger)
        self._batches.clear()
        if status == "failed" and not self.keep_open and self._owns_context:
            error = sys.exc_info()[1]
            self.finish("failed" if error is None else outcome_of(error).status)

    # Methods that users call

    def finish(self, status: str = "finished", timeout: float | None = None) -> None:
        """End the run now. Without this call it ends with the process. ``timeout`` as for our loggers."""
        if self.logger.is_initialized:
            end_logging(self.logger, status, timeout)
        self._forget()

    # Internals

    @_guarded
    def _begin(self) -> None:
        if not self.logger.is_initialized:
            begin_logging(self.logger, _rank())
            self._owns_context = True

    def _current_batch(self) -> int | None:
        """Return the current batch of the trainer, None between epochs or without a trainer."""
        trainer = self._trainer()
        if trainer is None:
            return None
        _set_epoch(trainer.current_epoch)
        # Lightning uses the same attribute to distinguish values of a step from those of an epoch.
        if getattr(trainer._logger_connector, "_first_loop_iter", None) is None:
            return None
        if trainer.training:
            return int(trainer.fit_loop.batch_idx)
        return int(trainer._active_loop.batch_progress.current.ready) - 1

    def _since(self, name: str, batch: int) -> BatchRange:
        """Return the batches since this metric was last logged, in this epoch."""
        last = self._batches.get(name)
        if last is None or batch < last:
            first = 0
        else:
            first = last.first if batch == last else int(last) + 1
        batches = self._batches[name] = BatchRange(batch, first)
        return batches

    def __getstate__(self) -> dict[str, Any]:
        mine = ("_owns_context", "_checkpoints", "_trainer", "_drawn", "_batches")
        return {name: value for name, value in self.__dict__.items() if name not in mine}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self._forget()


def _no_trainer() -> None:
    """Return None, like a weak reference to a trainer that no longer exists."""


def _set_epoch(epoch: int) -> None:
    """Set the epoch of the run."""
    if state.enabled and context.epoch != epoch:
        set_context(context.step, epoch)


def _rank() -> int:
    """Return the rank from the launcher or torch.distributed, else from Lightning."""
    place = find_rank_info(os.environ)
    if place.launcher != "single":
        return place.rank
    module = sys.modules.get("lightning_utilities.core.rank_zero")
    rank = getattr(getattr(module, "rank_zero_only", None), "rank", None)
    return place.rank if rank is None else int(rank)


FOLDER = "checkpoints"
SETTINGS = ("monitor", "mode", "save_last", "save_top_k", "save_weights_only")
"""Settings of the callback that are logged with each of its checkpoints."""


@dataclass(frozen=True)
class LightningCheckpoint:
    """A checkpoint on disk, with the information of its callback."""

    path: Path
    score: float | None
    is_best: bool
    settings: dict[str, Any]

    @property
    def changed_ns(self) -> int:
        """Time of the last change. A later file with the same name is another checkpoint."""
        return self.path.stat().st_mtime_ns


class LoggedCheckpoints:
    """The checkpoints of ``ModelCheckpoint`` callbacks, logged as models."""

    def __init__(self) -> None:
        self._callbacks: dict[str, Any] = {}
        self._logged: dict[Path, int] = {}
        self._names: dict[str, Path] = {}

    def note(self, callback: Any) -> None:
        """Remember a callback that has saved a checkpoint."""
        self._callbacks[f"{callback.state_key} {callback.dirpath}"] = callback

    def log(self, logger: Logger) -> None:
        """Log all checkpoints on disk that have not been logged yet."""
        for callback in self._callbacks.values():
            try:
                checkpoints = _saved_checkpoints(callback)
            except ReferenceError:
                # Its trainer no longer exists; the checkpoints were logged at the end of that.
                continue
            for checkpoint in sorted(checkpoints, key=lambda each: each.changed_ns):
                if self._logged.get(checkpoint.path) != checkpoint.changed_ns:
                    self._logged[checkpoint.path] = checkpoint.changed_ns
                    self._log(logger, checkpoint)

    def _log(self, logger: Logger, checkpoint: LightningCheckpoint) -> None:
        details = {"score": checkpoint.score, "checkpoint": checkpoint.path.name}
        kind = "best_model" if checkpoint.is_best else "model"
        if checkpoint.path.is_dir():
            # A sharded model.
            kind = "artifact"
        logger.log(
            str(checkpoint.path),
            self._name(checkpoint.path),
            kind=kind,
            **{**checkpoint.settings, **details},
        )

    def _name(self, path: Path) -> str:
        """Return the name to log under. The second of two equal names gets its folder as prefix."""
        name = f"{FOLDER}/{path.stem}"
        number = 1
        while self._names.setdefault(name, path) != path:
            folder = path.parent.name if number == 1 else f"{path.parent.name}-{number}"
            name, number = f"{FOLDER}/{folder}/{path.stem}", number + 1
        return name


def _saved_checkpoints(callback: Any) -> list[LightningCheckpoint]:
    settings = {name: getattr(callback, name, None) for name in SETTINGS}
    best = getattr(callback, "best_model_path", "")
    scores: dict[str, Any] = {getattr(callback, "last_model_path", ""): None}
    scores[best] = getattr(callback, "best_model_score", None)
    scores |= getattr(callback, "best_k_models", {})
    return [
        LightningCheckpoint(Path(path), _number(score), path == best, settings)
        for path, score in scores.items()
        if path and os.path.exists(path)
    ]


def _number(score: Any) -> float | None:
    try:
        return None if score is None else float(score)
    except (TypeError, ValueError):
        return None
