"""Many spans in one process: its memory, and the cost of the last spans."""

from __future__ import annotations

import os
from statistics import median

import stepwell
from benchmarks.floor import SPANS, Measured, cpu_ns, floor_ns, summarize
from benchmarks.recording import recording
from benchmarks.row import Effort, Skipped


def memory(effort: Effort) -> Measured:
    """Growth of the resident memory at its peak over a million spans or ten, in MB."""
    floor_ns()
    with recording():
        before = _resident()
        peak = before
        for _ in range(effort.long_spans // SPANS):
            _block(SPANS)
            peak = max(peak, _resident())
        return summarize([(peak - before) / 1e6], note=_how_many(effort))


def cost(effort: Effort) -> Measured:
    """Cost of a span in the last tenth (of a million: the last half), relative to the first one."""
    blocks = effort.long_spans // SPANS
    # With a floor in between, so that a core that changes its speed is not taken for growth.
    edge = max(5, blocks // 10)
    with recording():
        _block(SPANS)
        first = [_relative_cost() for _ in range(edge)]
        for _ in range(blocks - 2 * edge):
            _block(SPANS)
        last = [_relative_cost() for _ in range(edge)]
    return summarize([median(last) / median(first)], note=_how_many(effort))


def _how_many(effort: Effort) -> str:
    return f"{effort.long_spans // 1_000_000} M"


def _block(count: int) -> None:
    for _ in range(count):
        with stepwell.span("forward"):
            pass


def _relative_cost() -> float:
    floor = floor_ns()
    return cpu_ns(_block, SPANS) / floor


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        raise Skipped("resident memory is read from /proc") from None
