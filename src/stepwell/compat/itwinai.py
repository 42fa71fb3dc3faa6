"""itwinai's names for ``stepwell.loggers`` and the torch and Lightning integrations.

from stepwell.compat.itwinai import ItwinaiLogger, MLFlowLogger, TorchTrainer
"""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from stepwell._core.checks import one_of
from stepwell.loggers import (
    ConsoleLogger,
    EmptyLogger,
    Logger,
    LoggersCollection,
    MLFlowLogger,
    Prov4ML,
    Prov4MLLogger,
    WandBLogger,
    get_mlflow_logger,
)
from stepwell.loggers import TensorBoardLogger as _TensorBoardLogger
from stepwell.loggers.targets import LogFreq, Workers

if TYPE_CHECKING:
    from stepwell.compat.lightning import ItwinaiLogger as ItwinaiLogger
    from stepwell.compat.torch import TorchTrainer
    from stepwell.integrations.torch.trainer import (
        DeepSpeedStrategy,
        HorovodStrategy,
        NonDistributedStrategy,
        RayDDPStrategy,
        RayDeepSpeedStrategy,
        RayTorchDistributedStrategy,
        TorchDDPStrategy,
        TorchDistributedStrategy,
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


class TensorBoardLogger(_TensorBoardLogger):
    """Takes ``framework`` as itwinai does: "pytorch" or "tensorflow". The event files are the same."""

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        log_freq: LogFreq | None = None,
        framework: str = "pytorch",
        log_on_workers: Workers = 0,
        run_name: str | None = None,
    ) -> None:
        self.framework = one_of("pytorch", "tensorflow").check("framework", framework)
        super().__init__(savedir, log_freq, log_on_workers, run_name)


@runtime_checkable
class LogMixin(Protocol):
    """Anything with a ``log`` method: the loggers, the trainer, and your own classes."""

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
        """Log an item, like ``Logger.log``."""


def __getattr__(name: str) -> Any:
    # Imported on use: programs that only log need neither Lightning nor torch.
    if name == "ItwinaiLogger":
        from stepwell.compat.lightning import ItwinaiLogger

        return ItwinaiLogger
    if name == "TorchTrainer":
        from stepwell.compat.torch import TorchTrainer

        return TorchTrainer
    if name in __all__:
        from stepwell.integrations.torch import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
