"""Loggers: what ``log()`` of a metric through three of them together costs the training thread.

Nothing is delivered here: that happens in processes of their own, whose time is none of this thread's. What
they take from a training loop in wall time is measured elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.floor import Measured, compare
from benchmarks.recording import recording
from benchmarks.row import Effort
from stepwell.loggers import Logger, LoggersCollection, MLFlowLogger, TensorBoardLogger, WandBLogger
from stepwell.loggers.frequency import LogFreq


class MLFlow(MLFlowLogger):
    backend_class = ""


class TensorBoard(TensorBoardLogger):
    backend_class = ""


class WandB(WandBLogger):
    backend_class = ""


@contextmanager
def _logging(*log_freqs: LogFreq) -> Iterator[Logger]:
    """All three, each with its own frequency."""
    first, second, third = log_freqs
    members = [MLFlow(log_freq=first), TensorBoard(log_freq=second), WandB(log_freq=third)]
    with recording(), LoggersCollection(members).start_logging() as logger:
        yield logger


def three(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            logger.log(i / 3, "loss", batch_idx=i)

    with _logging("batch", "batch", "batch") as logger:
        return compare(block, rounds=effort.rounds)


def keywords(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            logger.log(item=i / 3, identifier="loss", kind="metric", step=i, batch_idx=i)

    with _logging("batch", "batch", "batch") as logger:
        return compare(block, rounds=effort.rounds)


def bare(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            logger.log(i / 3, "loss")

    with _logging("epoch", "epoch", "epoch") as logger:
        return compare(block, rounds=effort.rounds)


def each_its_own(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            logger.log(i / 3, "loss", batch_idx=i)

    with _logging(1, 10, 100) as logger:
        return compare(block, rounds=effort.rounds)


def rare(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            logger.log(i / 3, "loss", batch_idx=i)

    with _logging(100, 100, 100) as logger:
        return compare(block, rounds=effort.rounds)
