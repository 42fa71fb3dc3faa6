"""The provenance logger, from ``log()`` to documents on disk, in real processes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.loggers.delivery.backend import LogRecord
from stepwell.loggers.prov.backend import ProvBackend
from stepwell.telemetry.exporter import Source
from tests.harness import Program, run_stepwell, start_script, wait_until
from tests.loggers.delivering import metric
from tests.loggers.prov_checking import check, things, value

pytest.importorskip("prov")

FILES = {"provenance.json", "provenance.dot", "provenance.mmd", "provenance.svg"}
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import stepwell
from stepwell.loggers import Prov4ML
from stepwell.telemetry.run import active_run
from stepwell.training import application, checkpoint_save, training_iteration, training_loop

logger = Prov4ML("lab.example.com", "exp", save_after_n_logs=5, log_freq="batch")
logger.create_logger_context(rank=0)
logger.save_hyperparameters({"lr": 0.1})
Path("checkpoints").mkdir()
with application(), training_loop(train_iterations_start=0):
    for step in range(10):
        with training_iteration():
            logger.log(1 / (step + 1), "loss", step=step)
    with checkpoint_save(10, path="checkpoints/last.pt"):
        Path("checkpoints/last.pt").write_bytes(b"weights of step 10")
    logger.log(b"model", "net", kind="artifact")
    if "now" in sys.argv:
        logger.log(None, None, kind="prov_documents")
        print(active_run().exporters[0].process_id, flush=True)
        sys.stdin.read()
    if "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    if "fail" in sys.argv:
        raise ValueError("it went wrong")
logger.destroy_logger_context()
"""


def ran(folder: Path, *words: str) -> int:
    """How it ended."""
    with program(folder, *words) as process:
        process.communicate(timeout=120)
        return process.returncode


def program(folder: Path, *words: str) -> Program:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return start_script(PROGRAM, *words, cwd=folder, text=True, **pipes)


def documents(folder: Path) -> Path:
    """Where the documents of the only run are, once they are."""
    logs = folder / "mllogs" / "prov_logs"
    found: list[Path] = wait_until(lambda: list(logs.glob("*/provenance.json")))
    return found[0].parent


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "provenance.json").read_text())
    return found


def wait_for_status(folder: Path, status: str) -> dict[str, Any]:
    """The document, when it says that the run ended so."""
    wait_until(lambda: read(folder)["activity"]["run:run"]["stepwell:status"] == status)
    return read(folder)


def visible(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_run_leaves_a_document_and_its_graph(tmp_path: Path) -> None:
    assert ran(tmp_path) == 0
    folder = documents(tmp_path)
    document = wait_for_status(folder, "finished")
    check(document)
    assert visible(folder) == FILES
    assert document["prefix"]["run"].startswith("http://lab.example.com/exp/")
    loss = things(document, "stepwell:Metric")["run:metric/attempt-0/loss"]
    assert value(loss["stepwell:count"]) == "10"
    (checkpoint,) = things(document, "stepwell:Checkpoint").values()
    assert checkpoint["stepwell:sha256"] == hashlib.sha256(b"weights of step 10").hexdigest()
    assert value(checkpoint["prov:location"]) == (tmp_path / "checkpoints" / "last.pt").as_uri()
    (parameter,) = things(document, "stepwell:Parameter").values()
    assert (parameter["prov:label"], value(parameter["prov:value"])) == ("lr", "0.1")


def test_documents_are_written_now_when_asked_for(tmp_path: Path) -> None:
    with program(tmp_path, "now") as process:
        assert process.stdout is not None
        process.stdout.readline()
        folder = documents(tmp_path)
        wait_until(lambda: visible(folder) == FILES)
        document = read(folder)
        check(document)
        assert document["activity"]["run:run"]["stepwell:status"] == "running"
        assert value(document["entity"]["run:metric/attempt-0/loss"]["stepwell:count"]) == "10"
        process.communicate("", timeout=120)
    check(wait_for_status(folder, "finished"))


@pytest.mark.parametrize(("word", "status"), [("fail", "failed"), ("kill", "killed")])
def test_a_run_that_ends_badly_has_a_last_document_too(
    tmp_path: Path, word: str, status: str
) -> None:
    assert ran(tmp_path, word) != 0
    document = wait_for_status(documents(tmp_path), status)
    check(document)
    assert "prov:endTime" in document["activity"]["run:attempt-0"]


@pytest.mark.full
def test_a_run_whose_sidecar_died_too_is_forwarded_later(tmp_path: Path) -> None:
    with program(tmp_path, "now") as process:
        assert process.stdout is not None
        sidecar = int(process.stdout.readline())
        documents(tmp_path)
        os.kill(sidecar, signal.SIGKILL)
        process.kill()
    (run,) = (tmp_path / "runs").iterdir()
    _wait_until_gone(tmp_path)
    for path in (tmp_path / "mllogs").rglob("*.json"):
        path.unlink()
    run_stepwell("forward", str(run), "--to", "prov", cwd=tmp_path, check=True)
    document = read(documents(tmp_path))
    check(document)
    assert document["activity"]["run:run"]["stepwell:status"] == "killed"


def _wait_until_gone(folder: Path) -> None:
    """Until no sidecar delivers from this folder any more."""
    import fcntl

    for lock in (folder / "runs").rglob("delivery-*.lock"):
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


# The backend by itself


def backend(run: stepwell.Run, folder: Path, rank: int = 0, **options: Any) -> ProvBackend:
    process = min(path.name for path in run.path.iterdir() if path.name.startswith("rank"))
    made = ProvBackend(number=1, rank=rank, ranks=None, provenance_save_dir=str(folder), **options)
    made.run_folder = run.path
    source = Source(run.id, 0, rank, 1, process, "host", 1, run.name)
    made.open(source, {})
    return made


def some(count: int) -> list[LogRecord]:
    return [metric("loss", 1.0, step) for step in range(count)]


def test_it_is_written_again_after_so_many_logs(tmp_path: Path) -> None:
    with stepwell.init("x", dir=tmp_path / "runs") as run:
        made = backend(run, tmp_path / "prov", save_after_n_logs=10)
        made.deliver(some(1), False)
        path = Path(made.state["document"])
        first = path.stat().st_mtime_ns
        made._not_before = 0.0
        made.deliver(some(8), False)
        assert path.stat().st_mtime_ns == first
        made.deliver(some(2), False)
        second = path.stat().st_mtime_ns
        assert second > first
        # Just written: also a thousand more wait a moment, unless somebody asks.
        made.deliver(some(1000), False)
        assert path.stat().st_mtime_ns == second
        made.flush()
        assert path.stat().st_mtime_ns > second


def test_graphs_are_left_out_when_not_wanted(tmp_path: Path) -> None:
    with stepwell.init("x", dir=tmp_path / "runs") as run:
        made = backend(run, tmp_path / "prov", create_graph=False, create_svg=False)
        made.finish("finished")
        assert visible(made.folder) == {"provenance.json"}
        made = backend(run, tmp_path / "svg", create_graph=False)
        made.finish("finished")
        assert visible(made.folder) == {"provenance.json", "provenance.svg"}


def test_other_ranks_write_only_when_they_end(tmp_path: Path) -> None:
    with stepwell.init("x", dir=tmp_path / "runs") as run:
        made = backend(run, tmp_path / "prov", rank=1, save_after_n_logs=1)
        made.deliver(some(100), False)
        assert not Path(made.state["document"]).exists()
        made.finish("finished")
        check(read(made.folder))


def test_a_lock_that_cannot_be_opened_does_not_prevent_the_document(tmp_path: Path) -> None:
    with stepwell.init("x", dir=tmp_path / "runs") as run:
        made = backend(run, tmp_path / "prov")
        made.folder.mkdir(parents=True)
        (made.folder / ".lock").symlink_to(tmp_path / "elsewhere")
        made.finish("finished")
        check(read(made.folder))


def test_the_first_rank_says_how_the_run_ended(tmp_path: Path) -> None:
    """Those that still run when it ends have no end, but the run has."""
    with stepwell.init("x", dir=tmp_path / "runs") as run:
        process = next(path for path in run.path.iterdir() if path.name.startswith("rank"))
        about = json.loads((process / "process.json").read_text())
        other = run.path / "rank-00001.attempt-0.pid-1"
        other.mkdir()
        # It began first, which is when the attempt did.
        earlier = {"rank": 1, "process": other.name, "started": about["started"] - 10**9}
        told = json.dumps({**about, **earlier, "world_size": 2})
        (other / "process.json").write_text(told)
        second = backend(run, tmp_path / "prov", rank=1)
        second.source = Source(run.id, 0, 1, 2, other.name, "host", 1, run.name)
        second.finish("finished")
        assert read(second.folder)["activity"]["run:run"]["stepwell:status"] == "running"
        made = backend(run, tmp_path / "prov")
        made.finish("failed")
        document = read(made.folder)
        check(document)
        for id in ("run:run", "run:attempt-0"):
            assert document["activity"][id]["stepwell:status"] == "failed"
            assert "prov:endTime" in document["activity"][id]
        assert "prov:endTime" in document["activity"]["run:attempt-0/rank-0"]
        assert "prov:endTime" not in document["activity"]["run:attempt-0/rank-1"]


def test_a_document_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stepwell.init("x", dir=tmp_path / "runs") as run:
        made = backend(run, tmp_path / "prov")
        made.deliver(some(1), False)
        before = read(made.folder)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", _full)
            with pytest.raises(OSError, match="full"):
                made.finish("finished")
        assert read(made.folder) == before
        assert visible(made.folder) == {"provenance.json"}
        assert not [p for p in made.folder.iterdir() if p.name.startswith(".provenance")]


def _full(fd: int) -> None:
    raise OSError(28, "full")


def test_the_documented_default_name_is_replaced_by_that_of_the_run(tmp_path: Path) -> None:
    with stepwell.init("mine", dir=tmp_path / "runs") as run:
        made = backend(run, tmp_path / "prov", experiment_name="experiment_name")
        made.finish("finished")
        assert read(made.folder)["activity"]["run:run"]["stepwell:experiment"] == "mine"
        assert run.id in made.folder.name
        made = backend(run, tmp_path / "prov", experiment_name="../other name")
        made.finish("finished")
        assert made.folder == tmp_path / "prov" / f"other_name-{run.id}"
