"""The Lightning classes of one-logger, with the names of its arguments. Imports Lightning."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from stepwell.integrations import lightning


class TimeEventCallback(lightning.TelemetryCallback):
    """Records a training job of Lightning; see ``stepwell.integrations.lightning.TelemetryCallback``."""

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
        """Training goes on after a save."""
        super().on_save_checkpoint_end(finish_time_msec)


def hook_trainer_cls(
    cls: type, training_telemetry_provider: Any = None, telemetry_callback: Any = None
) -> Any:
    """Return a subclass of this Trainer class whose trainers are recorded, and its callback."""
    callback = telemetry_callback or TimeEventCallback(training_telemetry_provider)
    return lightning.hook_trainer_cls(cls, telemetry_callback=callback)


@functools.cache
def _trainer_class(base: Any) -> Any:
    class OneLoggerPTLTrainer(base):  # type: ignore[misc]
        """Lightning's Trainer, recorded; its arguments are a dict."""

        def __init__(
            self,
            trainer_config: Mapping[str, Any] | None = None,
            training_telemetry_provider: Any = None,
            **more: Any,
        ) -> None:
            super().__init__(trainer_config, training_telemetry_provider, **more)

    # Processes that Lightning spawns find it by this name.
    OneLoggerPTLTrainer.__qualname__ = "OneLoggerPTLTrainer"
    return OneLoggerPTLTrainer


def __getattr__(name: str) -> Any:
    if name == "OneLoggerPTLTrainer":
        # Of the package that the program uses, which is known only now.
        return _trainer_class(lightning.TelemetryTrainer)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
