"""``init`` and ``borrow_run``. The modules that start a run are imported when one starts."""

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
        name: name of the training, shown in lists and part of the run id. Default: the name of the script,
            "train" for ``train.py``.
        dir: folder of the run folders. Default: ``STEPWELL_DIR`` or ``./runs``.
        config: configuration of the training: a dict, Namespace, dataclass, or any object that converts to
            a dict. Secrets are masked before it is written.
        tags: words to find the run by.
        run_id: id of the run to create, or to continue with its next attempt. Default: ``STEPWELL_RUN_ID``,
            the id that the launcher implies (torchrun, Slurm, MPI), or a new id.
        resume: False raises an error if the run id already exists.
        quiet: True prints no lines at the start and the end. Default: ``STEPWELL_QUIET``.

    A wrong argument raises ``StepwellError``. A folder that is not writable does not: training continues,
    with one warning. An active run is finished first.
    """
    from stepwell.telemetry.startup import start

    return start(name, dir, config, tags, run_id, resume, quiet)


def borrow_run(name: str | None = None, **options: Any) -> tuple[Run, bool]:
    """Return the active run and False, or start one with `init` and return it and True.

    If it returns True, the caller must finish the run.
    """
    from stepwell.telemetry.run import active_run

    run = active_run()
    return (run, False) if run is not None else (init(name, **options), True)
