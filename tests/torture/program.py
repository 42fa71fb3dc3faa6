"""The training that is tortured: two ranks, DataLoader workers, two trackers, and a book of its own.

The book is a file on another disk: after each step, when all calls to stepwell have returned, it gets what
was recorded and how long the calls took. It owes nothing to the code under test.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import stepwell
from stepwell._core.system import process_start
from stepwell.exporters.file import FileExporter
from stepwell.loggers import LoggersCollection, MLFlowLogger, TensorBoardLogger

SIZE = 8
BATCH = 4


class Data(Dataset[Any]):
    """Numbers that only depend on the index; workers record a span for each."""

    def __init__(self, steps: int) -> None:
        self.length = steps * BATCH

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with stepwell.span("item", i=index):
            x = torch.sin(torch.arange(SIZE, dtype=torch.float32) * (index + 1))
            return x, x.sum().reshape(1)


class Book:
    """Lines of JSON that are there as soon as they are written, whatever happens to the process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **entry: Any) -> None:
        os.write(self._fd, json.dumps(entry).encode() + b"\n")


def main(options: dict[str, Any]) -> None:
    """Train ``options["steps"]`` steps."""
    rank, attempt = int(os.environ["RANK"]), int(options["attempt"])
    book = Book(f"{options['book']}/rank-{rank}.attempt-{attempt}.jsonl")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(SIZE, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = stepwell.init("torture", dir=options["runs"])
    logger = _loggers(options) if rank == 0 else None
    run.add_exporter(FileExporter(f"{options['files']}/spans-{rank}-{attempt}.jsonl"))
    if "handler" in options:
        signal.signal(signal.SIGUSR1, _record_in_handler)
    pids = [getattr(one, "process_id", None) for one in run.exporters]
    # With their starts, because the numbers of processes are used again.
    sidecars = [[pid, process_start(pid)] for pid in pids if pid]
    book.write(pid=os.getpid(), sidecars=sidecars, run=str(run.path))
    loader = DataLoader(Data(options["steps"]), BATCH, num_workers=1)
    for step, (x, y) in enumerate(loader):
        _train_step(model, optimizer, x, y, step, logger, book, options)
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    began = time.monotonic()
    if logger is not None:
        logger.destroy_logger_context()
    run.finish()
    book.write(weights=hashlib.sha256(weights).hexdigest(), finish=time.monotonic() - began)


def _loggers(options: dict[str, Any]) -> LoggersCollection:
    members = [TensorBoardLogger(options["files"], log_freq="batch")]
    if options.get("mlflow"):
        to = {"tracking_uri": options["mlflow"], "experiment_name": options["experiment"]}
        members.append(MLFlowLogger(**to, log_freq="batch"))
    logger = LoggersCollection(members)
    logger.create_logger_context()
    return logger


def _train_step(
    model: Any,
    optimizer: Any,
    x: torch.Tensor,
    y: torch.Tensor,
    step: int,
    logger: Any,
    book: Book,
    options: dict[str, Any],
) -> None:
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == options.get("clock_at"):
        _step_clock(options["clock_by"])
    began = time.perf_counter()
    stepwell.set_step(step)
    with stepwell.span("step", i=step, text="x" * (step % 50)):
        stepwell.log({"loss": loss.item()}, step=step)
        stepwell.event("tick", i=step)
        if logger is not None:
            logger.log(step / 2, "count", step=step, batch_idx=step)
    book.write(step=step, loss=loss.item(), took=time.perf_counter() - began)
    time.sleep(options["pause"])


def _record_in_handler(*_: object) -> None:
    with stepwell.span("handler", pid=os.getpid()):
        stepwell.event("handled")


def _step_clock(seconds: float) -> None:
    """Have the time of day jump, for this process."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
