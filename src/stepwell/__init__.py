"""stepwell records training jobs with very little overhead, and explains them afterwards.

import stepwell

with stepwell.init("my training") as run:
    for step, batch in enumerate(loader):
        run.set_step(step)
        with run.span("forward"):
            loss = model(batch)
        run.log({"loss": loss})

stepwell.open_run(run.path).metrics().collect()
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from stepwell._core.errors import StepwellError
from stepwell.journal.state import state
from stepwell.telemetry import VERSION
from stepwell.telemetry.media import Histogram, Image, Table, Text
from stepwell.telemetry.run import (
    Run,
    active_run,
    artifact,
    event,
    finish,
    flush,
    log,
    set_step,
    span,
)
from stepwell.telemetry.start import init

if TYPE_CHECKING:
    from typing import Any

    from stepwell.annotations.tree import ai as ai
    from stepwell.integrations.torch import Watch
    from stepwell.journal.journal import Journal
    from stepwell.reading import RecordedRun

__version__ = VERSION

__all__ = [
    "Histogram",
    "Image",
    "Run",
    "StepwellError",
    "Table",
    "Text",
    "__version__",
    "active_run",
    "artifact",
    "event",
    "finish",
    "flush",
    "init",
    "list_runs",
    "log",
    "open_run",
    "set_step",
    "span",
    "watch",
]

if any("multiprocessing" in argument for argument in sys.orig_argv[1:]):
    # Probably a spawned child process. Its first record looks for the parent's run.
    from stepwell.telemetry.children import join_parent_when_used

    join_parent_when_used()


def _keep_value(journal: Journal, name: str, value: Any, step: int | None) -> bool:
    """Store a logged image, figure, histogram, table or text. Return whether the value is one."""
    from stepwell.loggers.items.logged_values import keep_logged

    return keep_logged(journal, name, value, step)


state.keep_value = _keep_value


# Reading needs Polars, which a training process should not load, so it is imported on use. A module
# ``__getattr__`` would do the same, but makes every lookup of ``stepwell.span`` slower in CPython.


def open_run(path: str | os.PathLike[str]) -> RecordedRun:
    """Return the run in this folder, which may still be recording."""
    from stepwell import reading

    return reading.open_run(path)


def list_runs(dir: str | os.PathLike[str] | None = None) -> list[RecordedRun]:
    """Return the runs in a folder (default: ``STEPWELL_DIR``, or ``./runs``), newest first."""
    from stepwell import reading

    return reading.list_runs(dir)


def watch(model: Any = None, optimizer: Any = None, loader: Any = None, **options: Any) -> Watch:
    """Record the training of a PyTorch model, without other changes to the training loop.

    Records spans, iterations, throughput, the loss, gradient norms and learning rates. Use it in a ``with``
    statement, or call ``close()`` to stop. See ``stepwell.integrations.torch.watch`` for the options.
    """
    from stepwell.integrations import torch

    return torch.watch(model, optimizer, loader, **options)
