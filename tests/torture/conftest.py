"""MLflow's database and server, which take long to make."""

from __future__ import annotations

from tests.loggers.mlflow_server import empty_database, server

__all__ = ["empty_database", "server"]
