"""Loggers: one ``log()`` for MLflow, Weights & Biases, TensorBoard, provenance and the console.

Loggers write to the journal and return. Backends read the journal and deliver, each with its own cursor.
May import telemetry and journal; an SDK is imported only by its own backend, when it is used.
"""

from stepwell.loggers.backend_loggers import (
    ConsoleLogger,
    MLFlowLogger,
    Prov4MLLogger,
    TensorBoardLogger,
    WandBLogger,
    get_mlflow_logger,
)
from stepwell.loggers.base import Logger
from stepwell.loggers.collection import EmptyLogger, LoggersCollection
from stepwell.loggers.delivery.backend import Backend, BackendRun
from stepwell.loggers.kinds import KINDS

Prov4ML = Prov4MLLogger

__all__ = [
    "KINDS",
    "Backend",
    "BackendRun",
    "ConsoleLogger",
    "EmptyLogger",
    "Logger",
    "LoggersCollection",
    "MLFlowLogger",
    "Prov4ML",
    "Prov4MLLogger",
    "TensorBoardLogger",
    "WandBLogger",
    "get_mlflow_logger",
]
