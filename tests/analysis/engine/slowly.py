"""A slow task that records its process id, so that a test can kill the worker in the meantime."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from stepwell.analysis.engine.tasks import Task, TaskResult, read_task


@dataclass(frozen=True)
class Slowly:
    mark: Path

    def __call__(self, task: Task) -> TaskResult:
        with self.mark.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return read_task(task)
