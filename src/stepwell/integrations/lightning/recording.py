"""What is recorded of one trainer while it fits, validates or tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from stepwell.integrations.lightning import progress
from stepwell.integrations.lightning.evaluating import Evaluations
from stepwell.integrations.lightning.logger import StepwellLogger
from stepwell.integrations.lightning.parts import WHERE, Fetches, optimizer_step
from stepwell.integrations.lightning.training import Training
from stepwell.integrations.timing import LOSS, TrainingThread, timer
from stepwell.integrations.wrapping import (
    BACKWARD,
    BACKWARD_TIME,
    FORWARD,
    FORWARD_TIME,
    Wrappings,
)
from stepwell.journal import clock
from stepwell.journal.errors import report
from stepwell.journal.metrics import log
from stepwell.training import calls
from stepwell.training.current import current
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.integrations.lightning.callback import TelemetryCallback

STAGES = {"fit_loop": "train", "validate_loop": "val", "test_loop": "test"}
STAGES["predict_loop"] = "predict"
PARTS: dict[str, calls.Part] = {"val": "validation", "test": "testing"}


class Recording:
    """One run of a trainer. Only the objects of that trainer are wrapped, and only as long as it runs."""

    def __init__(self, trainer: Any, callback: TelemetryCallback) -> None:
        self.trainer = trainer
        self.callback = callback
        self._told = callback.told
        self._wrappings = Wrappings()
        self._thread = TrainingThread()
        self._begun = clock.now()
        self.training = Training(trainer, self._thread, callback.diagnostics)
        self.evaluations = Evaluations(trainer)
        # Whether the trainer's own class says when it begins and ends, and records its saves.
        self.is_hooked = False
        # Whether the application is over when this is.
        self.is_application = False
        self._wrap()

    def wrap_save(self) -> None:
        """Record the saves of a trainer whose class does not."""
        save = self.callback.save

        def around(original: Any) -> Callable[..., Any]:
            def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
                return save(self.trainer, original, *args, **kwargs)

            return save_checkpoint

        self._wrappings.replace(self.trainer, "save_checkpoint", around)

    def end(self, error: BaseException | None = None) -> None:
        """The trainer has come to an end, well or not."""
        self._wrappings.remove()
        self.training.end()
        self.evaluations.forget()
        calls.close_since(self._begun, error)
        self._told.forget()

    # What is wrapped

    def _wrap(self) -> None:
        trainer, wrap = self.trainer, self._wrappings.replace
        strategy = trainer.strategy
        wrap(strategy, "setup_environment", self._around_distributed)
        wrap(strategy, "model_sharded_context", self._around_model_context)
        wrap(strategy, "model_to_device", self._around_model_move)
        wrap(strategy, "setup_optimizers", self._seen(Name.OPTIMIZER_INIT))
        connector = getattr(trainer, "_checkpoint_connector", None)
        wrap(connector, "_restore_modules_and_callbacks", self._around_load)
        wrap(getattr(trainer, "_logger_connector", None), "log_metrics", self._around_metrics)
        wrap(trainer.fit_loop, "on_run_end", self._around_end)
        for name, stage in STAGES.items():
            self._wrap_loop(getattr(trainer, name, None), stage)
        self._wrap_loop(trainer.fit_loop.epoch_loop.val_loop, "val")
        self._wrap_fetches(trainer.fit_loop.epoch_loop, True)
        # Those of an evaluation are not in the averages of training.
        evaluating = timer(TrainingThread(), FORWARD, FORWARD_TIME)
        for step in ("validation_step", "test_step"):
            wrap(strategy, step, evaluating)
        batches = trainer.fit_loop.epoch_loop
        wrap(batches.automatic_optimization, "run", self.training.around_batch)
        wrap(batches.manual_optimization, "run", self.training.around_batch)
        if progress.is_automatic(trainer):
            wrap(strategy, "training_step", timer(self._thread, FORWARD, FORWARD_TIME))
            wrap(strategy, "backward", timer(self._thread, BACKWARD, BACKWARD_TIME))
            wrap(strategy, "optimizer_step", optimizer_step(self._thread))
        else:
            manual = self.training.manual
            wrap(strategy, "training_step", manual.step)
            wrap(strategy, "backward", manual.backward)
            wrap(strategy, "optimizer_step", manual.update)

    def _wrap_loop(self, loop: Any, stage: str) -> None:
        if loop is None:
            return
        self._wrappings.replace(loop, "setup_data", self._around_loaders(loop, stage))
        part = PARTS.get(stage)
        if part is not None:
            self._wrap_fetches(loop, False)
            self._wrappings.replace(loop, "run", self.evaluations.around_run(part))
            self._wrappings.replace(loop, "reset", self.evaluations.around_reset)

    def _wrap_fetches(self, loop: Any, is_counted: bool) -> None:
        fetches = Fetches(self._thread, is_counted)
        self._wrappings.replace(loop, "_on_before_fetch", fetches.before)
        self._wrappings.replace(loop, "_on_after_fetch", fetches.after)

    def _seen(self, name: Name) -> Callable[[Any], Callable[..., Any]]:
        def around(original: Any) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                with self._told.seen(name):
                    return original(*args, **kwargs)

            return call

        return around

    def _around_distributed(self, original: Any) -> Callable[..., Any]:
        recorded = self._seen(Name.DIST_INIT)(original)

        def setup_environment(*args: Any, **kwargs: Any) -> Any:
            is_distributed = hasattr(self.trainer.strategy, "cluster_environment")
            if is_distributed and not _is_initialized():
                result = recorded(*args, **kwargs)
            else:
                result = original(*args, **kwargs)
            self._note_world_size()
            return result

        return setup_environment

    def _note_world_size(self) -> None:
        """Lightning knows how many ranks there are, also where it has started them itself."""
        job, trainer = current.job, self.trainer
        if job is None:
            return
        size, rank = int(trainer.world_size), int(trainer.global_rank)
        known = (0, 1) if job.run is None else (job.run.rank, job.run.world_size)
        if job.application is not None and known != (rank, size):
            job.application.add_attributes({"rank": rank, "world_size": size})
        if job.ask("world_size") is None:
            job.world_size = max(job.world_size, size)

    def _around_model_context(self, original: Any) -> Callable[..., Any]:
        @contextmanager
        def model_sharded_context(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with self._told.seen(Name.MODEL_INIT), original(*args, **kwargs) as result:
                yield result
            self._told.note(Name.MODEL_INIT)

        return model_sharded_context

    def _around_model_move(self, original: Any) -> Callable[..., Any]:
        def model_to_device(*args: Any, **kwargs: Any) -> Any:
            if not self.callback.is_new_model(self.trainer.lightning_module):
                return original(*args, **kwargs)
            with self._told.seen(Name.MODEL_INIT):
                return original(*args, **kwargs)

        return model_to_device

    def _around_loaders(self, loop: Any, stage: str) -> Callable[[Any], Callable[..., Any]]:
        def around(original: Any) -> Callable[..., Any]:
            def setup_data(*args: Any, **kwargs: Any) -> Any:
                if not _will_load(self.trainer, loop, stage):
                    return original(*args, **kwargs)
                with self._told.seen(Name.DATA_LOADER_INIT, stage=stage):
                    return original(*args, **kwargs)

            return setup_data

        return around

    def _around_load(self, original: Any) -> Callable[..., Any]:
        def restore(*args: Any, **kwargs: Any) -> Any:
            path = args[0] if args else kwargs.get("checkpoint_path")
            if not path:
                return original(*args, **kwargs)
            with self._told.seen(Name.CHECKPOINT_LOAD, checkpoint_path=str(path)):
                return original(*args, **kwargs)

        return restore

    def _around_metrics(self, original: Any) -> Callable[..., Any]:
        def log_metrics(metrics: Any, step: Any = None) -> Any:
            self._log_metrics(metrics, step)
            return original(metrics, step)

        return log_metrics

    def _around_end(self, original: Any) -> Callable[..., Any]:
        def on_run_end(*args: Any, **kwargs: Any) -> Any:
            # Behind the callbacks: some of them save the last checkpoint then.
            result = original(*args, **kwargs)
            if current.job is not None and current.job.loop is not None:
                calls.end_training()
            return result

        return on_run_end

    # Metrics

    def _log_metrics(self, metrics: Any, step: int | None) -> None:
        """Record what the model logs, unless a logger of ours does."""
        try:
            trainer = self.trainer
            if not metrics or not isinstance(metrics, Mapping) or trainer.sanity_checking:
                return
            if any(isinstance(logger, StepwellLogger) for logger in trainer.loggers):
                return
            values = {name: value for name, value in metrics.items() if name != LOSS}
            if step is None and "step" in values:
                step = int(values.pop("step"))
            elif step is None:
                step = trainer.fit_loop.epoch_loop._batches_that_stepped
            log(values, step)
        except Exception as error:
            report(WHERE, error)


def _is_initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _will_load(trainer: Any, loop: Any, stage: str) -> bool:
    """Whether the loop is about to make its loaders, and does not have them already."""
    if getattr(trainer, f"limit_{stage}_batches", 1) == 0:
        return False
    if getattr(loop, "_combined_loader", None) is None:
        return True
    if stage == "train":
        return bool(getattr(loop, "_should_reload_train_dl", False))
    is_fitting = loop is trainer.fit_loop.epoch_loop.val_loop
    return not is_fitting or bool(getattr(loop, "_should_reload_val_dl", False))
