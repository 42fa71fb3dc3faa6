"""TensorBoardLogger in real processes that are killed: each record is in its files once."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

import stepwell
from tests.harness import Program, environment, run_stepwell, start_script, wait_until
from tests.loggers.tensorboard_reading import hparams, scalars, texts

pytest.importorskip("tensorboard")

PROGRAM = """
import sys
from stepwell.loggers import TensorBoardLogger
from stepwell.telemetry.run import active_run

logger = TensorBoardLogger(log_freq="batch", log_on_workers=-1)
logger.create_logger_context()
logger.save_hyperparameters({"lr": 0.1})
print(active_run().exporters[0].process_id, flush=True)
for step in range(4000):
    logger.log(step / 4000, "loss", step=step, batch_idx=step)
logger.log("the end", "note", kind="text")
if "wait" in sys.argv:
    print("logged", flush=True)
    sys.stdin.read()
logger.destroy_logger_context()
"""
EXPECTED = [(step, pytest.approx(step / 4000, abs=1e-6)) for step in range(4000)]


def start(folder: Path, *words: str, **variables: str) -> Program:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return start_script(
        PROGRAM, *words, cwd=folder, env=environment(**variables), text=True, **pipes
    )


def forwarded(folder: Path, to: str = "tensorboard", *more: str) -> None:
    (run,) = (folder / "runs").iterdir()
    run_stepwell("forward", str(run), "--to", to, *more, cwd=folder, check=True)


def only_folder(folder: Path) -> Path:
    (found,) = (folder / "mllogs" / "tensorboard").iterdir()
    return found


def wait_for(path: Path, words: bytes) -> None:
    wait_until(lambda: any(words in file.read_bytes() for file in path.rglob("events*")))


def test_all_is_there_when_the_context_is_destroyed(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        process.communicate(timeout=120)
    folder = only_folder(tmp_path)
    assert scalars(folder)["loss"] == EXPECTED
    assert texts(folder)["note"] == [(0, "the end")]
    assert hparams(folder) == ({"lr": 0.1}, "STATUS_SUCCESS")


@pytest.mark.full
@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_what_a_killed_sidecar_left_is_forwarded_once(tmp_path: Path, moment: str) -> None:
    """Trainer and sidecar are killed with nothing, something or all delivered."""
    with start(tmp_path, "wait") as process:
        assert process.stdout is not None
        sidecar = int(process.stdout.readline())
        if moment == "during":
            wait_for(tmp_path / "mllogs", b"loss")
        if moment == "before":
            os.kill(sidecar, signal.SIGKILL)
        process.stdout.readline()
        if moment == "after":
            wait_for(tmp_path / "mllogs", b"the end")
        if moment != "before":
            os.kill(sidecar, signal.SIGKILL)
        process.kill()
    forwarded(tmp_path)
    folder = only_folder(tmp_path)
    assert scalars(folder)["loss"] == EXPECTED
    assert texts(folder)["note"] == [(0, "the end")]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    forwarded(tmp_path)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert hparams(folder) == ({"lr": 0.1}, "STATUS_FAILURE")


def test_ranks_have_a_folder_each(tmp_path: Path) -> None:
    launch = {"WORLD_SIZE": "2", "STEPWELL_RUN_ID": "r", "MASTER_ADDR": "localhost"}
    processes = [start(tmp_path, RANK=str(rank), **launch) for rank in (0, 1)]
    for process in processes:
        process.communicate(timeout=120)
    folder = only_folder(tmp_path)
    assert scalars(folder)["loss"] == EXPECTED
    assert scalars(folder / "rank-00001")["loss"] == EXPECTED


def test_a_run_without_a_logger_is_forwarded_whole(tmp_path: Path) -> None:
    with stepwell.init("plain", dir=tmp_path / "runs"):
        for step in range(10):
            stepwell.log({"loss": step / 10}, step=step)
    forwarded(tmp_path, "tensorboard", "--option", f"savedir={tmp_path / 'elsewhere'}")
    (folder,) = (tmp_path / "elsewhere").iterdir()
    assert [step for step, _ in scalars(folder)["loss"]] == list(range(10))
