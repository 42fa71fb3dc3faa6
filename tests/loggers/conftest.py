"""What tests of loggers share: a place for runs; MLflow's database and server, which take long to make."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loggers.mlflow_server import empty_database, server

__all__ = ["empty_database", "server"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs are started by themselves; problems inside are raised."""
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    return tmp_path / "runs"
