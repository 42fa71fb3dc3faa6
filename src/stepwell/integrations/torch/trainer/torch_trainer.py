"""``TorchTrainer``: epochs of training, validation and tests. Use it as it is, or subclass it."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, DistributedSampler

from stepwell._core.checks import POSITIVE
from stepwell._core.errors import StepwellError, warn_once
from stepwell._core.values import shown
from stepwell.diagnostics.batches import size_of
from stepwell.integrations.torch.trainer.checkpoints import (
    MODEL,
    STATE,
    is_checkpoint,
    load_values,
    read_checkpoint,
    write_checkpoint,
)
from stepwell.integrations.torch.trainer.configuration import (
    as_configuration,
    find_loss,
    make_optimizer,
    make_scheduler,
)
from stepwell.integrations.torch.trainer.strategies import (
    LOSS,
    EpochMeans,
    TorchDistributedStrategy,
    count_batches,
    find_strategy,
    move,
)
from stepwell.journal.metrics import context, log, set_context
from stepwell.journal.state import state
from stepwell.loggers import EmptyLogger, Logger, LoggersCollection
from stepwell.loggers.base import call_with
from stepwell.telemetry.rank_info import find_rank_info
from stepwell.telemetry.run import active_run
from stepwell.telemetry.start import init
from stepwell.training import (
    application,
    checkpoint_load,
    checkpoint_save,
    data_loading,
    dataloader_init,
    model_backward,
    model_forward,
    model_init,
    optimizer_init,
    optimizer_update,
    testing_iteration,
    testing_loop,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
    zero_grad,
)

STAGES = ("train", "validation", "test")
_END = object()


class TorchTrainer:
    """Trains a model on one process, or on all processes that torchrun starts.

    It records to the active run, else to a run of its own. The logger's context is created with the rank of
    this process and destroyed at the end, unless it exists already.

    To change the training, override ``train_step``, ``validation_step`` or ``test_step`` (one batch),
    ``train_epoch``, ``validation_epoch`` or ``test_epoch`` (one epoch), ``train`` (everything),
    ``create_model_loss_optimizer`` or ``create_dataloaders``. The loops of this class record batches and
    epochs, whatever a step does; in a loop of your own, use ``stepwell.watch``.

    Args:
        config: a TrainingConfiguration, or a dict, Namespace or dataclass of its values.
        epochs: number of epochs.
        model: the model; None if ``create_model_loss_optimizer`` creates it.
        strategy: ``"ddp"`` trains one model on all processes (no effect with a single process), None, or a
            strategy such as ``TorchDDPStrategy()``.
        validation_every: number of epochs between validations; None: no validation.
        test_every: number of epochs between tests; None: no tests.
        random_seed: seed of Python, NumPy, torch and the order of the data.
        logger: a logger of ``stepwell.loggers``, or one of your own.
        metrics: functions of prediction and target by name, such as those of torchmetrics.
        checkpoints_location: folder for checkpoints. The best model so far is in ``best_model``.
        checkpoint_every: number of epochs between checkpoints; None: only the best model is saved.
        name: name of the trainer.
        from_checkpoint: folder of a checkpoint to resume from.
        initial_best_validation_metric: a validation loss must be below this to be the best.
        run_name: name of the run and of the backends' runs.

    Attributes:
        config: a TrainingConfiguration.
        strategy: the strategy.
        device: device of this process, such as ``"cuda:0"`` or ``"cpu"``.
        logger: the given logger, or one that does nothing.
        rank: rank of this process.
        world_size: number of processes.
        train_dataloader: batches to train on.
        validation_dataloader: batches to validate on, or None.
        test_dataloader: batches to test on, or None.
        optimizer: created by ``create_model_loss_optimizer``, as are ``lr_scheduler`` and ``loss``.
        current_epoch: the current epoch, from 0.
        train_glob_step: training batches so far, over all epochs; ``validation_glob_step`` and
            ``test_glob_step`` likewise.
    """

    train_dataloader: Any = None
    validation_dataloader: Any = None
    test_dataloader: Any = None
    optimizer: Any = None
    lr_scheduler: Any = None
    loss: Any = None
    model: Any
    torch_rng: torch.Generator | None = None
    profiler: Any = None

    def __init__(
        self,
        config: Any = None,
        epochs: int = 1,
        model: nn.Module | None = None,
        strategy: str | TorchDistributedStrategy | None = "ddp",
        *,
        validation_every: int | None = 1,
        test_every: int | None = None,
        random_seed: int | None = None,
        logger: Logger | None = None,
        metrics: Mapping[str, Callable[..., Any]] | None = None,
        checkpoints_location: str | os.PathLike[str] = "checkpoints",
        checkpoint_every: int | None = None,
        name: str | None = None,
        from_checkpoint: str | os.PathLike[str] | None = None,
        initial_best_validation_metric: str | float = "inf",
        run_name: str | None = None,
    ) -> None:
        if logger is not None and not isinstance(logger, Logger):
            raise StepwellError(f"logger must be a logger of stepwell.loggers, got {shown(logger)}")
        if metrics is not None and not isinstance(metrics, Mapping):
            raise StepwellError(
                f"metrics must be a dict of names and functions, got {shown(metrics)}"
            )
        self.config = as_configuration(config)
        self.epochs = POSITIVE.check("epochs", epochs)
        self.model = model
        self.strategy = strategy
        self.validation_every = POSITIVE.or_none("validation_every", validation_every)
        self.test_every = POSITIVE.or_none("test_every", test_every)
        self.random_seed = random_seed
        self.logger = logger or EmptyLogger()
        self.metrics = dict(metrics or {})
        self.checkpoints_location = checkpoints_location
        self.checkpoint_every = POSITIVE.or_none("checkpoint_every", checkpoint_every)
        self.name = name or type(self).__name__
        self.from_checkpoint = None if from_checkpoint is None else Path(from_checkpoint)
        if self.from_checkpoint is not None and not is_checkpoint(self.from_checkpoint):
            raise StepwellError(
                f"from_checkpoint must be a folder with {STATE} and {MODEL}, "
                f"got {shown(from_checkpoint)}"
            )
        self.best_validation_metric = float(initial_best_validation_metric)
        self.run_name = run_name
        self.current_epoch = 0
        self.train_glob_step = self.validation_glob_step = self.test_glob_step = 0
        self._loaded: dict[str, Any] = {}
        self._logs_floats = False
        self._best_files: list[Path] = []

    # Properties

    @property
    def strategy(self) -> TorchDistributedStrategy:
        """The strategy. You can also assign its name."""
        return self._strategy

    @strategy.setter
    def strategy(self, strategy: str | TorchDistributedStrategy | None) -> None:
        self._strategy = find_strategy(strategy, self.config.dist_backend)

    @property
    def device(self) -> str:
        """The device of this process."""
        return self.strategy.device()

    @property
    def rank(self) -> int:
        """The rank of this process in the launch."""
        return find_rank_info(os.environ).rank

    @property
    def world_size(self) -> int:
        """The number of processes in the launch."""
        return find_rank_info(os.environ).world_size

    @property
    def bare_model(self) -> Any:
        """The model without its DistributedDataParallel wrapper."""
        is_wrapped = isinstance(self.model, nn.parallel.DistributedDataParallel)
        return self.model.module if is_wrapped else self.model

    def execute(
        self,
        train_dataset: Dataset[Any] | None,
        validation_dataset: Dataset[Any] | None = None,
        test_dataset: Dataset[Any] | None = None,
    ) -> tuple[Any, Any, Any, Any]:
        """Train. Return the three datasets and the trained model."""
        with self._recording(), application(), self._initialized(), self._logging():
            self._begin()
            self.logger.save_hyperparameters(self._hyperparameters())
            self.metrics = {name: move(m, self.device) for name, m in self.metrics.items()}
            with dataloader_init():
                self.create_dataloaders(
                    train_dataset=train_dataset,
                    validation_dataset=validation_dataset,
                    test_dataset=test_dataset,
                )
            self.create_model_loss_optimizer()
            try:
                self.train()
            finally:
                self._log_files("best_model", self._best_files)
        return train_dataset, validation_dataset, test_dataset, self.bare_model

    def log(
        self,
        item: Any,
        identifier: Any,
        kind: str = "metric",
        step: int | None = None,
        batch_idx: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Log an item, as ``Logger.log`` does."""
        self.logger.log(
            item=item, identifier=identifier, kind=kind, step=step, batch_idx=batch_idx, **kwargs
        )

    # Creation

    def create_model_loss_optimizer(self) -> None:
        """Prepare model, optimizer, scheduler and loss as configured in ``config``."""
        if self.model is None:
            raise StepwellError(
                f"{type(self).__name__} has no model: pass model=… or override "
                "create_model_loss_optimizer"
            )
        with model_init():
            if self._loaded:
                load_values(self.bare_model, self._loaded["model"])
            options = self.get_default_distributed_kwargs()
            self.model, _, _ = self.strategy.distributed(self.model, **options)
        with optimizer_init():
            self.optimizer = make_optimizer(self.config, self.model.parameters())
            self.lr_scheduler = make_scheduler(self.config, self.optimizer)
            self.loss = find_loss(self.config)
            # Creating a scheduler changes the learning rate, so the saved state is loaded after it.
            for part in ("optimizer", "lr_scheduler"):
                if self._loaded.get(part) is not None and getattr(self, part) is not None:
                    getattr(self, part).load_state_dict(self._loaded[part])

    def get_default_distributed_kwargs(self) -> dict[str, Any]:
        """Return the options of ``strategy.distributed``: none."""
        return {}

    def create_dataloaders(
        self,
        train_dataset: Dataset[Any] | None,
        validation_dataset: Dataset[Any] | None = None,
        test_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Create the DataLoaders of the datasets as configured in ``config``."""
        datasets = (train_dataset, validation_dataset, test_dataset)
        for stage, dataset in zip(STAGES, datasets, strict=True):
            if dataset is not None:
                loader = self.strategy.create_dataloader(
                    dataset=dataset,
                    batch_size=self.config.batch_size,
                    num_workers=self.config.num_workers_dataloader,
                    pin_memory=self.config.pin_gpu_memory,
                    generator=self.torch_rng,
                    shuffle=self.config[f"shuffle_{stage}"],
                )
                setattr(self, f"{stage}_dataloader", loader)

    # The loop

    def train(self) -> None:
        """Train all epochs, validate, test and save checkpoints."""
        if self.current_epoch >= self.epochs:
            warn_once(
                f"trainer epochs {self.from_checkpoint}",
                "The checkpoint %s has all %d epochs already. To continue, use a larger number of epochs.",
                self.from_checkpoint,
                self.epochs,
            )
            return
        batches = count_batches(self.train_dataloader)
        target = None
        if batches is not None:
            # A checkpoint of itwinai does not contain its steps.
            self.train_glob_step = self.train_glob_step or self.current_epoch * batches
            target = self.train_glob_step + (self.epochs - self.current_epoch) * batches
        with training_loop(self.train_glob_step, train_iterations_target_or_fn=target):
            for epoch in range(self.current_epoch, self.epochs):
                self.current_epoch = epoch
                began = time.monotonic()
                call_with(self.set_epoch, epoch=epoch)
                call_with(self.train_epoch, epoch=epoch)
                if self.validation_every and (epoch + 1) % self.validation_every == 0:
                    self._note_validation(call_with(self.validation_epoch, epoch=epoch))
                if self.test_every and (epoch + 1) % self.test_every == 0:
                    call_with(self.test_epoch, epoch=epoch)
                if self._is_checkpoint_due():
                    self._save(f"epoch_{epoch}")
                self.log(time.monotonic() - began, "epoch_time_s", step=epoch)

    def set_epoch(self, epoch: int | None = None) -> None:
        """Begin an epoch: set the epoch of the samplers, and step the scheduler (not in the first epoch)."""
        epoch = self.current_epoch if epoch is None else epoch
        if state.enabled:
            set_context(context.step, epoch)
        if self.lr_scheduler is not None and epoch > 0:
            self.lr_scheduler.step()
        for loader in (self.train_dataloader, self.validation_dataloader, self.test_dataloader):
            sampler = getattr(loader, "sampler", None)
            if isinstance(sampler, DistributedSampler):
                sampler.set_epoch(epoch)

    def train_epoch(self, epoch: int | None = None) -> Tensor:
        """Train on all batches once. Return the mean loss of all processes."""
        if self.train_dataloader is None:
            raise StepwellError("There is no training data: pass a training dataset to execute()")
        self.model.train()
        means, world_size = EpochMeans(), self.world_size
        batches = iter(self.train_dataloader)
        count = count_batches(self.train_dataloader)
        for batch_idx in itertools.count() if count is None else range(count):
            with data_loading():
                batch = next(batches, _END)
            if batch is _END:
                break
            with training_iteration(samples=world_size * (size_of(batch) or 1)):
                loss = means.add(self.train_step(batch=batch, batch_idx=batch_idx))
                # The run has the loss of every step; the logger has what its log_freq asks for.
                log({"loss": loss})
            self.train_glob_step += 1
        return self._log_means(means.over_all(self.strategy), "train")

    def train_step(self, batch: Any, batch_idx: int) -> tuple[Tensor, dict[str, Any]]:
        """Train on one batch of inputs and targets. Return its loss and metrics."""
        inputs, targets = move(batch, self.device)
        with zero_grad():
            self.optimizer.zero_grad()
        with model_forward():
            prediction = self.model(inputs)
            loss: Tensor = self.loss(prediction, targets)
        with model_backward():
            loss.backward()  # type: ignore[no-untyped-call]
        with optimizer_update():
            self.optimizer.step()
        return loss, self._log_step(loss, targets, prediction, batch_idx, "train")

    def validation_epoch(self, epoch: int | None = None) -> Tensor | None:
        """Validate on all batches once. Return the mean loss of all processes, None without data."""
        if self.validation_dataloader is None:
            return None
        with validation_loop():
            means = self._evaluate("validation", self.validation_step, validation_iteration)
        loss = self._log_means(means, "validation")
        log({"val_loss": loss})
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> tuple[Tensor, dict[str, Any]]:
        """Validate on one batch. Return its loss and metrics."""
        return self._evaluation_step(batch, batch_idx, "validation")

    def test_epoch(self, epoch: int | None = None) -> Tensor | None:
        """Test on all batches once. Return the mean loss of all processes, None without data."""
        if self.test_dataloader is None:
            return None
        with testing_loop():
            means = self._evaluate("test", self.test_step, testing_iteration)
        return self._log_means(means, "test")

    def test_step(self, batch: Any, batch_idx: int) -> tuple[Tensor, dict[str, Any]]:
        """Test on one batch. Return its loss and metrics."""
        return self._evaluation_step(batch, batch_idx, "test")

    def compute_metrics(
        self, true: Any, pred: Any, logger_step: int, batch_idx: int | None, stage: str = "train"
    ) -> dict[str, Any]:
        """Compute and log the metrics of a batch. Return them by name."""
        values: dict[str, Any] = {}
        with torch.no_grad():
            for name, metric in self.metrics.items():
                values[name] = value = torch.as_tensor(metric(pred, true)).detach()
                self._log_value(value, f"{stage}_{name}", logger_step, batch_idx)
        return values

    # Checkpoints

    def save_checkpoint(
        self,
        name: str,
        best_validation_metric: Tensor | float | None = None,
        checkpoints_root: str | os.PathLike[str] | None = None,
        force: bool = False,
    ) -> str | None:
        """Save a checkpoint on the first process, if one is due after this epoch or ``force`` is true.

        Return its folder, None if none was saved.
        """
        if self.rank != 0 or not (force or self._is_checkpoint_due()):
            return None
        folder = Path(checkpoints_root or self.checkpoints_location, name)
        best = None if best_validation_metric is None else float(best_validation_metric)
        if self.model is None or self.optimizer is None:
            warn_once(
                "trainer nothing to save",
                "%s saves no checkpoints, because it has no model or no optimizer. Override save_checkpoint.",
                type(self).__name__,
            )
            return None
        whole = {
            "epoch": self.current_epoch,
            "best_validation_metric": best,
            "optimizer_state_dict": self.optimizer.state_dict(),
            "lr_scheduler_state_dict": self.lr_scheduler and self.lr_scheduler.state_dict(),
            "torch_rng_state": self.torch_rng and self.torch_rng.get_state(),
            "random_seed": self.random_seed,
            "glob_steps": [getattr(self, f"{stage}_glob_step") for stage in STAGES],
        }
        with checkpoint_save(self.train_glob_step, path=folder):
            files = write_checkpoint(folder, whole, self.bare_model.state_dict(), self.config)
        if best is None:
            self._log_files(name, files)
        else:
            # Only the last best model is logged, at the end: the run keeps every logged file.
            self._best_files = files
        return str(folder)

    def load_checkpoint(self) -> None:
        """Read ``from_checkpoint``, if given: the epoch to resume at, and the state of all parts."""
        folder = self.from_checkpoint
        if folder is None:
            return
        with checkpoint_load():
            saved, model = read_checkpoint(folder, self.device)
        self._loaded = {
            "model": model,
            "optimizer": saved["optimizer_state_dict"],
            "lr_scheduler": saved.get("lr_scheduler_state_dict"),
            "torch_rng": saved.get("torch_rng_state"),
        }
        if saved.get("random_seed") is not None:
            self.random_seed = saved["random_seed"]
        self.current_epoch = saved["epoch"] + 1
        if saved.get("best_validation_metric") is not None:
            self.best_validation_metric = saved["best_validation_metric"]
        for stage, step in zip(STAGES, saved.get("glob_steps", ()), strict=False):
            setattr(self, f"{stage}_glob_step", step)

    # Internals

    def _hyperparameters(self) -> dict[str, Any]:
        return {
            **self.config.model_dump(),
            "epochs": self.epochs,
            "strategy": self.strategy.name,
            "distributed_strategy": type(self.strategy).__name__,
            "global_world_size": self.world_size,
        }

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """Record to the active run, or to a new one that ends with the block."""
        if active_run() is not None:
            yield
            return
        name = self.run_name or self.logger._application({})
        with init(name, config=self._hyperparameters()):
            yield

    @contextlib.contextmanager
    def _logging(self) -> Iterator[None]:
        if self.logger.is_initialized:
            yield
            return
        takes_name = any("run_name" in member.context_options for member in self._members())
        options = {"run_name": self.run_name} if self.run_name and takes_name else {}
        with self.logger.start_logging(rank=self.rank, **options):
            yield

    def _members(self) -> list[Logger]:
        logger = self.logger
        return logger.loggers if isinstance(logger, LoggersCollection) else [logger]

    @contextlib.contextmanager
    def _initialized(self) -> Iterator[None]:
        """Initialize the strategy, unless that is done already."""
        is_ours = not self.strategy.is_initialized
        if is_ours:
            self.strategy.init()
        try:
            yield
        finally:
            if is_ours:
                # The wrapper of the model uses the process group, which ends here.
                self.model = self.bare_model
                self.strategy.clean_up()

    def _begin(self) -> None:
        """Reset the counters, or continue after the epoch of a checkpoint."""
        self.current_epoch = 0
        self.train_glob_step = self.validation_glob_step = self.test_glob_step = 0
        self._best_files = []
        # Our loggers take tensors without waiting for the device. Loggers of users get plain numbers.
        self._logs_floats = any(type(member).log is not Logger.log for member in self._members())
        if self.from_checkpoint is not None:
            self.load_checkpoint()
        if self.random_seed is not None:
            self._seed(self.random_seed)

    def _seed(self, seed: int) -> None:
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        torch.manual_seed(seed)
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        self.torch_rng = torch.Generator()
        self.torch_rng.manual_seed(seed)
        if self._loaded.get("torch_rng") is not None:
            self.torch_rng.set_state(self._loaded["torch_rng"].cpu())

    def _evaluate(
        self, stage: str, step: Callable[..., Any], iteration: Callable[[], Any]
    ) -> dict[str, float]:
        """Evaluate on the data of a stage. Return the means over all processes."""
        self.model.eval()
        means, counter = EpochMeans(), f"{stage}_glob_step"
        for batch_idx, batch in enumerate(getattr(self, f"{stage}_dataloader")):
            with iteration(), torch.no_grad():
                means.add(step(batch=batch, batch_idx=batch_idx))
            setattr(self, counter, getattr(self, counter) + 1)
        return means.over_all(self.strategy)

    def _evaluation_step(
        self, batch: Any, batch_idx: int, stage: str
    ) -> tuple[Tensor, dict[str, Any]]:
        inputs, targets = move(batch, self.device)
        with torch.no_grad():
            prediction = self.model(inputs)
            loss: Tensor = self.loss(prediction, targets)
        return loss, self._log_step(loss, targets, prediction, batch_idx, stage)

    def _log_step(
        self, loss: Tensor, targets: Any, prediction: Any, batch_idx: int, stage: str
    ) -> dict[str, Any]:
        step = getattr(self, f"{stage}_glob_step")
        self._log_value(loss, f"{stage}_loss", step, batch_idx)
        return self.compute_metrics(
            true=targets, pred=prediction, logger_step=step, batch_idx=batch_idx, stage=stage
        )

    def _log_value(self, value: Tensor, name: str, step: int, batch_idx: int | None) -> None:
        is_float = self._logs_floats and value.numel() == 1
        plain = value.item() if is_float else value.detach()
        self.log(plain, name, step=step, batch_idx=batch_idx)

    def _log_means(self, means: dict[str, float], stage: str) -> Tensor:
        """Log the means of an epoch at the current training step. Return the mean loss."""
        loss = means.pop(LOSS, math.nan)
        for name, value in {"loss": loss, **means}.items():
            self.log(value, f"{stage}_{name}_epoch", step=self.train_glob_step)
        for metric in self.metrics.values():
            # Metrics of torchmetrics accumulate until they are reset.
            getattr(metric, "reset", _nothing)()
        return torch.tensor(loss)

    def _note_validation(self, loss: Tensor | float | None) -> None:
        """Save the model if it is the best so far, by the mean loss over all processes."""
        if loss is None:
            return
        losses = self.strategy.allgather_obj(torch.as_tensor(loss).item())
        mean = sum(losses) / len(losses)
        self.log(mean, "global_validation_loss_epoch", step=self.current_epoch)
        if mean < self.best_validation_metric:
            self.best_validation_metric = mean
            self._save("best_model", mean)

    def _log_files(self, name: str, files: list[Path]) -> None:
        for file in files:
            self.log(str(file), f"{name}_{file.stem}", kind="artifact")

    def _is_checkpoint_due(self) -> bool:
        every = self.checkpoint_every
        return every is not None and (self.current_epoch + 1) % every == 0

    def _save(self, name: str, best: float | None = None) -> None:
        # Overrides written for earlier releases take the epoch and the loss.
        if self.rank == 0:
            call_with(
                self.save_checkpoint,
                name=name,
                best_validation_metric=best,
                force=True,
                epoch=self.current_epoch,
                loss=None if best is None else torch.tensor(best),
            )


def _nothing() -> None:
    """Do nothing, in place of a missing method."""
