"""Lightning classes under the names of nv-one-logger and itwinai. Imports Lightning."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from stepwell.integrations import lightning
from stepwell.integrations.lightning.logger import LogModel, StepwellLogger
from stepwell.loggers import Logger


class TimeEventCallback(lightning.TelemetryCallback):
    """Records a Lightning training job; see ``stepwell.integrations.lightning.TelemetryCallback``."""

    def __init__(
        self,
        training_telemetry_provider: Any = None,
        call_on_app_start: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(training_telemetry_provider, call_on_app_start, **more)

    def on_save_checkpoint_end(  # type: ignore[override]
        self, global_step: int | None = None, *, finish_time_msec: float | None = None
    ) -> None:
        """End the span of a checkpoint save."""
        super().on_save_checkpoint_end(finish_time_msec)


def hook_trainer_cls(
    cls: type, training_telemetry_provider: Any = None, telemetry_callback: Any = None
) -> Any:
    """Return a recorded subclass of this Trainer class, and its callback."""
    callback = telemetry_callback or TimeEventCallback(training_telemetry_provider)
    return lightning.hook_trainer_cls(cls, telemetry_callback=callback)


@functools.cache
def _trainer_class(base: Any) -> Any:
    class OneLoggerPTLTrainer(base):  # type: ignore[misc]
        """A recorded Lightning Trainer that takes its arguments as a dict."""

        def __init__(
            self,
            trainer_config: Mapping[str, Any] | None = None,
            training_telemetry_provider: Any = None,
            **more: Any,
        ) -> None:
            super().__init__(trainer_config, training_telemetry_provider, **more)

    # Processes that Lightning spawns import the class by this name.
    OneLoggerPTLTrainer.__qualname__ = "OneLoggerPTLTrainer"
    return OneLoggerPTLTrainer


def __getattr__(name: str) -> Any:
    if name == "OneLoggerPTLTrainer":
        # Subclasses the Trainer of the Lightning package that the program imported.
        return _trainer_class(lightning.TelemetryTrainer)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class ItwinaiLogger(StepwellLogger):
    """A logger for a Lightning Trainer that passes everything to a stepwell logger.

    Args:
        itwinai_logger: the logger that receives the records.
        log_model: True logs the kept checkpoints when a fit ends; ``"all"`` logs each checkpoint when it is
            saved.
        skip_finalize: True leaves ending the run to the caller.
    """

    def __init__(
        self, itwinai_logger: Logger, log_model: LogModel = False, skip_finalize: bool = False
    ) -> None:
        super().__init__(itwinai_logger, log_model, keep_open=skip_finalize)

    @property
    def itwinai_logger(self) -> Logger:
        """The logger that receives the records."""
        return self.logger
