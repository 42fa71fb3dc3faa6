"""``TorchTrainer``: a small training loop, told about in full. Subclass it, or read it to wire your own."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from stepwell.journal.errors import StepwellError
from stepwell.journal.metrics import context, log, set_context
from stepwell.journal.state import state
from stepwell.journal.values import shown
from stepwell.loggers import EmptyLogger, Logger
from stepwell.telemetry.identity import config_to_dict
from stepwell.telemetry.place import Place, find_place
from stepwell.telemetry.run import active_run
from stepwell.telemetry.start import init
from stepwell.training import (
    application,
    checkpoint_save,
    data_loading,
    dataloader_init,
    distributed_init,
    model_backward,
    model_forward,
    model_init,
    optimizer_init,
    optimizer_update,
    training_iteration,
    training_loop,
    validation_iteration,
    validation_loop,
    zero_grad,
)

STRATEGIES = (None, "ddp")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
LOSSES: dict[str, Callable[..., Tensor]] = {
    "bce": nn.functional.binary_cross_entropy_with_logits,
    "cross_entropy": nn.functional.cross_entropy,
    "l1": nn.functional.l1_loss,
    "mse": nn.functional.mse_loss,
    "nll": nn.functional.nll_loss,
}
NO_LAUNCH = Place(rank=0, world_size=1, local_rank=0, node_rank=0, launcher="single")


class TorchTrainer:
    """Trains a model on one process, or on all of those that torchrun starts.

    A run is recorded: the one that is active, else one of its own. The logger is created with the rank of
    this process and destroyed at the end, unless it was created before.

    To change what happens in a batch override ``loss_of``, for the whole of training ``train``; all
    attributes below are there by then.

    Args:
        config: a dict, Namespace or dataclass, logged as hyperparameters. Read from it: ``batch_size``
            (32, of each process), ``lr`` (0.001), ``optimizer`` (``"adam"``, ``"adamw"``, ``"sgd"``, or
            a function of the parameters), ``loss`` (``"cross_entropy"``, ``"mse"``, ``"l1"``, ``"bce"``,
            ``"nll"``, or a function of prediction and target), ``shuffle`` (True), ``num_workers`` (0),
            ``seed``, ``checkpoint_every`` (epochs; none are saved without it), ``checkpoint_dir``.
        epochs: how often to go through the training data.
        model: the model.
        strategy: ``"ddp"`` trains one model on all processes; with a single process it changes nothing.
        logger: any of ``stepwell.loggers``.

    Attributes:
        logger: as given; one that does nothing when none was.
        rank: of this process among all.
        world_size: number of processes.
        device: a GPU of its own for each process, else the CPU.
        optimizer: made by ``make_optimizer``.
        loss: a function of prediction and target.
        train_loader: batches to train on.
        validation_loader: batches to validate on, None when there are none.
    """

    train_loader: DataLoader[Any]
    validation_loader: DataLoader[Any] | None
    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        config: Any = None,
        epochs: int = 1,
        model: nn.Module | None = None,
        strategy: str | None = None,
        logger: Logger | None = None,
    ) -> None:
        if strategy not in STRATEGIES:
            raise StepwellError(f'strategy is {shown(strategy)}: write "ddp", or leave it out')
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise StepwellError(f"epochs is {shown(epochs)}: write a whole number from 1 on")
        if logger is not None and not isinstance(logger, Logger):
            raise StepwellError(f"logger is {shown(logger)}: write one of stepwell.loggers")
        try:
            self.config = config_to_dict(config)
        except TypeError as error:
            raise StepwellError(str(error)) from None
        self.epochs = epochs
        self.model = model
        self.strategy = strategy
        self.logger = logger or EmptyLogger()
        self.loss = _named("loss", LOSSES, self._setting("loss", "cross_entropy"))
        self._place = NO_LAUNCH
        self.device = torch.device("cpu")

    @property
    def rank(self) -> int:
        """The rank of this process among all."""
        return self._place.rank

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self._place.world_size

    @property
    def bare_model(self) -> nn.Module:
        """The model without what wraps it to be trained on several processes."""
        model = self._model
        return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model

    def execute(
        self, train_dataset: Dataset[Any], validation_dataset: Dataset[Any] | None = None
    ) -> nn.Module:
        """Train; returns the model."""
        self._place = find_place(os.environ)
        with self._recording(), application(), self._process_group():
            self._prepare(train_dataset, validation_dataset)
            with self._logging():
                self.logger.save_hyperparameters(self._hyperparameters())
                self.train()
        return self.bare_model

    # To be overridden

    def make_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of ``config``."""
        make = _named("optimizer", OPTIMIZERS, self._setting("optimizer", "adam"))
        rate = self._setting("lr", self._setting("optim_lr", 1e-3))
        parameters = self._model.parameters()
        made: torch.optim.Optimizer = (
            make(parameters, lr=rate) if make in OPTIMIZERS.values() else make(parameters)
        )
        return made

    def make_loader(self, dataset: Dataset[Any], shuffle: bool) -> DataLoader[Any]:
        """Batches of a dataset; with several processes, this one's share of it."""
        sampler: DistributedSampler[Any] | None = None
        if self._is_distributed:
            sampler = DistributedSampler(dataset, self.world_size, self.rank, shuffle=shuffle)
        return DataLoader(
            dataset,
            batch_size=int(self._setting("batch_size", 32)),
            shuffle=shuffle and sampler is None,
            sampler=sampler,
            num_workers=int(self._setting("num_workers", 0)),
        )

    def loss_of(self, batch: Any) -> Tensor:
        """The loss of one batch, which is a pair of inputs and targets, in training and validation."""
        inputs, targets = batch
        loss: Tensor = self.loss(self._model(inputs), targets)
        return loss

    def train(self) -> None:
        """Go through the data ``epochs`` times."""
        target = self.epochs * len(self.train_loader)
        every = self._setting("checkpoint_every", None)
        with training_loop(train_iterations_start=0, train_iterations_target_or_fn=target):
            for epoch in range(self.epochs):
                self.train_epoch(epoch)
                if self.validation_loader is not None:
                    self.validate(epoch)
                if every and (epoch + 1) % int(every) == 0:
                    self.save_checkpoint(epoch)

    def train_epoch(self, epoch: int) -> None:
        """Go through the training data once."""
        self._model.train()
        self._begin_epoch(epoch)
        total, count = torch.zeros((), device=self.device), len(self.train_loader)
        batches = iter(self.train_loader)
        for batch_idx in range(count):
            with data_loading():
                batch = self._to_device(next(batches))
            with training_iteration(samples=self.world_size * _length(batch)):
                with model_forward():
                    loss = self.loss_of(batch)
                with zero_grad():
                    self.optimizer.zero_grad()
                with model_backward():
                    loss.backward()  # type: ignore[no-untyped-call]
                with optimizer_update():
                    self.optimizer.step()
                total += loss.detach()
                # The run has the loss of every step; the logger has what its log_freq asks for.
                log({"loss": loss.detach()})
                self.logger.log(loss.detach(), "train/loss", batch_idx=batch_idx)
        self.logger.log(self._mean(total, count), "train/epoch_loss")

    @torch.no_grad()
    def validate(self, epoch: int) -> float:
        """The loss on the validation data, of all processes together."""
        assert self.validation_loader is not None
        self._model.eval()
        total, count = torch.zeros((), device=self.device), 0
        with validation_loop():
            for batch in self.validation_loader:
                with validation_iteration():
                    total += self.loss_of(self._to_device(batch))
                    count += 1
            mean = self._mean(total, count)
        log({"val_loss": mean})
        self.logger.log(mean, "val/loss")
        return mean

    def save_checkpoint(self, epoch: int) -> Path | None:
        """Save model and optimizer, on the first process; returns the file."""
        if self.rank != 0:
            return None
        path = Path(self._setting("checkpoint_dir", "checkpoints"), f"epoch-{epoch}.pt")
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"epoch": epoch, "model": self.bare_model.state_dict()}
        done = (epoch + 1) * len(self.train_loader)
        with checkpoint_save(done, path=path):
            torch.save({**whole, "optimizer": self.optimizer.state_dict()}, path)
        self.logger.log(path, f"checkpoints/epoch-{epoch}", kind="model")
        return path

    # Behind it

    @property
    def _model(self) -> nn.Module:
        if self.model is None:
            raise StepwellError(
                f"{type(self).__name__} has no model: write model=… when it is made"
            )
        return self.model

    @property
    def _is_distributed(self) -> bool:
        return self.strategy == "ddp" and self.world_size > 1

    def _setting(self, name: str, default: Any) -> Any:
        found = self.config.get(name)
        return default if found is None else found

    def _hyperparameters(self) -> dict[str, Any]:
        about = {"epochs": self.epochs, "strategy": self.strategy, "world_size": self.world_size}
        return {**self.config, **about}

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        """In a run: the active one, or one that ends with this."""
        if active_run() is not None:
            yield
            return
        with init(self.logger._application({}), config=self._hyperparameters()):
            yield

    @contextlib.contextmanager
    def _logging(self) -> Iterator[None]:
        if self.logger.is_initialized:
            yield
            return
        with self.logger.start_logging(rank=self.rank):
            yield

    @contextlib.contextmanager
    def _process_group(self) -> Iterator[None]:
        """Among all processes of the launch, if there are several and they are to train together."""
        has_gpu = torch.cuda.is_available()
        if has_gpu:
            torch.cuda.set_device(self._place.local_rank % torch.cuda.device_count())
        self.device = torch.device("cuda", torch.cuda.current_device()) if has_gpu else self.device
        is_ours = self._is_distributed and not dist.is_initialized()
        if is_ours:
            with distributed_init():
                _join("nccl" if has_gpu else "gloo")
        try:
            yield
        finally:
            if is_ours:
                # What wraps the model talks to this group.
                self.model = None if self.model is None else self.bare_model
                dist.destroy_process_group()

    def _prepare(self, train: Dataset[Any], validation: Dataset[Any] | None) -> None:
        if self.config.get("seed") is not None:
            torch.manual_seed(int(self.config["seed"]))
        with model_init():
            self.model = self._model.to(self.device)
            if self._is_distributed and self.bare_model is self.model:
                self.model = nn.parallel.DistributedDataParallel(self.model)
        with optimizer_init():
            self.optimizer = self.make_optimizer()
        with dataloader_init():
            self.train_loader = self.make_loader(train, bool(self._setting("shuffle", True)))
            self.validation_loader = (
                None if validation is None else self.make_loader(validation, shuffle=False)
            )

    def _begin_epoch(self, epoch: int) -> None:
        if state.enabled:
            set_context(context.step, epoch)
        if isinstance(self.train_loader.sampler, DistributedSampler):
            self.train_loader.sampler.set_epoch(epoch)

    def _mean(self, total: Tensor, count: int) -> float:
        """The mean of what all processes have added up."""
        both = torch.stack([total, torch.tensor(float(count), device=total.device)])
        if self._is_distributed:
            dist.all_reduce(both)
        return float(both[0] / both[1]) if both[1] else float("nan")

    def _to_device(self, batch: Any) -> Any:
        if isinstance(batch, Tensor):
            return batch.to(self.device, non_blocking=True)
        if isinstance(batch, dict):
            return {name: self._to_device(one) for name, one in batch.items()}
        if isinstance(batch, list | tuple):
            return [self._to_device(one) for one in batch]
        return batch


_joined = itertools.count()


def _join(backend: str) -> None:
    """Form a group with the other processes, also when there was one before."""
    number = next(_joined)
    if not number:
        dist.init_process_group(backend)
        return
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    # Below other keys: those of the earlier group still lead to its connections.
    store, rank, world_size = next(rendezvous("env://"))
    prefixed = PrefixStore(f"stepwell-{number}", store)
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=world_size)


def _named(what: str, known: dict[str, Any], given: Any) -> Any:
    """What a name stands for; a function stands for itself."""
    if callable(given):
        return given
    if given not in known:
        raise StepwellError(
            f"config has {what}={shown(given)}: write one of {', '.join(known)}, or a function"
        )
    return known[given]


def _length(batch: Any) -> int:
    """Samples in a batch: the length of the first tensor in it."""
    while isinstance(batch, dict | list | tuple) and batch:
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return len(batch) if isinstance(batch, Sized) else 1
