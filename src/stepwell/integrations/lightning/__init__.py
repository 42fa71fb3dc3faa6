"""PyTorch Lightning: record a training job with one line, or with one callback.

HookedTrainer, callback = hook_trainer_cls(Trainer, TrainingTelemetryProvider.instance())
trainer = HookedTrainer(max_epochs=3)
trainer.fit(model, loader)

Works with ``lightning`` and ``pytorch_lightning``. The package is imported when one of the names here is
first used. Imports training. Only the objects of recorded trainers are changed, and only while they run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepwell.integrations.lightning.packages import CALLBACK, LOGGER, join_packages

if TYPE_CHECKING:
    from stepwell.integrations.lightning.callback import TelemetryCallback
    from stepwell.integrations.lightning.hooked_trainer import hook_trainer_cls, trainer_class
    from stepwell.integrations.lightning.logger import StepwellLogger

    TelemetryTrainer: Any

__all__ = [
    "StepwellLogger",
    "TelemetryCallback",
    "TelemetryTrainer",
    "hook_trainer_cls",
    "trainer_class",
]

_HOMES = {
    "StepwellLogger": "logger",
    "TelemetryCallback": "callback",
    "hook_trainer_cls": "hooked_trainer",
    "trainer_class": "hooked_trainer",
}
_BASES = {"StepwellLogger": LOGGER, "TelemetryCallback": CALLBACK}


def __getattr__(name: str) -> Any:
    # Not cached: the program may have imported the other Lightning package since.
    if name == "TelemetryTrainer":
        return import_module(f"{__name__}.hooked_trainer").trainer_class()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in _BASES:
        join_packages(value, _BASES[name])
    return value
