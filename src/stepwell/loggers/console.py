"""The console, and a folder of plain files."""

from __future__ import annotations

import os
from typing import Any

from stepwell.loggers.base import Logger
from stepwell.loggers.frequency import LogFreq, Workers


class ConsoleLogger(Logger):
    """Tells what is logged through Python's ``logging``, and keeps files below ``savedir/simple-logger``.

    Args:
        savedir: the folder above.
        log_freq: which batches count; see ``Logger``.
        log_on_workers: which workers log; see ``Logger``.
    """

    to = "console"
    backend_class = "stepwell.loggers.backends.console.ConsoleBackend"
    subfolder = "simple-logger"

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        log_freq: LogFreq | None = None,
        log_on_workers: Workers = 0,
    ) -> None:
        super().__init__(savedir, log_freq, log_on_workers)

    def backend_options(self) -> dict[str, Any]:
        """The folder."""
        return {"savedir": str(self.savedir.absolute())}
