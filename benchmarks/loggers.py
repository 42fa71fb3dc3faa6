"""Loggers: the cost of ``log()`` of a metric with three loggers, in the training thread.

In the rows of CPU time nothing is delivered: that happens in processes of their own, whose time is none of
this thread's. What they take from a training loop in wall time, ``loop`` measures, with all of them at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.floor import Measured, compare, summarize
from benchmarks.recording import recording
from benchmarks.row import Effort
from stepwell.loggers import Logger, LoggersCollection, MLFlowLogger, TensorBoardLogger, WandBLogger
from stepwell.loggers.targets import LogFreq


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


STEP = 0.0015
"""Seconds of work in a step."""
STEPS = 800
"""Steps in a block, which is long enough for what it logs to be delivered meanwhile."""
PAIRS = 10
NAMES = [f"train/value-{i}" for i in range(10)]


def loop(effort: Effort) -> Measured:
    """How much longer, in percent, a loop takes that logs ten values in each step to all three.

    Blocks with and without take turns in one process, the backends' own processes running all the while;
    they deliver during a block, and what is left is waited for before the next one.
    """
    members = [
        MLFlowLogger(log_freq="batch"),
        TensorBoardLogger(log_freq="batch"),
        WandBLogger(log_freq="batch", offline_mode=True),
    ]
    work = _work()
    slower = []
    with recording(), LoggersCollection(members).start_logging() as logger:
        _block(work, logger)
        if not logger.flush(100):
            raise RuntimeError("the backends did not begin to deliver")
        for i in range(min(PAIRS, effort.rounds)):
            took = {}
            for logs in (True, False) if i % 2 else (False, True):
                took[logs] = _block(work, logger if logs else None)
                logger.flush(30)
            slower.append(100 * (took[True] / took[False] - 1))
    return summarize(slower)


def _block(work: Callable[[], object], logger: Logger | None) -> float:
    """Seconds for a block of steps."""
    begin = time.perf_counter()
    for step in range(STEPS):
        work()
        if logger is not None:
            for name in NAMES:
                logger.log(step / 3, name, batch_idx=step)
    return time.perf_counter() - begin


def _work() -> Callable[[], object]:
    """A computation on one core that takes as long as a step."""
    import numpy as np

    x = np.random.default_rng(0).random((96, 96))
    for _ in range(200):
        np.tanh(x @ x)
    # In CPU time: somebody else's load must not make the steps shorter.
    begin = time.thread_time()
    for _ in range(200):
        np.tanh(x @ x)
    times = max(1, round(STEP / ((time.thread_time() - begin) / 200)))

    def work() -> None:
        for _ in range(times):
            np.tanh(x @ x)

    return work
