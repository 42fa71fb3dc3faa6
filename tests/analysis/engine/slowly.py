"""A task that takes its time, and says who is at it: for killing that worker meanwhile."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from stepwell.analysis.engine.part import Part, do
from stepwell.analysis.engine.task import Task


@dataclass(frozen=True)
class Slowly:
    mark: Path

    def __call__(self, task: Task) -> Part:
        with self.mark.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return do(task)
