"""The floor: the minimum cost of a span in CPython, and measurements relative to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter_ns, thread_time_ns

SPANS = 100_000
"""Spans in a block of the floor. Its list grows to this size, which is part of its cost."""

Block = Callable[[int], object]
"""Does something this many times."""

Recorded = list[tuple[str, int, int]]


class FloorSpan:
    """A context manager as people write one by hand: two clock readings and an append."""

    __slots__ = ("name", "spans", "start")

    def __init__(self, name: str, spans: Recorded) -> None:
        self.name = name
        self.spans = spans

    def __enter__(self) -> FloorSpan:
        self.start = perf_counter_ns()
        return self

    def __exit__(self, *exc: object) -> None:
        self.spans.append((self.name, self.start, perf_counter_ns()))


@dataclass(frozen=True)
class Measured:
    """A row's value with its quartiles. ``floor_ns`` is the floor next to it, 0 if it has none."""

    value: float
    low: float
    high: float
    floor_ns: float = 0.0
    note: str = ""


def floor_block(count: int) -> None:
    spans: Recorded = []
    span = FloorSpan("forward", spans)
    for _ in range(count):
        with span:
            pass
    spans.clear()


def cpu_ns(block: Block, count: int) -> float:
    """CPU time of this thread for each of ``count`` operations."""
    begin = thread_time_ns()
    block(count)
    return (thread_time_ns() - begin) / count


def floor_ns() -> float:
    """What a span of the floor costs now."""
    return cpu_ns(floor_block, SPANS)


def compare(
    block: Block,
    *,
    rounds: int,
    count: int = SPANS,
    between: Callable[[], object] | None = None,
    note: str = "",
) -> Measured:
    """The cost of an operation as a multiple of the floor; the two take turns.

    ``between`` is called after each block, outside the measurement.
    """
    floors, ratios = [], []
    for i in range(rounds + 1):
        floor = floor_ns()
        cost = cpu_ns(block, count)
        if between is not None:
            between()
        if i:  # the first round warms up
            floors.append(floor)
            ratios.append(cost / floor)
    return summarize(ratios, median(floors), note)


def summarize(values: list[float], floor: float = 0.0, note: str = "") -> Measured:
    """Median and quartiles."""
    if len(values) < 2:
        return Measured(values[0], values[0], values[0], floor, note)
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Measured(middle, low, high, floor, note)
