"""itwinai's logger for Lightning; a module of its own, because it imports Lightning."""

from __future__ import annotations

from stepwell.integrations.lightning.logger import LogModel, StepwellLogger
from stepwell.loggers import Logger


class ItwinaiLogger(StepwellLogger):
    """A logger for a Lightning Trainer around one of ours.

    Args:
        itwinai_logger: the logger that it wraps.
        log_model: True logs the checkpoints that were kept when a fit ends; ``"all"`` logs each one as soon
            as it is saved.
        skip_finalize: leave the end of the run to the caller.
    """

    def __init__(
        self, itwinai_logger: Logger, log_model: LogModel = False, skip_finalize: bool = False
    ) -> None:
        super().__init__(itwinai_logger, log_model, keep_open=skip_finalize)

    @property
    def itwinai_logger(self) -> Logger:
        """The logger that it wraps."""
        return self.logger
