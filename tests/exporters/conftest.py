"""What tests of exporters share: the MLflow server of the loggers' tests."""

from tests.loggers.mlflow_server import empty_database, server

__all__ = ["empty_database", "server"]
