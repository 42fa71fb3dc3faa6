"""Spans, as people write them."""

from __future__ import annotations

import asyncio

import stepwell
from benchmarks.floor import Measured, compare
from benchmarks.recording import recording
from benchmarks.row import Effort


def reused(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for _ in range(count):
            with forward:
                pass

    with recording():
        forward = stepwell.span("forward")
        return compare(block, rounds=effort.rounds)


def named(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for _ in range(count):
            with stepwell.span("forward"):
                pass

    with recording():
        return compare(block, rounds=effort.rounds)


def attributes(effort: Effort) -> Measured:
    def block(count: int) -> None:
        for i in range(count):
            with stepwell.span("forward", batch=i, split="train"):
                pass

    with recording():
        return compare(block, rounds=effort.rounds)


def in_task(effort: Effort) -> Measured:
    async def spans(count: int) -> None:
        for _ in range(count):
            with forward:
                pass

    def block(count: int) -> None:
        asyncio.run(spans(count))

    with recording():
        forward = stepwell.span("forward")
        return compare(block, rounds=effort.rounds)
