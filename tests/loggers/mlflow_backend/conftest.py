"""Fixtures of the MLflow backend's tests: destinations, and a plain environment."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from stepwell.loggers.backends.mlflow.runs import IN_THIS_PROCESS
from tests.loggers.delivering import Log


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    for name, value in IN_THIS_PROCESS.items():
        # Put back what a backend sets for its own process.
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> str:
    copy = shutil.copy(empty_database, tmp_path_factory.mktemp("database") / "some.db")
    return f"sqlite:///{copy}"


@pytest.fixture(params=["sqlite", pytest.param("http", marks=pytest.mark.full)])
def uri(request: pytest.FixtureRequest) -> str:
    """Where to: a database itself, or a server. Tests with ``ON_BOTH`` always use both."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("database"))
    return str(request.getfixturevalue("server").url)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / f"run-{time.time_ns()}")
