"""Delivering to MLflow, and what its own client finds there."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from stepwell.loggers.backends.mlflow.backend import MLFlowBackend
from stepwell.loggers.delivery.backend import LogRecord
from tests.loggers.delivering import Log

ON_BOTH = pytest.mark.parametrize("uri", ["sqlite", "http"], indirect=True)


def backend(uri: str, **options: Any) -> MLFlowBackend:
    return MLFlowBackend(number=1, tracking_uri=uri, experiment_name="tests", **options)


class Found:
    """A run as read by MLflow's own client."""

    def __init__(self, uri: str, run_id: str) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)
        self.run_id = run_id
        self.run = self.client.get_run(run_id)

    def history(self, key: str) -> list[tuple[int, float]]:
        found = self.client.get_metric_history(self.run_id, key)
        return sorted((point.step, point.value) for point in found)

    def files(self, folder: str | None = None) -> list[str]:
        names = []
        for file in self.client.list_artifacts(self.run_id, folder):
            names += self.files(file.path) if file.is_dir else [file.path]
        return sorted(names)

    def read(self, path: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            return Path(self.client.download_artifacts(self.run_id, path, folder)).read_bytes()


def delivered(log: Log, to: MLFlowBackend, *records: LogRecord) -> Found:
    log.open(to)
    to.deliver(list(records), again=False)
    return Found(to.uri, log.state["run_id"])
