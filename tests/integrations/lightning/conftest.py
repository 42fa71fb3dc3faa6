"""Silent trainers in their own folder; problems inside stepwell are raised."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning")

from stepwell.training import TrainingTelemetryProvider
from tests.loggers.mlflow_server import empty_database

__all__ = ["empty_database"]


@pytest.fixture(autouse=True)
def _quiet_and_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    yield
    TrainingTelemetryProvider.instance().reset()
