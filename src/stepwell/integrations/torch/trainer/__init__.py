"""``TorchTrainer``: a recorded training loop with the interface of itwinai's TorchTrainer.

``configuration.py`` has the hyperparameters, ``strategies.py`` training on one process or several,
``torch_trainer.py`` the loop. Imports torch, training and the loggers.
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
