"""Runs to be compared, recorded as any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import stepwell
from stepwell.reading import RecordedRun

Curves = dict[str, Callable[[int], float]]


def record(
    root: Path,
    name: str,
    curves: Curves,
    steps: int = 20,
    every: int = 1,
    config: dict[str, Any] | None = None,
) -> RecordedRun:
    """A finished run whose metrics are functions of the step."""
    with stepwell.init(name, dir=root, config=config) as run:
        for step in range(0, steps, every):
            run.set_step(step)
            run.log({key: curve(step) for key, curve in curves.items()})
    return stepwell.open_run(run.path)
