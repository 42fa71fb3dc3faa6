"""Backends that fail during training: nothing is lost or duplicated, and the others continue."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.durability.helpers import Child, fill, mounted
from tests.exporters.programs import end
from tests.harness import CLI, SDKS, environment, run_script, wait_until
from tests.loggers.faulty_proxy import FaultyProxy, Mode
from tests.loggers.mlflow_server import Server
from tests.loggers.needs import needs
from tests.loggers.prov_checking import check
from tests.loggers.reading_back import Curve, Left
from tests.loggers.tensorboard_reading import scalars

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    needs("mlflow", "wandb", "tensorboard", "prov"),
]

BEGIN = """
from stepwell.loggers import *
from stepwell.telemetry.run import active_run
logger = LoggersCollection(eval(members))
logger.create_logger_context()
answer = [one.process_id for one in active_run().exporters]
"""
LOG = """
for i in range(begin, end):
    logger.log(i / 2, "loss", step=i, batch_idx=i)
answer = None
"""
QUICK = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "2",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "WANDB_ERROR_REPORTING": "false",
}
TENSORBOARD = "TensorBoardLogger(log_freq='batch')"


class Training(Child):
    """A program that logs to several loggers at once."""

    def __init__(self, folder: Path, members: str) -> None:
        super().__init__(folder, HOME=str(folder), **QUICK)
        self.sidecars: list[int] = self.do(BEGIN, members=members)

    def log(self, begin: int, end: int) -> None:
        """Log values without waiting for a backend, which recovers only afterwards."""
        self.do(LOG, begin=begin, end=end)

    def flush(self, member: str, timeout: float = 100) -> bool:
        code = "answer = logger[member].flush(timeout)"
        return bool(self.do(code, member=member, timeout=timeout))

    def destroy(self, timeout: float) -> None:
        """End the context, which waits for backends for ``timeout`` seconds at most."""
        self.do("logger.destroy_logger_context(timeout)\nanswer = None", timeout=timeout)


@contextmanager
def training(folder: Path, *members: str, **named: str) -> Iterator[Training]:
    """Members with or without names. No sidecar outlives the test."""
    words = ", ".join([*members, *(f"{name}={member}" for name, member in named.items())])
    with Training(folder, f"dict({words})" if named else f"[{words}]") as trainer:
        try:
            yield trainer
        finally:
            for pid in trainer.sidecars:
                end(pid)


def expected(count: int) -> Curve:
    return [(i, i / 2) for i in range(count)]


def found_on(server: Server, experiment: str) -> tuple[Any, Curve]:
    """The one run of an experiment, and its curve, as the server's database has it."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=server.url)
    about = client.get_experiment_by_name(experiment)
    assert about is not None
    (run,) = client.search_runs([about.experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    return run, sorted((point.step, point.value) for point in history)


def mlflow(url: str, experiment: str) -> str:
    return f"MLFlowLogger(tracking_uri={url!r}, experiment_name={experiment!r}, log_freq='batch')"


@pytest.mark.full
@pytest.mark.parametrize(
    "mode",
    [
        "500 afterwards",
        *(
            pytest.param(mode, marks=pytest.mark.full)
            for mode in ("500", "hang", "hang afterwards")
        ),
    ],
)
def test_a_server_that_fails_for_a_while(tmp_path: Path, server: Server, mode: Mode) -> None:
    """It answers 500, or not at all, with the request lost or done; then it is well again."""
    proxy = FaultyProxy(server.port)
    experiment = f"a server that does {mode}"
    try:
        with training(tmp_path, mlflow(proxy.url, experiment), TENSORBOARD) as trainer:
            trainer.log(0, 100)
            assert trainer.flush("mlflow")
            proxy.mode = mode
            # Neither the program nor the neighbour notices.
            trainer.log(100, 3000)
            assert trainer.flush("tensorboard")
            assert scalars(Left(tmp_path).tensorboard_folder)["loss"] == expected(3000)
            wait_until(lambda: proxy.failed >= 2)
            proxy.mode = "well"
            trainer.log(3000, 3100)
            assert trainer.flush("mlflow")
            trainer.destroy(60)
        run, curve = found_on(server, experiment)
        assert curve == expected(3100)
        assert run.info.status == "FINISHED"
    finally:
        proxy.close()


@pytest.mark.full
def test_a_server_that_is_killed_and_restarted(tmp_path: Path, empty_database: Path) -> None:
    """In the middle of training, while it is being written to."""
    shutil.copy(empty_database, tmp_path / "db.sqlite")
    server = Server(tmp_path)
    try:
        with training(tmp_path, mlflow(server.wait().url, "restarted"), TENSORBOARD) as trainer:
            trainer.log(0, 100)
            assert trainer.flush("mlflow")
            trainer.log(100, 6000)
            wait_until(lambda: len(found_on(server, "restarted")[1]) > 100)
            server.stop()
            trainer.log(6000, 7000)
            assert trainer.flush("tensorboard")
            server.start()
            server.wait()
            trainer.log(7000, 7100)
            assert trainer.flush("mlflow")
            trainer.destroy(60)
        run, curve = found_on(server, "restarted")
        assert curve == expected(7100)
        assert run.info.status == "FINISHED"
        assert scalars(Left(tmp_path).tensorboard_folder)["loss"] == expected(7100)
    finally:
        server.stop()


@pytest.mark.full
def test_a_server_that_hangs_does_not_hold_up_the_end(tmp_path: Path, server: Server) -> None:
    """The end of training waits at most the given time; forwarded later, every record is there once."""
    proxy = FaultyProxy(server.port)
    try:
        with training(tmp_path, mlflow(proxy.url, "hangs at the end"), TENSORBOARD) as trainer:
            trainer.log(0, 100)
            assert trainer.flush("mlflow")
            proxy.mode = "hang afterwards"
            trainer.log(100, 500)
            # This returns although the server hangs until the end of training.
            trainer.destroy(2)
            assert scalars(Left(tmp_path).tensorboard_folder)["loss"] == expected(500)
            for pid in trainer.sidecars:
                end(pid)
        proxy.mode = "well"
        for _ in range(2):
            forward(tmp_path, f"mlflow={proxy.url}")
            run, curve = found_on(server, "hangs at the end")
            assert curve == expected(500)
            assert run.info.status == "FINISHED"
    finally:
        proxy.close()


@pytest.mark.root
@pytest.mark.parametrize(
    "backend",
    [
        "tensorboard",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("mlflow", "wandb", "prov")),
    ],
)
def test_a_disk_that_is_full_for_one_backend(
    tmp_path: Path, empty_database: Path, backend: str
) -> None:
    """The other one continues; when there is space again, this one has everything too, once."""
    with mounted("tmpfs", 24, tmp_path) as disk:
        logs = disk / "mllogs"
        (logs / "mlflow").mkdir(parents=True)
        shutil.copy(empty_database, logs / "mlflow" / "mlflow.db")
        member = {
            "tensorboard": f"TensorBoardLogger({str(logs)!r}, log_freq='batch')",
            "mlflow": f"MLFlowLogger({str(logs)!r}, log_freq='batch')",
            "wandb": f"WandBLogger({str(logs)!r}, log_freq='batch')",
            "prov": f"Prov4ML(provenance_save_dir={str(logs / 'prov_logs')!r}, log_freq='batch')",
        }[backend]
        with training(tmp_path, ours=member, neighbour=TENSORBOARD) as trainer:
            trainer.log(0, 200)
            assert trainer.flush("ours")
            filler = fill(disk)
            trainer.log(200, 3000)
            assert trainer.flush("neighbour")
            assert scalars(Left(tmp_path).tensorboard_folder)["loss"] == expected(3000)
            # W&B takes rows before it writes them; what is not in its file yet stays with us.
            assert backend == "wandb" or not trainer.flush("ours", 3)
            filler.unlink()
            trainer.log(3000, 3100)
            assert trainer.flush("ours")
            trainer.destroy(180)
        left = Left(disk)
        if backend == "prov":
            check(left.provenance)
            assert left.provenance_series("loss")["stepwell:count"] == "3100"
        elif backend == "mlflow":
            assert left.mlflow_curve("loss") == expected(3100)
            assert left.mlflow_run().info.status == "FINISHED"
        elif backend == "wandb":
            assert left.wandb_curve("loss") == expected(3100)
        else:
            assert left.tensorboard_curve("loss") == expected(3100)


def forward(folder: Path, to: str) -> None:
    (run,) = (folder / "runs").iterdir()
    env = environment(HOME=str(folder), **QUICK)
    # The command imports the SDK of the backend itself.
    run_script(CLI, "forward", run, "--to", to, cwd=folder, env=env, modules=SDKS, check=True)


@pytest.mark.full
def test_killed_before_anything_is_delivered(tmp_path: Path, empty_database: Path) -> None:
    """Program and sidecars with -9; forwarded afterwards to all backends, twice."""
    (tmp_path / "mllogs" / "mlflow").mkdir(parents=True)
    shutil.copy(empty_database, tmp_path / "mllogs" / "mlflow" / "mlflow.db")
    members = [f"{name}(log_freq='batch')" for name in ("MLFlowLogger", "WandBLogger", "Prov4ML")]
    with training(tmp_path, TENSORBOARD, *members) as trainer:
        for pid in trainer.sidecars:
            os.kill(pid, signal.SIGSTOP)
        trainer.log(0, 4000)
        trainer.do("logger.log('the end', 'note', kind='text')\nrun = active_run()\nanswer = None")
        trainer.kill()
        for pid in trainer.sidecars:
            os.kill(pid, signal.SIGKILL)
    left = Left(tmp_path)
    assert left.mlflow_runs == []
    assert left.wandb_records == []
    for _ in range(2):
        left = Left(tmp_path)
        for backend in ("mlflow", "wandb", "tensorboard", "prov"):
            forward(tmp_path, backend)
        assert left.mlflow_curve("loss") == expected(4000)
        assert left.wandb_curve("loss") == expected(4000)
        assert left.tensorboard_curve("loss") == expected(4000)
        check(left.provenance)
        assert left.provenance_series("loss")["stepwell:count"] == "4000"
        assert left.mlflow_files() == ["note.txt"]
        assert left.mlflow_run().info.status == "KILLED"
