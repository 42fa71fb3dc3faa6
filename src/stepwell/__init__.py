"""stepwell records what happens in a training job, at almost no cost, and explains it afterwards.

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

from stepwell.journal.errors import StepwellError
from stepwell.journal.state import state
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
from stepwell.telemetry.version import VERSION

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
    # Probably a spawned child, whose first record looks for its parent's run.
    from stepwell.telemetry.children import join_parent_when_used

    join_parent_when_used()


def _keep_value(journal: Journal, name: str, value: Any, step: int | None) -> bool:
    """Keep an image, a figure, a histogram, a table or a text that was logged; whether it is one."""
    from stepwell.loggers.items.logged import keep_logged

    return keep_logged(journal, name, value, step)


state.keep_value = _keep_value


# Reading needs Polars, which a training process should not load: it is imported here when it is used.
# A module __getattr__ would do that too, but CPython then looks up every ``stepwell.span`` the slow way.


def open_run(path: str | os.PathLike[str]) -> RecordedRun:
    """The run in this folder, while it is being written or afterwards."""
    from stepwell import reading

    return reading.open_run(path)


def list_runs(dir: str | os.PathLike[str] | None = None) -> list[RecordedRun]:
    """The runs below a folder (else ``STEPWELL_DIR``, else ``./runs``), newest first."""
    from stepwell import reading

    return reading.list_runs(dir)


def watch(model: Any = None, optimizer: Any = None, loader: Any = None, **options: Any) -> Watch:
    """Record the training of a PyTorch model from now on; ``stepwell.integrations.torch.watch`` says more.

    Spans, iterations and throughput, the loss, gradient norms and learning rates, with no other
    change of the training loop. It can be used in a ``with`` statement; ``close()`` ends it.
    """
    from stepwell.integrations import torch

    return torch.watch(model, optimizer, loader, **options)
