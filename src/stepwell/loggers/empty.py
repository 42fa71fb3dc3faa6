"""A logger that does nothing, where one is needed and none is wanted."""

from __future__ import annotations

import os
from typing import Any

from stepwell.loggers.base import Logger
from stepwell.loggers.frequency import LogFreq, Workers


class EmptyLogger(Logger):
    """Takes every call and does nothing: no run, no file, no complaint."""

    to = "empty"

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        log_freq: LogFreq | None = None,
        log_on_workers: Workers = 0,
    ) -> None:
        super().__init__(savedir, log_freq, log_on_workers)

    def create_logger_context(self, rank: int | None = None, **options: Any) -> EmptyLogger:
        """Do nothing."""
        self.is_initialized = True
        return self

    def destroy_logger_context(
        self, timeout: float | None = None, *, status: str = "finished"
    ) -> None:
        """Do nothing."""
        self.is_initialized = False

    def log(
        self,
        item: Any,
        identifier: Any,
        kind: str = "metric",
        step: int | None = None,
        batch_idx: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Do nothing."""

    def save_hyperparameters(self, params: Any) -> None:
        """Do nothing."""

    def flush(self, timeout: float = 10.0) -> bool:
        """Nothing is left to be delivered."""
        return True

    def backend_run(self, timeout: float = 10.0) -> None:
        """There is none."""
        return None
