"""Strategies of a ``TorchTrainer``: one process, or one model on all processes of the launch.

Also the helpers that depend on devices and processes: moving batches, and means over all processes. A
strategy can be used without a trainer.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from stepwell._core.errors import StepwellError
from stepwell._core.values import shown
from stepwell.telemetry.rank_info import find_rank_info
from stepwell.training import distributed_init

UNSUPPORTED = ("deepspeed", "horovod")


class TorchDistributedStrategy:
    """The base class of all strategies: a single process."""

    name: ClassVar[str] = "non-distributed"
    is_distributed: ClassVar[bool] = False

    def __init__(self) -> None:
        self.is_initialized = False

    def init(self) -> None:
        """Select the GPU of this process, if there is one."""
        if torch.cuda.is_available():
            torch.cuda.set_device(self.local_rank() % torch.cuda.device_count())
        self.is_initialized = True

    def clean_up(self) -> None:
        """Undo ``init``. A second call does nothing."""
        self.is_initialized = False

    def device(self) -> str:
        """Return the device of this process, such as ``"cuda:0"`` or ``"cpu"``."""
        return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"

    def global_rank(self) -> int:
        """Return the rank of this process among those that train together."""
        return 0

    def local_rank(self) -> int:
        """Return the rank of this process on its machine."""
        return find_rank_info(os.environ).local_rank

    def global_world_size(self) -> int:
        """Return the number of processes that train together."""
        return 1

    def local_world_size(self) -> int:
        """Return the number of processes on this machine that train together."""
        return 1

    @property
    def is_main_worker(self) -> bool:
        """Whether this is the first of the processes that train together."""
        return self.global_rank() == 0

    def distributed(
        self, model: nn.Module, optimizer: Any = None, lr_scheduler: Any = None, **options: Any
    ) -> tuple[nn.Module, Any, Any]:
        """Return model, optimizer and scheduler, with the model on its device and ready for training."""
        return model.to(self.device()), optimizer, lr_scheduler

    def create_dataloader(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        **options: Any,
    ) -> DataLoader[Any]:
        """Return a DataLoader of this process's share of the data; ``options`` are those of DataLoader."""
        if options.get("sampler") is None and options.get("batch_sampler") is None:
            sampler = self._sampler(dataset, bool(shuffle))
            if sampler is not None:
                options["sampler"], shuffle = sampler, None
        return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle or None, **options)

    def _sampler(self, dataset: Dataset[Any], shuffle: bool) -> DistributedSampler[Any] | None:
        return None

    def gather(self, tensor: Tensor, dst_rank: int = 0) -> list[Tensor] | None:
        """Return the tensors of all processes on this one, None on the others."""
        return self.gather_obj(tensor.detach().cpu(), dst_rank)

    def gather_obj(self, obj: Any, dst_rank: int = 0) -> list[Any] | None:
        """Return the objects of all processes on this one, None on the others."""
        objects = self.allgather_obj(obj)
        return objects if self.global_rank() == dst_rank else None

    def allgather_obj(self, obj: Any) -> list[Any]:
        """Return the objects of all processes."""
        return [obj]

    def broadcast_obj(self, obj: Any, src_rank: int = 0) -> Any:
        """Return the object of this process on all."""
        return self.allgather_obj(obj)[src_rank]


class NonDistributedStrategy(TorchDistributedStrategy):
    """A single process."""


class TorchDDPStrategy(TorchDistributedStrategy):
    """One model on all processes of the launch, with DistributedDataParallel.

    Args:
        backend: backend of torch.distributed; ``"gloo"`` replaces ``"nccl"`` without a GPU.
    """

    name = "ddp"
    is_distributed = True

    def __init__(self, backend: str = "nccl") -> None:
        super().__init__()
        self.backend = backend
        self._owns_group = False

    def init(self) -> None:
        """Join the process group, unless this process is in one already."""
        super().init()
        if not dist.is_initialized():
            needs_gpu = self.backend == "nccl" and not torch.cuda.is_available()
            with distributed_init():
                _join("gloo" if needs_gpu else self.backend)
            self._owns_group = True

    def clean_up(self) -> None:
        """Leave the process group, if ``init`` has joined it."""
        super().clean_up()
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False

    def global_rank(self) -> int:
        """Return the rank of this process among all."""
        return find_rank_info(os.environ).rank

    def global_world_size(self) -> int:
        """Return the number of processes."""
        return find_rank_info(os.environ).world_size

    def local_world_size(self) -> int:
        """Return the number of processes on this machine, as the launcher says."""
        return int(os.environ.get("LOCAL_WORLD_SIZE") or self.global_world_size())

    def distributed(
        self, model: nn.Module, optimizer: Any = None, lr_scheduler: Any = None, **options: Any
    ) -> tuple[nn.Module, Any, Any]:
        """Return model, optimizer and scheduler, with the model wrapped in DistributedDataParallel.

        ``options`` are those of DistributedDataParallel.
        """
        if not isinstance(model, nn.parallel.DistributedDataParallel):
            model = nn.parallel.DistributedDataParallel(model.to(self.device()), **options)
        return model, optimizer, lr_scheduler

    def _sampler(self, dataset: Dataset[Any], shuffle: bool) -> DistributedSampler[Any] | None:
        if isinstance(dataset, IterableDataset):
            return None
        return DistributedSampler(
            dataset, self.global_world_size(), self.global_rank(), shuffle=shuffle
        )

    def allgather_obj(self, obj: Any) -> list[Any]:
        """Return the objects of all processes."""
        objects: list[Any] = [None] * self.global_world_size()
        dist.all_gather_object(objects, obj)
        return objects


class _Unsupported(TorchDistributedStrategy):
    """A class for isinstance checks in code for itwinai. It cannot be instantiated."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise StepwellError(
            f"{type(self).__name__} is not available: train on several processes with "
            'TorchDDPStrategy or strategy="ddp"'
        )


class DeepSpeedStrategy(_Unsupported):
    """Not available."""


class HorovodStrategy(_Unsupported):
    """Not available."""


class RayTorchDistributedStrategy(_Unsupported):
    """Not available."""


class RayDDPStrategy(RayTorchDistributedStrategy):
    """Not available."""


class RayDeepSpeedStrategy(RayTorchDistributedStrategy):
    """Not available."""


def find_strategy(given: Any, backend: str) -> TorchDistributedStrategy:
    """Return a strategy by its name, or the given strategy. Raise StepwellError if it is not supported.

    With a single process, every name means ``NonDistributedStrategy``.
    """
    if isinstance(given, TorchDistributedStrategy):
        return given
    if given not in (None, "ddp", *UNSUPPORTED):
        raise StepwellError(f'strategy must be "ddp" or None, got {shown(given)}')
    if given is None or find_rank_info(os.environ).world_size == 1:
        return NonDistributedStrategy()
    if given in UNSUPPORTED:
        raise StepwellError(
            f'strategy "{given}" is not supported with several processes: use strategy="ddp"'
        )
    return TorchDDPStrategy(backend)


_joined = itertools.count()


def _join(backend: str) -> None:
    """Initialize the process group, even if there was one before."""
    number = next(_joined)
    if not number:
        dist.init_process_group(backend)
        return
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    # With a new prefix: the keys of the earlier group still refer to its connections.
    store, rank, world_size = next(rendezvous("env://"))
    prefixed = PrefixStore(f"stepwell-{number}", store)
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=world_size)


# Batches and means

LOSS = ""
"""The name of the loss in ``EpochMeans``: no metric can have it."""


class EpochMeans:
    """Sums of the losses and metrics of an epoch's batches, on their device."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def add(self, returned: Any) -> Tensor:
        """Add the result of a step: a loss, or a loss and its metrics. Return the loss."""
        pair = returned if isinstance(returned, tuple | list) else (returned, None)
        if len(pair) != 2:
            raise StepwellError(
                f"A step must return the loss, or the loss and a dict of metrics, got {len(pair)} values. "
                "To return something else, override the method of the epoch too."
            )
        loss = torch.as_tensor(pair[0]).detach()
        for name, value in {LOSS: loss, **(pair[1] or {})}.items():
            number = torch.as_tensor(value).detach()
            if number.numel() == 1:
                self._sums[name] = self._sums.get(name, 0.0) + number.double().reshape(())
                self._counts[name] += 1
        return loss

    def over_all(self, strategy: TorchDistributedStrategy) -> dict[str, float]:
        """Return the means over all processes."""
        own = {name: (float(total), self._counts[name]) for name, total in self._sums.items()}
        everyone = strategy.allgather_obj(own)
        means: dict[str, float] = {}
        for name in dict.fromkeys(itertools.chain(*everyone)):
            pairs = [sums[name] for sums in everyone if name in sums]
            means[name] = sum(total for total, _ in pairs) / sum(count for _, count in pairs)
        return means


def move(value: Any, device: str) -> Any:
    """Return a batch, or any object with a method ``to``, on a device."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: move(item, device) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [move(item, device) for item in value]
    return value.to(device) if hasattr(value, "to") else value


def count_batches(loader: Any) -> int | None:
    """Return the number of batches, None if the loader has no length."""
    try:
        return len(loader)
    except TypeError:
        return None
