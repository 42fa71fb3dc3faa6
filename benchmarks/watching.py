"""The time that ``watch`` adds to a training step of about one millisecond.

Two trainings of the same kind take turns, one watched and one not, a few steps each: CPU time of the training
thread, and the median of the ratios. Other work on the machine shows here, since both find the caches full of
something else.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from statistics import median
from time import thread_time_ns
from typing import Any

from benchmarks.floor import Measured, summarize
from benchmarks.row import Effort

STEPS = 10
PAIRS = 20
"""For each round of the effort."""
TARGET_NS = 1_000_000


def watched(effort: Effort) -> Measured:
    """With everything that ``watch`` does by default."""
    import stepwell

    def switch_on(parts: tuple[Any, ...]) -> Callable[[], None]:
        return stepwell.watch(*parts).close

    return _added(switch_on, effort)


def annotated(effort: Effort) -> Measured:
    """With the spans alone."""
    import stepwell
    from stepwell.integrations.torch import annotate

    def switch_on(parts: tuple[Any, ...]) -> Callable[[], None]:
        stepwell.init()
        return annotate(*parts, transfers=False).remove

    return _added(switch_on, effort)


def _added(switch_on: Callable[[tuple[Any, ...]], Callable[[], None]], effort: Effort) -> Measured:
    import torch

    import stepwell

    torch.set_num_threads(1)
    width = usual_width()
    plain, ours = _parts(width), _parts(width)
    engine = torch.autograd._engine_run_backward
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        os.environ["STEPWELL_DIR"] = folder
        switch_off = switch_on(ours)
        patched = torch.autograd._engine_run_backward

        def without() -> int:
            torch.autograd._engine_run_backward = engine
            took = _time(plain)
            torch.autograd._engine_run_backward = patched
            return took

        pairs = [_pair(i, without, lambda: _time(ours)) for i in range(PAIRS * effort.rounds)]
        switch_off()
        stepwell.finish()
    pairs = pairs[PAIRS // 2 :]
    added = median(b - a for a, b in pairs) / STEPS / 1000
    step = median(a for a, _ in pairs) / STEPS / 1000
    ratios = [100 * (b / a - 1) for a, b in pairs]
    return summarize(ratios, note=f"{added:.0f} µs of {step:.0f} µs")


def _pair(i: int, first: Callable[[], int], second: Callable[[], int]) -> tuple[int, int]:
    if i % 2:
        return first(), second()
    then = second()
    return first(), then


class _Batches:
    def __init__(self, width: int) -> None:
        import torch

        self.batch = torch.rand(48, width), torch.randint(0, 10, (48,))

    def __iter__(self) -> Iterator[Any]:
        for _ in range(STEPS):
            yield self.batch


def _parts(width: int) -> tuple[Any, ...]:
    import torch

    # A class of its own: that of a watched loader is changed.
    loader = type("Batches", (_Batches,), {"__iter__": _Batches.__iter__})(width)
    model = layers(width)
    return model, torch.optim.SGD(model.parameters(), lr=0.001), loader


def layers(width: int) -> Any:
    """The model that all variants train."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def _time(parts: tuple[Any, ...]) -> int:
    from torch.nn.functional import cross_entropy

    model, optimizer, loader = parts
    begin = thread_time_ns()
    for x, y in loader:
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return thread_time_ns() - begin


def usual_width() -> int:
    """So wide a model makes a step take about a millisecond here and now."""
    width = 96
    while width < 2048:
        parts = _parts(width)
        _time(parts)
        if min(_time(parts) for _ in range(5)) / STEPS >= TARGET_NS:
            break
        width += 32
    return width
