"""Clocks for the ranks of a test, advanced by hand. A waiting rank takes over the other's time."""

# No postponed annotations here: PyTorch inspects those of the hook.
import gc

import torch
from torch.distributed import ReduceOp, all_reduce, get_world_size
from torch.nn.parallel import DistributedDataParallel

from stepwell.testing import FakeClock


class RankClock(FakeClock):
    """The clock of one rank. Its collectives are the original functions, so they record no spans.

    Garbage is not collected automatically: a collection that another thread has begun when the clock is
    advanced would take all of that time.
    """

    def __enter__(self) -> FakeClock:
        gc.disable()
        return super().__enter__()

    def meet(self) -> None:
        """Wait for the other ranks: all clocks are set to the latest one."""
        latest = torch.tensor([self.time], dtype=torch.float64)
        all_reduce(latest, ReduceOp.MAX)
        self.advance(latest.item() - self.time)

    def follow(self, model: DistributedDataParallel) -> None:
        """Synchronise with the other ranks where the backward pass of this model averages its gradients."""
        model.register_comm_hook(self, _average)


def _average(
    clock: RankClock, bucket: torch.distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    clock.meet()
    gradients = bucket.buffer()
    all_reduce(gradients)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(gradients / get_world_size())
    return future
