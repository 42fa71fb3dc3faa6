"""Fixtures of the exporter tests: the MLflow server of the logger tests."""

from tests.loggers.mlflow_server import empty_database, server

__all__ = ["empty_database", "server"]
