"""Loggers: one ``log()`` for MLflow, Weights & Biases, TensorBoard, provenance and the console.

The fronts write to the journal and return; backends read it and deliver, each with a cursor of its own.
May import telemetry and journal; an SDK is imported only inside its own backend, when it is used.
"""

from stepwell.loggers.base import Logger
from stepwell.loggers.collection import LoggersCollection
from stepwell.loggers.console import ConsoleLogger
from stepwell.loggers.delivery.backend import Backend
from stepwell.loggers.delivery.runs import BackendRun
from stepwell.loggers.empty import EmptyLogger
from stepwell.loggers.kinds import KINDS
from stepwell.loggers.mlflow import MLFlowLogger, get_mlflow_logger
from stepwell.loggers.provenance import Prov4MLLogger
from stepwell.loggers.tensorboard import TensorBoardLogger
from stepwell.loggers.wandb import WandBLogger

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
