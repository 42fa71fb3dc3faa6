"""Many at once, and servers that hang or are killed: all of it is there, once."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.harness import SDKS, Program, start_script
from tests.harness.programs import finish
from tests.loggers.delivering import Log, metric
from tests.loggers.mlflow_backend.finding import Found, backend
from tests.loggers.mlflow_server import Server
from tests.loggers.needs import needs

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    needs("mlflow"),
]


def test_a_server_that_hangs_or_is_gone_fails_within_bounds(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once, no longer than a request may take."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        with pytest.raises(Exception, match=r"(?i)timed? ?out"):
            log.open(backend(f"http://127.0.0.1:{port}"))
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
    with pytest.raises(Exception, match=r"(?i)refused|failed"):
        log.open(backend(f"http://127.0.0.1:{port}"))


RANK = """
import sys, time
from pathlib import Path
from stepwell.loggers.delivery.backend import NotYet
from stepwell.loggers.backends.mlflow.backend import MLFlowBackend
from tests.loggers.delivering import Log, metric
rank = int(sys.argv[1])
log = Log(Path(sys.argv[2]), rank=rank, world_size=3)
to = MLFlowBackend(number=1, rank=rank, savedir=sys.argv[3], experiment_name="e")
for _ in range(2000):
    try:
        log.open(to)
        break
    except NotYet:
        time.sleep(0.1)
to.deliver([metric("loss", float(rank), step) for step in range(100)], again=False)
to.finish("finished")
print(log.state["run_id"])
"""


def start(*arguments: str | Path) -> Program:
    return start_script(RANK, *arguments, modules=SDKS, stdout=subprocess.PIPE, text=True)


def printed(programs: list[Program]) -> list[str]:
    """Wait for all of them; return what each one printed."""
    return [finish(program, check=True).stdout.strip() for program in programs]


@pytest.mark.full
def test_ranks_that_begin_at_once_make_one_database_and_one_experiment(tmp_path: Path) -> None:
    """Three processes, a fresh folder."""
    folder, savedir = tmp_path / "run", tmp_path / "logs"
    ids = printed([start(str(rank), folder, savedir) for rank in range(3)])
    uri = f"sqlite:///{savedir}/mlflow.db"
    for rank, run_id in enumerate(ids):
        found = Found(uri, run_id)
        assert found.history("loss") == [(step, float(rank)) for step in range(100)]
        assert found.run.data.tags.get("mlflow.parentRunId") == (ids[0] if rank else None)
        assert found.run.info.status == "FINISHED"
    assert len(found.client.search_experiments(filter_string="name = 'e'")) == 1


@pytest.mark.full
def test_runs_that_begin_at_once_share_a_new_database(tmp_path: Path) -> None:
    """Two runs that know nothing of each other."""
    ids = printed([start("0", tmp_path / f"run {i}", tmp_path / "logs") for i in range(2)])
    assert len(set(ids)) == 2


@pytest.mark.full
def test_a_server_that_is_killed_and_comes_back_has_everything_once(
    tmp_path: Path, log: Log, empty_database: Path
) -> None:
    """The batch that failed comes again, as delivery does it."""
    (tmp_path / "server").mkdir()
    shutil.copy(empty_database, tmp_path / "server" / "db.sqlite")
    server = Server(tmp_path / "server")
    try:
        to = backend(server.wait().url)
        log.open(to)
        to.deliver([metric("loss", float(i), i) for i in range(10)], again=False)
        server.stop()
        batch = [metric("loss", float(i), i) for i in range(10, 3000)]
        batch.append(log.item("artifact", "file", data=b"abc", file="file"))
        with pytest.raises(Exception, match=r"(?i)failed|refused|reset"):
            to.deliver(batch, again=False)
        server.start()
        server.wait()
        to.deliver(batch, again=True)
        to.deliver(batch, again=True)
        found = Found(to.uri, log.state["run_id"])
        assert found.history("loss") == [(i, float(i)) for i in range(3000)]
        assert found.files() == ["file"]
    finally:
        server.stop()
