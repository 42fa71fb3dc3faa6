"""Which run of MLflow it is: of ranks, attempts and users, and where it is kept."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from stepwell._core.errors import StepwellError
from stepwell.loggers.backends.mlflow.backend import MLFlowBackend
from stepwell.loggers.backends.mlflow.runs import connect, database_path
from stepwell.loggers.delivery.backend import NotYet
from tests.loggers.delivering import STARTED, Log, metric
from tests.loggers.mlflow_backend.finding import Found, backend, delivered
from tests.loggers.mlflow_server import Server
from tests.loggers.needs import needs

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    needs("mlflow"),
]


def test_ranks_after_the_first_wait_and_have_child_runs(uri: str, log: Log) -> None:
    second = Log(log.folder, rank=2, world_size=3)
    # It has just begun, whenever this module was imported: it still waits for the first.
    second.source = dataclasses.replace(second.source, started_ns=time.time_ns())
    third = MLFlowBackend(number=1, rank=2, ranks=[1, 2], tracking_uri=uri, experiment_name="tests")
    with pytest.raises(NotYet):
        second.open(third)
    first = Log(log.folder, rank=1, world_size=3)
    first.open(
        MLFlowBackend(number=2, rank=1, ranks=[1, 2], tracking_uri=uri, experiment_name="tests")
    )
    second.open(third)
    child = Found(third.uri, second.state["run_id"]).run
    assert child.data.tags["mlflow.parentRunId"] == first.state["run_id"]
    assert child.info.run_name == "rank 2"
    assert child.info.experiment_id == first.state["experiment_id"]


def test_a_rank_whose_first_rank_never_came_makes_the_run_itself(uri: str, log: Log) -> None:
    alone = Log(log.folder, rank=3, world_size=4)
    alone.source = dataclasses.replace(alone.source, started_ns=STARTED - 600_000_000_000)
    to = MLFlowBackend(number=1, rank=3, tracking_uri=uri, experiment_name="tests")
    found = delivered(alone, to, metric("loss", 1.0))
    assert found.run.data.tags["mlflow.parentRunId"]
    assert found.history("loss") == [(0, 1.0)]


def test_a_later_attempt_goes_on_with_the_same_run(uri: str, log: Log) -> None:
    to = backend(uri)
    delivered(log, to, metric("loss", 1.0, 0))
    to.finish("killed")
    again = Log(log.folder, attempt=1)
    found = delivered(again, backend(uri), metric("loss", 0.5, 1))
    assert again.state["run_id"] == log.state["run_id"]
    assert found.history("loss") == [(0, 1.0), (1, 0.5)]
    assert found.run.info.status == "RUNNING"


def test_a_run_that_was_made_just_before_a_kill_is_found_again(
    uri: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second, empty one is left behind."""
    to = backend(uri)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(to, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            log.open(to)
    log.state = {}
    log.open(backend(uri))
    found = Found(to.uri, log.state["run_id"])
    tag = found.run.data.tags["stepwell.run"]
    runs = found.client.search_runs([log.state["experiment_id"]], f"tags.`stepwell.run` = '{tag}'")
    assert len(runs) == 1


def test_a_run_of_the_users_own_is_continued_by_its_id(uri: str, log: Log) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    log.open(backend(uri))
    own = client.create_run(log.state["experiment_id"], run_name="mine")
    other = Log(log.folder)
    delivered(other, backend(uri, run_id=own.info.run_id), metric("loss", 1.0))
    assert other.state["run_id"] == own.info.run_id


def test_the_default_is_a_database_in_savedir(tmp_path: Path, log: Log) -> None:
    """Files are beside it, not in whatever is the current folder."""
    to = MLFlowBackend(number=1, savedir=str(tmp_path / "logs"))
    found = delivered(log, to, metric("loss", 1.0), log.item("text", "note", "hi", file="note.txt"))
    assert (tmp_path / "logs" / "mlflow.db").is_file()
    assert [p.read_text() for p in (tmp_path / "logs").rglob("note.txt")] == ["hi"]
    assert found.client.get_experiment(log.state["experiment_id"]).name == "unnamed-experiment"


def test_a_lock_that_cannot_be_opened_does_not_prevent_the_database(
    tmp_path: Path, database: str
) -> None:
    shutil.copyfile(database_path(database), tmp_path / "mlflow.db")
    (tmp_path / ".mlflow.db.lock").symlink_to(tmp_path / "elsewhere")
    client = connect(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert client.get_experiment("0").name == "Default"


def test_the_environment_says_where_to_and_a_password_is_not_written_down(
    log: Log, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = server.url.replace("http://", "http://user:s3cret@")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", secret)
    to = MLFlowBackend(number=1, experiment_name="tests")
    log.open(to)
    to.deliver([metric("loss", 1.0)], again=False)
    assert "s3cret" not in json.dumps(log.state)
    assert "s3cret" not in "".join(p.read_text() for p in (log.folder / "backends").iterdir())
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(StepwellError, match="MLFLOW_TRACKING_URI"):
        log.open(MLFlowBackend(number=1, experiment_name="tests"))


def test_the_users_own_active_run_is_left_alone(
    tmp_path: Path, log: Log, server: Server, empty_database: Path
) -> None:
    import mlflow

    shutil.copy(empty_database, tmp_path / "own.db")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/own.db")
    try:
        with mlflow.start_run() as own:
            to = backend(server.url)
            log.open(to)
            to.deliver([metric("loss", 1.0)], again=False)
            to.finish("failed")
            active = mlflow.active_run()
            assert active is not None
            assert active.info.run_id == own.info.run_id
            mlflow.log_metric("mine", 1.0)
        assert mlflow.get_run(own.info.run_id).data.metrics == {"mine": 1.0}
        assert mlflow.get_run(own.info.run_id).info.status == "FINISHED"
    finally:
        mlflow.set_tracking_uri(None)
