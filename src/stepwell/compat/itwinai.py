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
    from stepwell.integrations.lightning.logger import StepwellLogger
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


def ItwinaiLogger(
    itwinai_logger: Logger, log_model: Any = False, skip_finalize: bool = False
) -> StepwellLogger:
    """A logger for a Lightning Trainer around one of ours."""
    from stepwell.integrations.lightning.logger import StepwellLogger

    return StepwellLogger(itwinai_logger, log_model, keep_open=skip_finalize)


def __getattr__(name: str) -> Any:
    if name == "TorchTrainer":
        # Whoever only logs needs no torch.
        from stepwell.integrations.torch.trainer import TorchTrainer

        return TorchTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
