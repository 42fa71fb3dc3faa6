"""``StepwellLogger``: any of our loggers in the place of one of Lightning's own."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from stepwell.integrations.configuration import record_config
from stepwell.integrations.lightning.logged_checkpoints import LoggedCheckpoints
from stepwell.integrations.lightning.packages import LOGGER, base_classes, join_packages
from stepwell.journal.errors import StepwellError, misuse, report
from stepwell.journal.metrics import context, set_context
from stepwell.journal.state import state
from stepwell.journal.values import shown
from stepwell.loggers import Logger, LoggersCollection
from stepwell.loggers.base import begin_logging, end_logging
from stepwell.telemetry.ending import ending_of
from stepwell.telemetry.identity import config_to_dict
from stepwell.telemetry.place import find_place
from stepwell.telemetry.run import active_run

F = TypeVar("F", bound=Callable[..., Any])

UNNAMED = "lightning_logs"
"""What Lightning itself calls it where nobody gave a name."""
LogModel = bool | Literal["all"]


def _guarded(method: F) -> F:
    """Whatever goes wrong in here is said, and training goes on."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except StepwellError as error:
            misuse(f"lightning logger {method.__name__}", str(error))
        except Exception as error:
            report(f"StepwellLogger.{method.__name__}", error)
        return None

    return call  # type: ignore[return-value]


class Batches(int):
    """The batches since a metric was logged last: a number, the last one of them.

    Lightning logs every ``log_every_n_steps`` steps only, which may never be a batch that ``log_freq``
    asks for: with 50 and 100 it would be batches 49, 99, 149, … . So a multiple among them counts.
    """

    first: int

    def __new__(cls, last: int, first: int) -> Batches:
        """From the first to the last."""
        made = super().__new__(cls, last)
        made.first = min(first, last)
        return made

    def __mod__(self, number: int) -> int:
        """0 if one of them is a multiple."""
        rest = int(self) % number
        return 0 if int(self) - rest >= self.first else rest


class StepwellLogger(*base_classes(LOGGER)):  # type: ignore[misc]
    """A logger for a Trainer of ``lightning`` or ``pytorch_lightning``, around one of ours.

    Its context is created with the first fit, test or validation, and stays open after it, so that a fit and
    a test are one run; it ends with the process, with ``finish()``, or when training fails. A context
    that was there before is left to whoever created it.

    Args:
        logger: what logs, with its own ``log_freq`` and ``log_on_workers``. Without a ``log_freq`` it logs
            every value that Lightning logs, which is every ``log_every_n_steps`` steps.
        log_model: True logs the checkpoints that ``ModelCheckpoint`` callbacks have kept, when a fit ends;
            ``"all"`` logs each one as soon as it is saved.
        prefix: in front of the name of each metric, with a slash.
        name: what Lightning's folder for checkpoints is called; else the experiment or project.
        keep_open: leave the end to the caller, also when training fails.
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
                f"StepwellLogger({shown(logger)}): write a logger of stepwell.loggers, such as "
                "StepwellLogger(MLFlowLogger(…))"
            )
        if log_model not in (True, False, "all"):
            raise StepwellError(f'log_model is {shown(log_model)}: write True, False or "all"')
        super().__init__()
        # Lightning decides how often: with log_every_n_steps.
        logger.set_default_log_freq("batch")
        self.logger = logger
        self.log_model = log_model
        self.prefix = prefix
        self.keep_open = keep_open
        self._name = name
        self._forget()

    def _forget(self) -> None:
        """What belongs to this process, and to trainers in it."""
        join_packages(StepwellLogger, LOGGER)
        self._owns_context = False
        self._checkpoints = LoggedCheckpoints()
        self._trainer: Callable[[], Any] = _nobody
        self._drawn: weakref.WeakSet[Any] = weakref.WeakSet()
        self._batches: dict[str, Batches] = {}
        self._hyperparameters: dict[str, Any] = {}

    # What it is called, and where it is

    @property
    def name(self) -> str:
        """The experiment or project."""
        return self._name or self.logger._application({}) or UNNAMED

    @property
    def version(self) -> str:
        """The run id. Asking for it begins the run where there is none yet."""
        run = active_run()
        if run is None or not self.logger.is_initialized:
            self._begin()
            run = active_run()
        return "off" if run is None else run.id

    @property
    def save_dir(self) -> str:
        """The folder of the logger; of a collection, that which its members share."""
        if isinstance(self.logger, LoggersCollection) and len(self.logger):
            folders = [os.path.abspath(one.savedir) for one in self.logger]
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
        """The folder of this version, where checkpoints are unless you say otherwise."""
        return os.path.join(self.root_dir, self.version)

    @property
    def group_separator(self) -> str:
        """Between a group and the name of a metric."""
        return "/"

    @property
    def experiment(self) -> Logger:
        """The logger inside, to log other kinds of things to: ``experiment.log(image, …)``."""
        self._begin()
        return self.logger

    # What Lightning calls

    @_guarded
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log metrics; in a batch, ``log_freq`` decides."""
        self._begin()
        batch = self._current_batch()
        for name, value in metrics.items():
            name = f"{self.prefix}/{name}" if self.prefix else name
            counted = None if batch is None else self._since(name, batch)
            self.logger.log(value, name, step=step, batch_idx=counted)

    @_guarded
    def log_hyperparams(self, params: Any = None, *args: Any, **kwargs: Any) -> None:
        """Log hyperparameters: a dict or a Namespace; keywords are some too."""
        self._begin()
        metrics = kwargs.pop("metrics", args[0] if args else None)
        for given in (params, kwargs):
            if given:
                plain = config_to_dict(given)
                self.logger.save_hyperparameters(plain)
                self._hyperparameters.update(plain)
        record_config({"hyperparameters": self._hyperparameters})
        if metrics is not None:
            found = metrics if isinstance(metrics, Mapping) else {"hp_metric": metrics}
            self.log_metrics(found, step=0)

    @_guarded
    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Log what a model is made of, as a text, once. Lightning calls it as a run of a trainer begins."""
        trainer = getattr(model, "_trainer", None)
        if trainer is not None:
            self._trainer = weakref.ref(trainer)
        self._begin()
        if model not in self._drawn:
            self._drawn.add(model)
            self.logger.log(str(model), "model_graph", kind="text")

    @_guarded
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """A callback has saved a checkpoint."""
        if self.log_model is False:
            return
        self._checkpoints.note(checkpoint_callback)
        keeps_all = getattr(checkpoint_callback, "save_top_k", None) == -1
        if self.log_model == "all" or keeps_all:
            self._begin()
            self._checkpoints.log(self.logger)

    def save(self) -> None:
        """What was logged is in the run already: nothing to do."""

    @_guarded
    def finalize(self, status: str) -> None:
        """A fit, test, validation or prediction ended; only one that failed ends the run too."""
        if not self.logger.is_initialized:
            return
        self._checkpoints.log(self.logger)
        self._batches.clear()
        if status == "failed" and not self.keep_open and self._owns_context:
            error = sys.exc_info()[1]
            self.finish("failed" if error is None else ending_of(error).status)

    # What users call

    def finish(self, status: str = "finished", timeout: float | None = None) -> None:
        """End the run now; without this it ends with the process. ``timeout`` as for our loggers."""
        if self.logger.is_initialized:
            end_logging(self.logger, status, timeout)
        self._forget()

    # Behind it

    @_guarded
    def _begin(self) -> None:
        if not self.logger.is_initialized:
            begin_logging(self.logger, _rank())
            self._owns_context = True

    def _current_batch(self) -> int | None:
        """The batch that the trainer is in; None between epochs, and where there is no trainer."""
        trainer = self._trainer()
        if trainer is None:
            return None
        _tell_epoch(trainer.current_epoch)
        # What Lightning itself asks to tell values of a step from those of an epoch.
        if getattr(trainer._logger_connector, "_first_loop_iter", None) is None:
            return None
        if trainer.training:
            return int(trainer.fit_loop.batch_idx)
        return int(trainer._active_loop.batch_progress.current.ready) - 1

    def _since(self, name: str, batch: int) -> Batches:
        """The batches since this metric was logged last, in this epoch."""
        last = self._batches.get(name)
        if last is None or batch < last:
            first = 0
        else:
            first = last.first if batch == last else int(last) + 1
        found = self._batches[name] = Batches(batch, first)
        return found

    def __getstate__(self) -> dict[str, Any]:
        mine = ("_owns_context", "_checkpoints", "_trainer", "_drawn", "_batches")
        return {name: value for name, value in self.__dict__.items() if name not in mine}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self._forget()


def _nobody() -> None:
    """In the place of a reference to a trainer."""


def _tell_epoch(epoch: int) -> None:
    """Tell the run which epoch it is, unless it knows."""
    if state.enabled and context.epoch != epoch:
        set_context(context.step, epoch)


def _rank() -> int:
    """As the launcher or torch.distributed says; else as Lightning does."""
    place = find_place(os.environ)
    if place.launcher != "single":
        return place.rank
    module = sys.modules.get("lightning_utilities.core.rank_zero")
    rank = getattr(getattr(module, "rank_zero_only", None), "rank", None)
    return place.rank if rank is None else int(rank)
