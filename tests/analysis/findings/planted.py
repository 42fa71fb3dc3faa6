"""A real training on a CPU with a fault planted in it; run as a program, alone or as one of several ranks.

python planted.py CASE

Its parts take as long as a clock says that is set forward by hand, the same on every machine.
"""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import stepwell
from tests.analysis.clocks import RankClock
from tests.analysis.findings.training import collect_garbage, noise

CASE = sys.argv[1]
STEPS = {"overfit": 300, "tenth": 300, "crash": 300}.get(CASE, 120)
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
CLOCK = RankClock()


def work(seconds: float, step: int) -> None:
    """Take so long, a few percent more or less."""
    CLOCK.advance(seconds * (1 + 0.03 * noise(2 * step + RANK)))


class Data(torch.utils.data.Dataset):
    """Random examples of four classes that can be learnt; some cases are slow to give them."""

    def __len__(self) -> int:
        return 64 * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index % 64 == 0:
            batch = index // 64
            work(0.0005, batch)
            if CASE == "slow-loader" or (CASE == "slow-rank-loader" and RANK == 1):
                CLOCK.advance(0.015)
            if CASE == "burst" and batch % 20 == 7:
                CLOCK.advance(0.3)
        x = torch.randn(64)
        x[index % 4] += 2
        return x, torch.tensor(index % 4)


class Model(torch.nn.Module):
    """A small network that is slow on one rank, or in every tenth step, if that is the case."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4)
        )
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        work(0.005, self.count)
        if CASE == "slow-rank-forward" and RANK == 1:
            CLOCK.advance(0.015)
        if CASE == "tenth" and self.count % 10 == 9:
            CLOCK.advance(0.025)
        result: torch.Tensor = self.layers(x)
        result.register_hook(lambda _, step=self.count: work(0.003, step))
        self.count += 1
        return result


class Optimizer(torch.optim.SGD):
    """One that takes its time, too."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        CLOCK.advance(0.001)
        return super().step(closure)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: torch.nn.Module = Model()
    if WORLD > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
        CLOCK.follow(model)
    optimizer = Optimizer(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Data(), batch_size=64)
    run = stepwell.init(CASE, dir=Path(os.environ["TEST_RUNS"]))
    with run, stepwell.watch(model, optimizer, loader, loss=CASE != "overfit"):
        for step, (x, y) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if CASE == "overfit":
                log_overfit(run, step)
            if CASE == "crash" and step == 150:
                raise ValueError("the batch of step 150 is broken")
            if CASE == "pauses" and step % 10 == 9:
                CLOCK.advance(0.2)
            hold_up(step)
    if WORLD > 1:
        torch.distributed.destroy_process_group()


def hold_up(step: int) -> None:
    """Work of one rank after a step, while the others continue until they need it."""
    if RANK == 0 and CASE.startswith("save") and step % 40 == 39:
        with stepwell.span("checkpoint"):
            CLOCK.advance(0.5)
    if CASE == "save-barrier" and step % 40 == 39:
        with stepwell.span("barrier"):
            CLOCK.meet()
    if RANK == 0 and CASE == "validate" and step % 40 == 39:
        with stepwell.span("validation"):
            CLOCK.advance(0.5)
    if RANK == 1 and CASE == "sleep" and step == 80:
        CLOCK.advance(20.0)
    if RANK == 1 and CASE == "sleeps" and step % 20 == 19:
        CLOCK.advance(0.2)
    if RANK == 1 and CASE == "upload" and step % 20 == 19:
        with stepwell.span("upload metrics"):
            CLOCK.advance(0.2)
    if RANK == 1 and CASE == "gc" and step % 20 == 19:
        collect_garbage(CLOCK, 0.2)
    if CASE == "everybody-saves" and step % 40 == 39:
        with stepwell.span("checkpoint"):
            CLOCK.advance(0.5)


def log_overfit(run: stepwell.Run, step: int) -> None:
    """Curves that part at step 120, as noisy as real ones."""
    noise = 0.02 * math.sin(12.9898 * step) * math.cos(78.233 * step)
    train = 0.25 + 2.0 * math.exp(-step / 70)
    val = 0.85 + 1.45 * math.exp(-step / 80) if step < 120 else 1.17 + 0.005 * (step - 120)
    run.log({"train/loss": train + noise, "val/loss": val + 2 * noise}, step=step)


with CLOCK:
    main()
