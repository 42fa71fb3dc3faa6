"""A real MLflow server with its own database, and fixtures to share one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import SDKS, environment, made_once, run_script, start_script
from tests.harness.programs import free_port

MAKE = """
import sys
from mlflow import MlflowClient
MlflowClient(tracking_uri=sys.argv[1]).search_experiments()
"""
SERVE = """
import os
import mlflow.server
from mlflow.cli import cli

def serve_here(command, extra_env, **_):
    import uvicorn
    os.environ.update(extra_env)
    uvicorn.main(command[3:])

# ``mlflow server`` would start another interpreter for it, with this very command.
mlflow.server._exec_cmd = serve_here
cli()
"""


class Server:
    """Runs ``mlflow server`` on this machine; it may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        options = ["--backend-store-uri", f"sqlite:///{self.folder}/db.sqlite"]
        options += ["--artifacts-destination", str(self.folder / "artifacts")]
        options += ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        ours = {name: value for name, value in environment().items() if "MLFLOW" not in name}
        with (self.folder / "log").open("a") as log:
            self.process = start_script(
                SERVE,
                "server",
                *options,
                modules=SDKS,
                cwd=self.folder,
                env={**ours, **quiet},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, seconds: float = 180) -> Server:
        """Until it answers; making its database takes a while."""
        deadline = time.monotonic() + seconds
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError((self.folder / "log").read_text()[-2000:])
            time.sleep(0.05)
        return self

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                return bool(answer.read())
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of MLflow, to be copied; one for all processes that run the tests."""

    def make(path: Path) -> None:
        run_script(MAKE, f"sqlite:///{path}", modules=SDKS, check=True)

    return made_once(tmp_path_factory, "empty-mlflow.db", make)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Server]:
    """A server that keeps running; each test has its own experiments or runs."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database, folder / "db.sqlite")
    found = Server(folder)
    try:
        yield found.wait()
    finally:
        found.stop()
