"""Trainings for tests of rules: recorded as any other, by a clock that is set forward by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import stepwell
from stepwell.reading import RecordedRun
from stepwell.testing import FakeClock

Values = Callable[[int], Mapping[str, float]]
Times = Callable[[int], Mapping[str, float]]

PACE = {"wait for data": 0.001, "forward": 0.01, "backward": 0.02, "optimizer": 0.002}
"""Seconds of the parts of a healthy step."""


def noise(step: int) -> float:
    """Between -1 and 1, the same every time."""
    value = math.sin(12.9898 * (step + 1)) * 43758.5453
    return 2 * (value - math.floor(value)) - 1


def collect_garbage(clock: FakeClock, seconds: float) -> None:
    """Record a collection as the callback of the garbage collector does, for so long."""
    from stepwell._core.clock import now
    from stepwell.journal.journal import Track
    from stepwell.journal.state import state

    began = now()
    clock.advance(seconds)
    assert state.journal is not None
    Track(state.journal, "gc").write("gc", "runtime", began, now(), b"{}")


def healthy_values(step: int) -> dict[str, float]:
    """A model that learns, and generalises."""
    return {
        "train/loss": 0.3 + 2 * math.exp(-step / 40) + 0.03 * noise(step),
        "val/loss": 0.4 + 1.9 * math.exp(-step / 40) + 0.03 * noise(step + 1000),
    }


def train(
    folder: Path,
    *,
    steps: int = 120,
    times: Times = lambda step: {},
    values: Values | None = healthy_values,
    config: dict[str, Any] | None = None,
    every: int = 1,
) -> RecordedRun:
    """A recorded training.

    Args:
        folder: where runs are.
        steps: how many.
        times: seconds of the parts of a step, in place of the usual ones or beside them; ``pause`` is what
            comes after the step, in no span.
        values: what is logged.
        config: of the run.
        every: so many steps lie between two that log.
    """
    with FakeClock() as clock:
        with stepwell.init("training", dir=folder, config=config) as run:
            clock.advance(0.5)
            for step in range(steps):
                run.set_step(step, step // 50)
                parts = {**PACE, **times(step)}
                pause = parts.pop("pause", 0.0)
                after = {
                    name: parts.pop(name)
                    for name in ("validate", "save checkpoint")
                    if name in parts
                }
                _part(run, clock, "wait for data", parts.pop("wait for data"), step)
                with run.span("train step"):
                    for name, seconds in parts.items():
                        _part(run, clock, name, seconds, step)
                for name, seconds in after.items():
                    _part(run, clock, name, seconds, step)
                if values is not None and step % every == 0:
                    run.log(dict(values(step)))
                clock.advance(0.0001 + pause)
            clock.advance(0.2)
        return stepwell.open_run(run.path)


def _part(run: stepwell.Run, clock: FakeClock, name: str, seconds: float, step: int) -> None:
    with run.span(name) if name else nullcontext():
        clock.advance(seconds * (1 + 0.05 * noise(step + len(name))))
