"""The names of itwinai for what ``stepwell.loggers`` and the integrations of torch and Lightning have.

from stepwell.compat.itwinai import ItwinaiLogger, MLFlowLogger, TorchTrainer
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.loggers import (
    ConsoleLogger,
    EmptyLogger,
    Logger,
    LoggersCollection,
    MLFlowLogger,
    Prov4ML,
    Prov4MLLogger,
    TensorBoardLogger,
    WandBLogger,
    get_mlflow_logger,
)

if TYPE_CHECKING:
    from stepwell.compat.itwinai_lightning import ItwinaiLogger as ItwinaiLogger
    from stepwell.integrations.torch.trainer import TorchTrainer as TorchTrainer

BASE_EXP_NAME = "unnamed-experiment"

__all__ = [
    "BASE_EXP_NAME",
    "ConsoleLogger",
    "EmptyLogger",
    "ItwinaiLogger",
    "Logger",
    "LoggersCollection",
    "MLFlowLogger",
    "Prov4ML",
    "Prov4MLLogger",
    "TensorBoardLogger",
    "TorchTrainer",
    "WandBLogger",
    "get_mlflow_logger",
]


def __getattr__(name: str) -> Any:
    # Programs that only log need neither Lightning nor torch.
    if name == "ItwinaiLogger":
        from stepwell.compat.itwinai_lightning import ItwinaiLogger

        return ItwinaiLogger
    if name == "TorchTrainer":
        from stepwell.integrations.torch.trainer import TorchTrainer

        return TorchTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
