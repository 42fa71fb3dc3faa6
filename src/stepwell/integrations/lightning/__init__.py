"""PyTorch Lightning: a training job of it is recorded by one line, or by one callback.

HookedTrainer, callback = hook_trainer_cls(Trainer, TrainingTelemetryProvider.instance())
trainer = HookedTrainer(max_epochs=3)
trainer.fit(model, loader)

Works with ``lightning`` and with ``pytorch_lightning``, whichever the Trainer comes from. Imports training;
nothing of Lightning is changed but the objects of the trainers that are recorded, while they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.integrations.lightning.callback import TelemetryCallback
from stepwell.integrations.lightning.hooking import hook_trainer_cls, trainer_class
from stepwell.integrations.lightning.logger import StepwellLogger

if TYPE_CHECKING:
    TelemetryTrainer: Any

__all__ = [
    "StepwellLogger",
    "TelemetryCallback",
    "TelemetryTrainer",
    "hook_trainer_cls",
    "trainer_class",
]


def __getattr__(name: str) -> Any:
    if name == "TelemetryTrainer":
        # Of the package that the program uses, which is known only now.
        return trainer_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
