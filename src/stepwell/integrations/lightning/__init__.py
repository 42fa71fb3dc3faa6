"""PyTorch Lightning: a training job of it is recorded by one line, or by one callback.

HookedTrainer, callback = hook_trainer_cls(Trainer, TrainingTelemetryProvider.instance())
trainer = HookedTrainer(max_epochs=3)
trainer.fit(model, loader)

Works with ``lightning`` and with ``pytorch_lightning``, whichever the Trainer comes from; it is imported
when one of these names is. Imports training; nothing of Lightning is changed but the objects of the trainers
that are recorded, while they run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepwell.integrations.lightning.packages import CALLBACK, LOGGER, join_packages

if TYPE_CHECKING:
    from stepwell.integrations.lightning.callback import TelemetryCallback
    from stepwell.integrations.lightning.hooking import hook_trainer_cls, trainer_class
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
    "hook_trainer_cls": "hooking",
    "trainer_class": "hooking",
}
_BASES = {"StepwellLogger": LOGGER, "TelemetryCallback": CALLBACK}


def __getattr__(name: str) -> Any:
    # Each time anew: the program may have imported the other Lightning package since.
    if name == "TelemetryTrainer":
        return import_module(f"{__name__}.hooking").trainer_class()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in _BASES:
        join_packages(value, _BASES[name])
    return value
