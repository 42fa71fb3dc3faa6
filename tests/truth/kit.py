"""What the scripts of cases share: a small network, its data, a clock and a side channel for the truth.

A script takes its time with ``sleep``. In tests that sets a clock forward, the one that stepwell reads, so
that times are exact and nothing waits. With ``TRUTH_CLOCK=real`` it sleeps.

The side channel knows nothing of stepwell: a stopwatch, and a file with a line for each step.
"""

# Annotations are no strings here: PyTorch looks at those of hooks.
import json
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import stepwell
from tests.analysis.clocks import RankClock
from tests.analysis.findings.training import noise

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
CLASSES = 4
FEATURES = 16
BATCH = 16


# Time


class Time:
    """The clock of a script: one that is set forward by hand, or the real one."""

    def __init__(self) -> None:
        self.virtual: RankClock | None = None
        self._sleeps = 0

    def use_virtual(self) -> None:
        """Let no time pass but by ``sleep``. Ranks that meet wait for the latest one."""
        self.virtual = RankClock()
        self.virtual.__enter__()
        if WORLD > 1:
            for name in ("barrier", "all_reduce"):
                vars(torch.distributed)[name] = self._meeting(vars(torch.distributed)[name])

    def _meeting(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        def meet(*args: Any, **kwargs: Any) -> Any:
            result = collective(*args, **kwargs)
            assert self.virtual is not None
            self.virtual.meet()
            return result

        return meet

    def sleep(self, seconds: float) -> None:
        """Take this long, a few percent more or less."""
        self._sleeps += 1
        seconds *= 1 + 0.03 * noise(3 * self._sleeps + RANK)
        if self.virtual is None:
            time.sleep(seconds)
        else:
            self.virtual.advance(seconds)

    def now(self) -> float:
        """Return seconds of this clock."""
        return time.perf_counter() if self.virtual is None else self.virtual.time


clock = Time()
sleep = clock.sleep


# The side channel


class Truth:
    """Writes down what happens, one line for each step, so that a kill loses nothing."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._lap = 0.0
        self._begin = 0.0
        self.steps = self.epochs = self.samples = 0
        self.elapsed = 0.0
        self.seconds: dict[str, float] = {}

    def open(self, path: Path) -> None:
        """Write into this file from now on."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def begin(self) -> None:
        """Start the stopwatch: training begins."""
        self._begin = self._lap = clock.now()

    def lap(self, phase: str | None = None) -> None:
        """Give the time since the last lap to a phase, or to none."""
        now = clock.now()
        if phase is not None:
            self.add(phase, now - self._lap)
        self._lap = now

    def add(self, phase: str, seconds: float) -> None:
        """Give time that was measured elsewhere to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def epoch(self) -> None:
        """Note that an epoch begins."""
        self.epochs += 1

    def step(self, loss: Tensor | float | None = None, samples: int = 0) -> None:
        """Note that a step has ended, with its loss."""
        self.steps += 1
        self.samples += samples
        self.elapsed = clock.now() - self._begin
        self.write(loss=None if loss is None else _number(loss))
        # What the side channel takes itself belongs to no phase.
        self.lap()

    def write(self, **values: Any) -> None:
        """Write a line with the facts so far and these values."""
        line = {
            "steps": self.steps,
            "epochs": self.epochs,
            "samples": self.samples,
            "seconds": self.seconds,
            "elapsed": self.elapsed,
            **values,
        }
        assert self._file is not None
        os.write(self._file, (json.dumps(line) + "\n").encode())


def _number(loss: Tensor | float) -> float:
    return float(loss.detach()) if isinstance(loss, Tensor) else loss


truth = Truth()
lap = truth.lap


# Model, data, optimizer


class Net(nn.Module):
    """A small classifier with given durations of its passes."""

    def __init__(
        self, forward: float = 0.02, backward: float = 0.02, dropout: float = 0.0, width: int = 32
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(width, CLASSES)
        self.forward_seconds, self.backward_seconds = forward, backward

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        sleep(self.forward_seconds)
        logits: Tensor = self.head(self.body(x))
        if logits.requires_grad:
            logits.register_hook(self._pass_back)
        return logits

    def _pass_back(self, gradient: Tensor) -> None:
        sleep(self.backward_seconds)


class SlowSGD(torch.optim.SGD):
    """SGD that takes 5 ms."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do a step."""
        loss = super().step(closure)
        sleep(0.005)
        return loss


class SGD(SlowSGD):
    """The same, with a stopwatch that gives its time to the optimizer; hooks are not part of it."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do a step."""
        lap()
        loss = super().step(closure)
        lap("optimizer")
        return loss


class Examples(Dataset[tuple[Tensor, Tensor]]):
    """Points and the class of each, which a linear function decides. A batch takes a few milliseconds."""

    def __init__(self, count: int, seconds: float = 0.004, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        teacher = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(99))
        self.x = torch.randn(count, FEATURES, generator=generator)
        self.y = (self.x @ teacher).argmax(1)
        self.seconds = seconds
        self.is_held_out = seed > 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Return a batch."""
        sleep(self.seconds)
        return [self[index] for index in indices]


def batches(count: int, seconds: float = 0.004, **options: Any) -> DataLoader[Any]:
    """Return a loader with this many batches of 16."""
    seed = options.pop("seed", 0)
    generator = torch.Generator().manual_seed(0)
    options = {"shuffle": True, "generator": generator, "batch_size": BATCH, **options}
    return DataLoader(Examples(count * BATCH, seconds, seed), **options)


def time_loaders() -> None:
    """Have PyTorch's loaders measure how long each batch of the training data takes.

    A trainer's callbacks cannot: between two steps the trainer does a good deal of its own.
    """
    fetch = _BaseDataLoaderIter.__next__

    def fetch_timed(self: Any) -> Any:
        began = clock.now()
        try:
            return fetch(self)
        finally:
            if not self._dataset.is_held_out:
                truth.add("data", clock.now() - began)

    _BaseDataLoaderIter.__next__ = fetch_timed  # type: ignore[method-assign]


class Slow:
    """Something that takes its time to be saved."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __getstate__(self) -> dict[str, float]:
        sleep(self.seconds)
        return {"seconds": self.seconds}


def train_batch(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Do a step of training as most loops do, with the stopwatch; return the loss."""
    logits = model(x)
    lap("forward")
    loss = cross_entropy(logits, y)
    optimizer.zero_grad()
    lap()
    try:
        loss.backward()
    finally:
        lap("backward")
    optimizer.step()
    lap()
    truth.step(loss, len(x))
    return loss


def evaluate(model: nn.Module, loader: DataLoader[Any]) -> float:
    """Return the mean loss over a loader, as most loops do, with the stopwatch."""
    lap()
    model.eval()
    with torch.no_grad():
        losses = [float(cross_entropy(model(x), y)) for x, y in loader]
    model.train()
    lap("validation")
    return math.fsum(losses) / len(losses)


# Ranks and ends


def distributed(model: nn.Module) -> DistributedDataParallel:
    """Return the model for training in all ranks."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    wrapped = DistributedDataParallel(model)
    if clock.virtual is not None:
        clock.virtual.follow(wrapped)
    return wrapped


def kill() -> None:
    """End this process as ``kill -9`` does."""
    truth.write()
    os.kill(os.getpid(), signal.SIGKILL)


def press_control_c() -> None:
    """Send this process what Ctrl-C sends."""
    os.kill(os.getpid(), signal.SIGINT)


def hang(phase: str) -> None:
    """Do nothing for a minute, in this phase; then be killed."""
    sleep(60)
    lap(phase)
    stepwell.flush()
    kill()
