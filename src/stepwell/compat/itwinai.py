"""The names of itwinai for what ``stepwell.loggers`` and the integrations of torch and Lightning have.

from stepwell.compat.itwinai import ItwinaiLogger, MLFlowLogger, TorchTrainer
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

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
    from stepwell.integrations.torch.trainer import (
        DeepSpeedStrategy,
        HorovodStrategy,
        NonDistributedStrategy,
        RayDDPStrategy,
        RayDeepSpeedStrategy,
        RayTorchDistributedStrategy,
        TorchDDPStrategy,
        TorchDistributedStrategy,
        TorchTrainer,
        TrainingConfiguration,
    )

BASE_EXP_NAME = "unnamed-experiment"

__all__ = [
    "BASE_EXP_NAME",
    "ConsoleLogger",
    "DeepSpeedStrategy",
    "EmptyLogger",
    "HorovodStrategy",
    "ItwinaiLogger",
    "LogMixin",
    "Logger",
    "LoggersCollection",
    "MLFlowLogger",
    "NonDistributedStrategy",
    "Prov4ML",
    "Prov4MLLogger",
    "RayDDPStrategy",
    "RayDeepSpeedStrategy",
    "RayTorchDistributedStrategy",
    "TensorBoardLogger",
    "TorchDDPStrategy",
    "TorchDistributedStrategy",
    "TorchTrainer",
    "TrainingConfiguration",
    "WandBLogger",
    "get_mlflow_logger",
]


@runtime_checkable
class LogMixin(Protocol):
    """Whatever can log: the loggers, the trainer, and classes of your own that have this method."""

    @abstractmethod
    def log(
        self,
        item: Any,
        identifier: Any,
        kind: str = "metric",
        step: int | None = None,
        batch_idx: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Log something, as ``Logger.log`` does."""


def __getattr__(name: str) -> Any:
    # Programs that only log need neither Lightning nor torch.
    if name == "ItwinaiLogger":
        from stepwell.compat.itwinai_lightning import ItwinaiLogger

        return ItwinaiLogger
    if name in __all__:
        from stepwell.integrations.torch import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
