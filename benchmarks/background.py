"""The cost of recording outside the training thread: CPU time of the pump, and bytes on disk."""

from __future__ import annotations

import threading
import time

import stepwell
from benchmarks.floor import SPANS, Measured, floor_ns, summarize
from benchmarks.recording import recording
from benchmarks.row import Effort, Skipped

BLOCKS = 5
"""Blocks between two readings of the pump's clock, so that it seals several segments."""


def pump_cpu(effort: Effort) -> Measured:
    """CPU time of the pump per span, everything included that it does meanwhile."""
    with recording() as run:
        clock = _pump_clock()
        ratios, floors = [], []
        for i in range(max(3, effort.rounds // 3) + 1):
            floor = floor_ns()
            begin = time.clock_gettime_ns(clock)
            _record(BLOCKS * SPANS)
            run.flush(60)
            cost = (time.clock_gettime_ns(clock) - begin) / (BLOCKS * SPANS)
            if i:
                ratios.append(cost / floor)
                floors.append(floor)
        return summarize(ratios, sum(floors) / len(floors))


def bytes_tight(effort: Effort) -> Measured:
    """Size of spans that follow each other as fast as they can."""
    with recording() as run:
        _record(3 * SPANS)
        run.finish()
        return _bytes_per_span(run, 3 * SPANS)


def bytes_matmul(effort: Effort) -> Measured:
    """Size of the spans of a small real computation."""
    import numpy as np

    steps = 1000 * effort.rounds
    rng = np.random.default_rng(0)
    x, w = rng.random((64, 96)), rng.random((96, 96))
    with recording() as run:
        for step in range(steps):
            run.set_step(step)
            with run.span("step"):
                with run.span("forward"):
                    y = np.tanh(x @ w)
                with run.span("backward"):
                    gradient = x.T @ (y * (1 - y * y))
                with run.span("update"):
                    w -= 1e-3 * gradient
        run.finish()
        return _bytes_per_span(run, 4 * steps)


def _record(count: int) -> None:
    forward = stepwell.span("forward")
    for _ in range(count):
        with forward:
            pass


def _pump_clock() -> int:
    if not hasattr(time, "pthread_getcpuclockid"):
        raise Skipped("threads have no CPU clock on this system")
    for thread in threading.enumerate():
        if thread.name == "stepwell-pump" and thread.ident is not None:
            return time.pthread_getcpuclockid(thread.ident)
    raise RuntimeError("no pump thread")


def _bytes_per_span(run: stepwell.Run, spans: int) -> Measured:
    size = sum(file.stat().st_size for file in run.path.rglob("spans-*.zst"))
    return summarize([size / spans])
