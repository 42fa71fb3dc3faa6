"""What is recorded of one trainer while it fits, validates or tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from stepwell.integrations.batches import samples_in
from stepwell.integrations.lightning import progress
from stepwell.integrations.lightning.parts import (
    WHERE,
    Fetches,
    ManualSteps,
    Thread,
)
from stepwell.integrations.lightning.wrapping import Wrappings
from stepwell.journal import clock
from stepwell.journal.errors import report
from stepwell.journal.metrics import log, set_context
from stepwell.journal.state import current_lane
from stepwell.telemetry.live import NO_SPAN, Span, is_failure
from stepwell.training import calls
from stepwell.training.current import current
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

if TYPE_CHECKING:
    from stepwell.integrations.lightning.callback import TelemetryCallback
    from stepwell.training.training_loop import TrainingLoop

LOSS = "loss"
STAGES = {"fit_loop": "train", "validate_loop": "val", "test_loop": "test"}
STAGES["predict_loop"] = "predict"


class Recording:
    """One run of a trainer. Only the objects of that trainer are wrapped, and only as long as it runs."""

    def __init__(self, trainer: Any, callback: TelemetryCallback) -> None:
        self.trainer = trainer
        self.callback = callback
        self._told = callback.told
        self._wrappings = Wrappings()
        self._thread = Thread()
        self._begun = clock.now()
        self._steps_always = True
        self._counts_samples = False
        self._is_automatic = True
        # Samples of one rank in an iteration of the usual size; None where the configuration tells.
        self._usual_samples: int | None = None
        self._world_size = 1
        # The loss of passes that have not come to an optimizer step yet, and how many they are.
        self._partial: torch.Tensor | None = None
        self._passes = 0
        self._sanity: list[tuple[Name, Span]] = []
        self._evaluating: dict[str, bool] = {}
        # Whether the trainer's own class says when it begins and ends, and records its saves.
        self.is_hooked = False
        # Whether the application is over when this is.
        self.is_application = False
        self._wrap()

    def wrap_save(self) -> None:
        """Record the saves of a trainer whose class does not."""
        saves = self.callback.saves

        def around(original: Any) -> Callable[..., Any]:
            def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
                return saves.save(self.trainer, original, *args, **kwargs)

            return save_checkpoint

        self._wrappings.wrap(self.trainer, "save_checkpoint", around)

    def end(self, error: BaseException | None = None) -> None:
        """The trainer has come to an end, well or not."""
        self._wrappings.remove()
        self._thread.lane = None
        self._sanity.clear()
        calls.close_since(self._begun, error)
        self._told.forget()
        self._partial = None

    # What is wrapped

    def _wrap(self) -> None:
        trainer, wrap = self.trainer, self._wrappings.wrap
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
        self._wrap_fetches(trainer.fit_loop.epoch_loop)
        for step in ("validation_step", "test_step"):
            wrap(strategy, step, self._thread.forward)
        batches = trainer.fit_loop.epoch_loop
        wrap(batches.automatic_optimization, "run", self._around_batch)
        wrap(batches.manual_optimization, "run", self._around_batch)
        if progress.is_automatic(trainer):
            wrap(strategy, "training_step", self._thread.forward)
            wrap(strategy, "backward", self._thread.backward)
            wrap(strategy, "optimizer_step", self._thread.optimizer_step)
        else:
            manual = ManualSteps(self._thread)
            wrap(strategy, "training_step", manual.step)
            wrap(strategy, "backward", manual.backward)
            wrap(strategy, "optimizer_step", manual.update)

    def _wrap_loop(self, loop: Any, stage: str) -> None:
        if loop is None:
            return
        self._wrappings.wrap(loop, "setup_data", self._around_loaders(loop, stage))
        if stage in ("val", "test"):
            self._wrap_fetches(loop)

    def _wrap_fetches(self, loop: Any) -> None:
        fetches = Fetches(self._thread)
        self._wrappings.wrap(loop, "_on_before_fetch", fetches.before)
        self._wrappings.wrap(loop, "_on_after_fetch", fetches.after)

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
            if any(type(logger).__module__.startswith("stepwell.") for logger in trainer.loggers):
                return
            values = {name: value for name, value in metrics.items() if name != LOSS}
            if step is None and "step" in values:
                step = int(values.pop("step"))
            elif step is None:
                step = trainer.fit_loop.epoch_loop._batches_that_stepped
            log(values, step)
        except Exception as error:
            report(WHERE, error)

    def _log_loss(self, outputs: Any, stepped: bool) -> None:
        # What a training step gives comes as a dict, empty when it gave no loss.
        loss = outputs.get(LOSS)
        if type(loss) is not torch.Tensor:
            return
        if not self._steps_always and self._is_automatic:
            # Lightning has divided each by the number of batches that usually make up a step.
            self._passes += 1
            loss = loss if self._partial is None else self._partial + loss
            self._partial = None if stepped else loss
            if stepped:
                loss = loss * (self.trainer.accumulate_grad_batches / self._passes)
                self._passes = 0
        if stepped:
            # One on an accelerator is fetched later, in the background.
            log({LOSS: loss.item() if loss.is_cpu and not loss.ndim else loss})

    # Training

    def start_training(self) -> None:
        """The training loop starts."""
        job = current.job
        if job is None:
            return
        trainer = self.trainer
        self._is_automatic = progress.is_automatic(trainer)
        size = job.ask("global_batch_size")
        self._counts_samples = size is None
        self._note_accumulation()
        start = progress.iterations_done(trainer)
        target = None
        if job.ask("train_iterations_target") is None:
            target = progress.iterations_target(trainer)
        size = size or progress.samples_per_iteration(trainer)
        samples_target = None
        if size and target and job.ask("train_samples_target") is None:
            samples_target = target * size
        is_known = job.last is not None and job.last.overall == start
        samples = None if size is None or is_known or not start else start * size
        calls.start_training(start, samples, target, samples_target)
        self._thread.lane = current_lane()
        self._world_size = job.world_size
        self._usual_samples = None
        if self._counts_samples and size and self._steps_always and job.loop is not None:
            job.loop.expect_samples(size)
            self._usual_samples = size // self._world_size

    def start_epoch(self) -> None:
        """An epoch starts."""
        self._note_accumulation()
        if current.job is not None:
            set_context(None, int(self.trainer.current_epoch))

    def _note_accumulation(self) -> None:
        self._steps_always = (
            self._is_automatic
            and self.trainer.accumulate_grad_batches == 1
            and not getattr(self.trainer.strategy, "handles_gradient_accumulation", False)
        )

    def _around_batch(self, original: Any) -> Callable[..., Any]:
        """Around what trains on a batch; an optimizer step if there is one in it."""

        def run(*args: Any, **kwargs: Any) -> Any:
            job = current.job
            loop = None if job is None else job.loop
            if loop is None:
                return original(*args, **kwargs)
            before = 0 if self._steps_always else self.trainer.global_step
            lane = self._thread.lane
            loop.enter(None if lane is None or lane.frames else lane)
            try:
                outputs = original(*args, **kwargs)
            except BaseException as error:
                # What has failed is no step, nor is what found that there is no batch any more.
                if is_failure(error):
                    calls.end_iteration(error=error)
                else:
                    calls.skip_iteration()
                raise
            try:
                stepped = self._steps_always or self.trainer.global_step > before
                self._log_loss(outputs, stepped)
                self._end_iteration(loop, stepped, args)
            except Exception as problem:
                report(WHERE, problem)
            return outputs

        return run

    def _end_iteration(self, loop: TrainingLoop, stepped: bool, args: Any) -> None:
        samples = None
        if self._counts_samples:
            # The last argument has what the training step is called with.
            samples = samples_in(args[-1].get("batch"))
        if samples == self._usual_samples and stepped:
            loop.end_usual(self._thread.lane)
            return
        samples = None if samples is None else samples * self._world_size
        loop.end(samples, None, stepped)

    # Validation and testing

    def start_evaluation(self, part: calls.Part) -> None:
        """A validation or testing loop starts."""
        job = current.job
        if job is None:
            return
        if self.trainer.sanity_checking:
            self._start_sanity(Name.VALIDATION_LOOP)
            return
        evaluation = job.validation if part == "validation" else job.testing
        # What the user has started goes on until the user ends it.
        self._evaluating[part] = evaluation.span is None
        if evaluation.span is None:
            calls.start_evaluation(part)

    def end_evaluation(self, part: calls.Part) -> None:
        """It ends."""
        if self._sanity:
            self._end_sanity()
        elif self._evaluating.pop(part, False):
            calls.end_evaluation(part)

    def start_evaluation_iteration(self, part: calls.Part) -> None:
        """One of its batches."""
        if self._sanity:
            self._start_sanity(Name.VALIDATION_SINGLE_ITERATION)
        elif part in self._evaluating:
            calls.start_evaluation_iteration(part)

    def end_evaluation_iteration(self, part: calls.Part) -> None:
        """The batch is done."""
        if self._sanity:
            self._end_sanity()
        elif part in self._evaluating:
            calls.end_evaluation_iteration(part)

    def _start_sanity(self, name: Name) -> None:
        """The check before training is recorded, but is no validation: it is in no average."""
        span = calls.start(name)
        if span is not NO_SPAN:
            span.add_attribute("is_sanity_check", True)
        self._sanity.append((name, span))

    def _end_sanity(self) -> None:
        name, _ = self._sanity.pop()
        calls.end(name)


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
