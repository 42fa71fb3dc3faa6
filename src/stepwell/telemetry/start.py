"""``init``: the door to recording. What is behind it is imported when it is opened."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from stepwell.telemetry.run import Run


def init(
    name: str | None = None,
    *,
    dir: str | os.PathLike[str] | None = None,
    config: Any = None,
    tags: Iterable[str] = (),
    run_id: str | None = None,
    resume: bool = True,
    quiet: bool | None = None,
) -> Run:
    """Start recording this process into a run folder.

    Args:
        name: what you call this training; shown in lists and part of the run id. Without it the run
            is named after the script: ``train.py`` is "train".
        dir: where run folders are; else ``STEPWELL_DIR``, else ``./runs``.
        config: what the training was configured with: a dict, Namespace, dataclass, or anything
            that gives a dict. Secrets are masked before it is written.
        tags: words to find the run by.
        run_id: go on with the run of this id (also ``STEPWELL_RUN_ID``): the next attempt in the
            same folder. Without it the launcher (torchrun, Slurm, MPI) tells, or it is a new run.
        resume: False refuses an id that exists already.
        quiet: True prints neither the line at the start nor the one at the end; else ``STEPWELL_QUIET``.

    A wrong argument raises ``StepwellError``; a folder that cannot be written does not: training
    goes on, with one warning. A run that is still active is finished first.
    """
    from stepwell.telemetry.opening import start

    return start(name, dir, config, tags, run_id, resume, quiet)
