"""Scalars: ``run.log`` with the current step, with an explicit one, and without any."""

from __future__ import annotations

from benchmarks.floor import Measured, compare
from benchmarks.recording import recording
from benchmarks.row import Effort

TEN = 10_000
"""Calls with ten scalars each in a block."""


def one(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            run.log({"loss": i / 3})

    with recording() as run:
        run.set_step(7)
        return compare(block, rounds=effort.rounds)


def one_with_step(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            run.log({"loss": i / 3}, step=i)

    with recording() as run:
        return compare(block, rounds=effort.rounds)


def one_without_step(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            run.log({"loss": i / 3})

    with recording() as run:
        return compare(block, rounds=effort.rounds)


def ten(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            x = i / 3
            run.log(
                {
                    "loss": x,
                    "accuracy": x,
                    "lr": x,
                    "grad_norm": x,
                    "weight_norm": x,
                    "tokens": x,
                    "throughput": x,
                    "memory": x,
                    "scale": x,
                    "epoch": x,
                }
            )

    with recording() as run:
        run.set_step(7)
        return compare(block, rounds=effort.rounds, count=TEN)
