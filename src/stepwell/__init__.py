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

import sys
from typing import TYPE_CHECKING

from stepwell.journal.errors import StepwellError
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
    from stepwell.reading import list_runs, open_run

__version__ = "0.1.0"

__all__ = [
    "Run",
    "StepwellError",
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
]

if any("multiprocessing" in argument for argument in sys.orig_argv[1:]):
    # Probably a spawned child, whose first record looks for its parent's run.
    from stepwell.telemetry.children import join_parent_when_used

    join_parent_when_used()


def __getattr__(name: str) -> object:
    # Reading needs Polars, which a training process should not load.
    if name in ("open_run", "list_runs"):
        from stepwell import reading

        return getattr(reading, name)
    raise AttributeError(f"module 'stepwell' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
