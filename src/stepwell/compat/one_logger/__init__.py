"""The names of one-logger for what ``stepwell.training`` and ``stepwell.exporters`` have.

Those for Lightning (``hook_trainer_cls``, ``OneLoggerPTLTrainer``, ``TimeEventCallback``) are of
``stepwell.integrations.lightning``, which is imported when one of them is.
"""

from __future__ import annotations

from typing import Any

from stepwell.exporters.file import FileExporter
from stepwell.telemetry import Attributes, Event, Span, timed_span
from stepwell.training import *  # noqa: F403
from stepwell.training import ApplicationConfig as OneLoggerConfig
from stepwell.training import InitializationAttributes as OneLoggerInitializationAttributes
from stepwell.training import __all__ as _training

__all__ = [
    *_training,
    "Attributes",
    "Event",
    "FileExporter",
    "OneLoggerConfig",
    "OneLoggerInitializationAttributes",
    "Span",
    "timed_span",
]

_LIGHTNING = {
    "OneLoggerPTLTrainer": "TelemetryTrainer",
    "TimeEventCallback": "TelemetryCallback",
    "hook_trainer_cls": "hook_trainer_cls",
}


def __getattr__(name: str) -> Any:
    if name in _LIGHTNING:
        from stepwell.integrations import lightning

        return getattr(lightning, _LIGHTNING[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
