"""``TorchTrainer``: a training loop that is recorded in full, with the interface of itwinai's.

``configuration.py`` has its hyperparameters, ``strategies.py`` one process or several, ``torch_trainer.py``
the loop. Imports torch, the training telemetry and the loggers.
"""

from __future__ import annotations

from stepwell.integrations.torch.trainer.configuration import TrainingConfiguration
from stepwell.integrations.torch.trainer.strategies import (
    DeepSpeedStrategy,
    HorovodStrategy,
    NonDistributedStrategy,
    RayDDPStrategy,
    RayDeepSpeedStrategy,
    RayTorchDistributedStrategy,
    TorchDDPStrategy,
    TorchDistributedStrategy,
)
from stepwell.integrations.torch.trainer.torch_trainer import TorchTrainer

__all__ = [
    "DeepSpeedStrategy",
    "HorovodStrategy",
    "NonDistributedStrategy",
    "RayDDPStrategy",
    "RayDeepSpeedStrategy",
    "RayTorchDistributedStrategy",
    "TorchDDPStrategy",
    "TorchDistributedStrategy",
    "TorchTrainer",
    "TrainingConfiguration",
]
