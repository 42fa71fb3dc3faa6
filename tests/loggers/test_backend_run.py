"""The run that a backend has for a logger: its ids, and an end that is bounded."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell import Run
from stepwell.loggers import BackendRun, Logger, LoggersCollection, MLFlowLogger
from tests.exporters.programs import end
from tests.loggers.lines_backend import LinesBackend
from tests.loggers.logged import Own, logger_lines, metrics
from tests.loggers.needs import needs

ABOUT = {"run_id": "r1", "name": "n", "url": "http://x", "experiment_id": 3}


class Backed(Logger):
    """With a backend that writes lines, and has its own run."""

    to = "backed"
    backend_class = f"{LinesBackend.__module__}.{LinesBackend.__name__}"

    def backend_options(self) -> dict[str, Any]:
        return {"run_name": "mine", "path": str(self.savedir / "lines"), "about": ABOUT}


@pytest.fixture
def backed(recorded: Run, tmp_path: Path) -> Iterator[Backed]:
    """Its sidecar does not outlive the test."""
    yield Backed(savedir=tmp_path, log_on_workers=[2, 0])
    for exporter in recorded.exporters:
        end(exporter.process_id)


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """While this file is there, the backend hangs."""
    file = tmp_path / "lines.hang"
    file.touch()
    return file


def test_the_journal_is_told_how_the_backend_is_made(
    recorded: Run, backed: Backed, tmp_path: Path
) -> None:
    """So that a run can be forwarded later."""
    backed.create_logger_context(rank=0)
    (line,) = logger_lines(recorded)
    assert line["name"] == "backed"
    options = {"path": str(tmp_path / "lines"), "about": ABOUT}
    assert line["attributes"] == {
        "number": 1,
        "to": "backed",
        "rank": 0,
        "class": "tests.loggers.lines_backend.LinesBackend",
        "options": {"number": 1, "rank": 0, "ranks": [0, 2], "run_name": "mine", **options},
    }


def test_the_backends_run(backed: Backed, hanging: Path) -> None:
    """Waited for as long as is said; its ids are then the logger's."""
    logger = backed.create_logger_context()
    assert logger.backend_run(timeout=0.2) is None
    assert logger.run_id is None
    hanging.unlink()
    assert logger.backend_run(timeout=60) == BackendRun("r1", "n", "http://x", None)
    assert (logger.run_id, logger.experiment_id) == ("r1", "3")


def test_the_end_is_bounded(recorded: Run, backed: Backed, hanging: Path) -> None:
    """Within the given time; the journal has the status, which delivery reads."""
    logger = backed.create_logger_context()
    logger.log(1.0, "loss")
    assert not logger.flush(timeout=0.05)
    logger.destroy_logger_context(timeout=0.1, status="failed")
    # As long as it hangs there is no other end.
    assert hanging.exists()
    assert logger_lines(recorded)[-1]["attributes"]["status"] == "failed"


def test_without_a_backend_there_is_no_run_to_wait_for(recorded: Run) -> None:
    """Not for a moment."""
    assert Own().create_logger_context().backend_run(timeout=3600) is None


def test_a_delivery_that_cannot_begin_does_not_stop_training(
    recorded: Run,
    backed: Backed,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is said, and what is logged is in the run."""
    from stepwell.loggers.delivery import feed as deliveries

    def fail(run: Run, backend: Any) -> None:
        raise OSError("no space")

    monkeypatch.delenv("STEPWELL_STRICT")
    monkeypatch.setattr(deliveries, "start_delivery", fail)
    caplog.set_level(logging.WARNING, "stepwell")
    with backed.start_logging() as logger:
        logger.log(1.0, "loss")
    assert "no space" in caplog.text
    recorded.finish()
    assert [m.value for m in metrics(recorded)] == [1.0]


def test_the_tracking_uri_is_the_one_that_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As given, else that of the environment, else a database; only what was given goes into the run."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logger = MLFlowLogger(savedir=tmp_path)
    assert logger.tracking_uri == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@host:1")
    assert logger.tracking_uri == "http://me:secret@host:1"
    assert logger.backend_options()["tracking_uri"] is None
    logger.tracking_uri = "http://other:2"
    assert logger.tracking_uri == logger.backend_options()["tracking_uri"] == "http://other:2"


@needs("mlflow")
@pytest.mark.filterwarnings("ignore")
def test_the_active_run_is_that_of_mlflow(
    recorded: Run, tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for; without a context, and on a worker that does not log, there is none."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlflow").mkdir()
    shutil.copy(empty_database, tmp_path / "mlflow" / "mlflow.db")
    logger = MLFlowLogger(savedir=tmp_path, run_name="mine")
    silent = MLFlowLogger(savedir=tmp_path, log_on_workers=5)
    assert logger.active_run is None
    with LoggersCollection([logger, silent]).start_logging():
        run = logger.active_run
        assert run is not None
        assert (run.info.run_id, run.info.run_name) == (logger.run_id, "mine")
        assert run.info.status == "RUNNING"
        assert silent.active_run is None
