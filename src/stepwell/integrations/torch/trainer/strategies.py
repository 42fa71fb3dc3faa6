"""How a ``TorchTrainer`` trains: one process alone, or one model on all processes of the launch.

A trainer makes its own of a name; a program may make one itself and use it without a trainer.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from stepwell.journal.errors import StepwellError
from stepwell.journal.values import shown
from stepwell.telemetry.place import find_place
from stepwell.training import distributed_init

UNSUPPORTED = ("deepspeed", "horovod")


class TorchDistributedStrategy:
    """What all strategies have. This one is a process by itself."""

    name: ClassVar[str] = "non-distributed"
    is_distributed: ClassVar[bool] = False

    def __init__(self) -> None:
        self.is_initialized = False

    def init(self) -> None:
        """Choose the GPU of this process, if there are any."""
        if torch.cuda.is_available():
            torch.cuda.set_device(self.local_rank() % torch.cuda.device_count())
        self.is_initialized = True

    def clean_up(self) -> None:
        """Give back what ``init`` took. To do so twice is harmless."""
        self.is_initialized = False

    def device(self) -> str:
        """Return the device of this process, such as ``"cuda:0"`` or ``"cpu"``."""
        return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"

    def global_rank(self) -> int:
        """Return the rank of this process among those that train together."""
        return 0

    def local_rank(self) -> int:
        """Return the rank of this process on its machine."""
        return find_place(os.environ).local_rank

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
        """Return model, optimizer and scheduler, the model on its device and ready for training."""
        return model.to(self.device()), optimizer, lr_scheduler

    def create_dataloader(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        **options: Any,
    ) -> DataLoader[Any]:
        """Return a DataLoader of this process's share of the data; ``options`` as for a DataLoader."""
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
    """A process by itself."""


class TorchDDPStrategy(TorchDistributedStrategy):
    """One model on all processes of the launch, with DistributedDataParallel.

    Args:
        backend: of torch.distributed; ``"gloo"`` in place of ``"nccl"`` where there is no GPU.
    """

    name = "ddp"
    is_distributed = True

    def __init__(self, backend: str = "nccl") -> None:
        super().__init__()
        self.backend = backend
        self._owns_group = False

    def init(self) -> None:
        """Join the other processes, unless this process has joined them before."""
        super().init()
        if not dist.is_initialized():
            needs_gpu = self.backend == "nccl" and not torch.cuda.is_available()
            with distributed_init():
                _join("gloo" if needs_gpu else self.backend)
            self._owns_group = True

    def clean_up(self) -> None:
        """Leave the other processes, if ``init`` has joined them."""
        super().clean_up()
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False

    def global_rank(self) -> int:
        """Return the rank of this process among all."""
        return find_place(os.environ).rank

    def global_world_size(self) -> int:
        """Return the number of processes."""
        return find_place(os.environ).world_size

    def local_world_size(self) -> int:
        """Return the number of processes on this machine, as the launcher says."""
        return int(os.environ.get("LOCAL_WORLD_SIZE") or self.global_world_size())

    def distributed(
        self, model: nn.Module, optimizer: Any = None, lr_scheduler: Any = None, **options: Any
    ) -> tuple[nn.Module, Any, Any]:
        """Return them with the model wrapped; ``options`` are those of DistributedDataParallel."""
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
    """A name to ask for with isinstance, which holds for no strategy here."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise StepwellError(
            f"{type(self).__name__} is not available: train several processes with "
            'TorchDDPStrategy, or strategy="ddp"'
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
    """Return a strategy by its name, or as it is given; StepwellError if it cannot be used here.

    A launch of a single process trains by itself, whatever the name.
    """
    if isinstance(given, TorchDistributedStrategy):
        return given
    if given not in (None, "ddp", *UNSUPPORTED):
        raise StepwellError(f'strategy is {shown(given)}: write "ddp", or None')
    if given is None or find_place(os.environ).world_size == 1:
        return NonDistributedStrategy()
    if given in UNSUPPORTED:
        raise StepwellError(
            f'strategy is "{given}", which cannot train several processes here: write "ddp"'
        )
    return TorchDDPStrategy(backend)


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
