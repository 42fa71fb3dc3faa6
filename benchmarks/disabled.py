"""The same calls while nothing records: the cost of telemetry that is switched off."""

from __future__ import annotations

import stepwell
from benchmarks.floor import Measured, compare
from benchmarks.row import Effort


def reused(effort: Effort) -> Measured:
    forward = stepwell.span("forward")

    def block(count: int) -> None:
        for _ in range(count):
            with forward:
                pass

    return compare(block, rounds=effort.rounds)


def named(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for _ in range(count):
            with stepwell.span("forward"):
                pass

    return compare(block, rounds=effort.rounds)


def attributes(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            with stepwell.span("forward", batch=i, split="train"):
                pass

    return compare(block, rounds=effort.rounds)


def log(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            stepwell.log({"loss": i / 3})

    return compare(block, rounds=effort.rounds)
