"""TensorBoard."""

from __future__ import annotations

import os
from typing import Any, Literal

from stepwell.loggers.base import Logger
from stepwell.loggers.checks import one_of, optional_text
from stepwell.loggers.frequency import LogFreq, Workers

FRAMEWORKS = ("pytorch", "tensorflow")


class TensorBoardLogger(Logger):
    """Writes event files below ``savedir/tensorboard``, a folder for each run: ``tensorboard --logdir …``.

    Neither TensorBoard nor TensorFlow is needed to write them.

    Args:
        savedir: the folder above ``tensorboard``.
        log_freq: which batches count; see ``Logger``.
        framework: what you train with, ``"pytorch"`` or ``"tensorflow"``. The files are the same.
        log_on_workers: which workers log; with several, each one after the first has a sub-folder.
        run_name: the beginning of the folder's name.
    """

    to = "tensorboard"
    backend_class = "stepwell.loggers.backends.tensorboard.backend.TensorBoardBackend"
    subfolder = "tensorboard"
    context_options = ("run_name",)

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        log_freq: LogFreq | None = None,
        framework: Literal["pytorch", "tensorflow"] = "pytorch",
        log_on_workers: Workers = 0,
        run_name: str | None = None,
    ) -> None:
        super().__init__(savedir, log_freq, log_on_workers)
        self.framework = one_of("framework", framework, FRAMEWORKS)
        self.run_name = optional_text("run_name", run_name)

    def backend_options(self) -> dict[str, Any]:
        """The folder, and the name in it."""
        return {"savedir": str(self.savedir.absolute()), "run_name": self.run_name}
