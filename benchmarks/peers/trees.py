"""dftracer's `ai` tree, in the same uses as ours, and the size of its trace of the same training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.floor import SPANS, Block, Measured, compare, summarize
from benchmarks.recording import recording
from benchmarks.row import Effort

STEPS = 26_000
"""Steps of the training whose traces are compared: over 100,000 spans."""


def decorated(effort: Effort) -> Measured:
    def make(ai: Any) -> Block:
        @ai.compute.forward
        def forward() -> None:
            pass

        def block(count: int) -> None:
            for _ in range(count):
                forward()

        return block

    return _compare(make, effort)


def arguments(effort: Effort) -> Measured:
    def make(ai: Any) -> Block:
        def block(count: int) -> None:
            for i in range(count):
                with ai.compute.forward(args={"batch": i, "size": 32, "split": "train"}):
                    pass

        return block

    return _compare(make, effort)


def update(effort: Effort) -> Measured:
    def make(ai: Any) -> Block:
        def block(count: int) -> None:
            for i in range(count):
                ai.compute.forward.update(epoch=1, step=i, args={"size": 32})
                with ai.compute.forward:
                    pass

        return block

    return _compare(make, effort)


def iterate(effort: Effort) -> Measured:
    def make(ai: Any) -> Block:
        def block(count: int) -> None:
            for _ in ai.dataloader.fetch.iter(range(count)):
                pass

        return block

    return _compare(make, effort)


def size(effort: Effort) -> Measured:
    """The sealed run folder as a multiple of dftracer's packed trace of the same training."""
    from dftracer.python import ai as theirs

    from stepwell import ai as ours

    log = _tracer()
    _train(theirs)
    log.finalize()
    packed = sum(file.stat().st_size for file in Path.cwd().glob("trace*.gz"))
    with recording() as run:
        _train(ours)
        run.finish()
        folder = sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file())
    return summarize([folder / packed], note=f"{4 * STEPS:,} spans, {folder / 1e6:.1f} MB")


def _train(ai: Any) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    x, w = rng.random((64, 96)), rng.random((96, 96))
    for step in range(STEPS):
        ai.update(step=step, epoch=step // 1000)
        with ai.compute:
            with ai.compute.forward:
                y = np.tanh(x @ w)
            with ai.compute.backward:
                gradient = x.T @ (y * (1 - y * y))
            with ai.compute.step:
                w -= 1e-3 * gradient


def _compare(make: Callable[[Any], Block], effort: Effort) -> Measured:
    from dftracer.python import ai

    log = _tracer()
    measured = compare(make(ai), rounds=effort.rounds, count=SPANS // 10)
    log.finalize()
    return measured


def _tracer() -> Any:
    from dftracer.python import dftracer

    return dftracer.initialize_log(logfile=str(Path("trace").absolute()), data_dir="data")
