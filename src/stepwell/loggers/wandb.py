"""Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from stepwell.journal.errors import StepwellError
from stepwell.journal.values import shown
from stepwell.loggers.base import UNNAMED, Logger
from stepwell.loggers.checks import flag, optional_text
from stepwell.loggers.frequency import LogFreq, Workers


class WandBLogger(Logger):
    """Logs to Weights & Biases; offline where ``WANDB_MODE`` says so or there is no key. Never asks.

    A run of yours that is active there is left alone. The key stays in the environment or in ``~/.netrc``.

    Args:
        savedir: the folder above ``wandb``, for what W&B keeps on this machine.
        project_name: the project.
        log_freq: which batches count; see ``Logger``.
        log_on_workers: which workers log; with several, each has a run, all in one group.
        offline_mode: keep all of it on this machine, to be sent later with ``wandb sync``.
        run_id: W&B's id of a run to go on with.
        run_name: what the run is called.
        entity: the user or team.
        group: what runs are grouped by.
        job_type: what kind of job it is.
        tags: words to find the run by.
        notes: shown with the run.
    """

    to = "wandb"
    backend_class = "stepwell.loggers.backends.wandb.backend.WandBBackend"
    subfolder = "wandb"
    context_options = ("run_id", "run_name")

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        project_name: str = UNNAMED,
        log_freq: LogFreq | None = None,
        log_on_workers: Workers = 0,
        offline_mode: bool = False,
        run_id: str | None = None,
        run_name: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
    ) -> None:
        super().__init__(savedir, log_freq, log_on_workers, run_id=run_id)
        self.project_name = optional_text("project_name", project_name) or UNNAMED
        self.offline_mode = flag("offline_mode", offline_mode)
        self.run_name = optional_text("run_name", run_name)
        self.entity = optional_text("entity", entity)
        self.group = optional_text("group", group)
        self.job_type = optional_text("job_type", job_type)
        self.tags = _checked_tags(tags)
        self.notes = optional_text("notes", notes)

    def backend_options(self) -> dict[str, Any]:
        """What the constructor was given."""
        return {
            "savedir": str(self.savedir.absolute()),
            "project_name": self.project_name,
            "offline_mode": self.offline_mode,
            "run_name": self.run_name,
            "run_id": self._run_id,
            "entity": self.entity,
            "group": self.group,
            "job_type": self.job_type,
            "tags": self.tags,
            "notes": self.notes,
        }


def _checked_tags(tags: Any) -> list[str] | None:
    if tags is None:
        return None
    several = isinstance(tags, Iterable) and not isinstance(tags, str | bytes)
    if not several or not all(isinstance(tag, str) for tag in tags):
        raise StepwellError(f"tags is {shown(tags)}: write a list of texts, such as ['baseline']")
    return list(tags)
