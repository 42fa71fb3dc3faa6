"""The programs that users were shown for loggers run as they are, and their losses arrive everywhere."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.durability.helpers import environment
from tests.loggers.document_programs import ALL, SHOWN, fewer_epochs, program
from tests.loggers.needs import needs
from tests.loggers.prov_checking import check
from tests.loggers.reading_back import Curve, Left

pytestmark = [
    pytest.mark.full,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
    needs("torch", "mlflow", "wandb", "tensorboard", "prov", "pytorch_lightning"),
]

BATCH, EPOCH = "my_training_loss_batch", "my_training_loss_epoch"
BATCHES = 101
TORCHRUN = Path(sys.executable).with_name("torchrun")


def run(folder: Path, database: Path, code: str, *launcher: str, **variables: str) -> None:
    """Run a program to its end; it is to say nothing that is not meant to be read."""
    shelf = folder / "mllogs" / "mlflow"
    shelf.mkdir(parents=True)
    shutil.copy(database, shelf / "mlflow.db")
    (folder / "program.py").write_text(code)
    done = subprocess.run(
        [*(launcher or [sys.executable]), str(folder / "program.py")],
        cwd=folder,
        env=environment(
            STEPWELL_EXPORT_TIMEOUT="120",
            STEPWELL_STRICT="1",
            WANDB_ERROR_REPORTING="false",
            OMP_NUM_THREADS="1",
            HOME=str(folder),
            **variables,
        ),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "stepwell" not in done.stderr


def torchrun() -> list[str]:
    """Two processes, found by each other on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if not TORCHRUN.exists():
        pytest.skip("torchrun is not installed")
    return [str(TORCHRUN), "--nproc-per-node=2", f"--master-port={port}"]


def expected(folder: Path, rank: int = 0) -> dict[str, list[float]]:
    """What was to be logged: each 100th batch of an epoch, and every epoch."""
    batches, epochs = json.loads((folder / f"losses-{rank}.json").read_text())
    return {
        BATCH: [loss for number, loss in enumerate(batches) if number % BATCHES % 100 == 0],
        EPOCH: epochs,
    }


def check_curve(curve: Curve, losses: list[float]) -> None:
    """The values in their order, each at a step of its own."""
    assert [value for _, value in curve] == pytest.approx(losses, rel=1e-6)
    steps = [step for step, _ in curve]
    assert steps == sorted(set(steps))


def check_series(about: dict[str, Any], losses: list[float]) -> None:
    """Provenance tells of the series, not of each value."""
    assert int(about["stepwell:count"]) == len(losses)
    told = [float(about[f"{key}"]) for key in ("prov:value", "stepwell:least", "stepwell:most")]
    assert told == pytest.approx([losses[-1], min(losses), max(losses)], rel=1e-6)


@pytest.mark.parametrize("name", SHOWN)
def test_alone_with_the_logger_that_was_shown(
    name: str, tmp_path: Path, empty_database: Path
) -> None:
    """As a user would try it first, with RANK set as the third one wants it."""
    run(tmp_path, empty_database, program(name), RANK="0")
    left = Left(tmp_path)
    for metric, losses in expected(tmp_path).items():
        if name == "trainer":
            check_curve(left.wandb_curve(metric), losses)
        elif name == "lightning" and metric == EPOCH:
            # Its log_freq is "epoch" when nobody says anything.
            check_series(left.provenance_series(metric), losses)
        elif name != "lightning":
            check_curve(left.mlflow_curve(metric), losses)
    if name in ("basic", "distributed"):
        assert left.mlflow_run().info.status == "FINISHED"
        assert left.mlflow_files() == ["trained_model.pt"]
        experiment = left.mlflow.get_experiment(left.mlflow_run().info.experiment_id)
        assert experiment.name == "my_awesome_experiment"


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", SHOWN)
def test_losses_are_curves_on_every_backend(
    name: str, processes: int, tmp_path: Path, empty_database: Path
) -> None:
    """Alone and under torchrun: of two workers the first one logs, once."""
    code = fewer_epochs(program(name, ALL))
    if processes == 2:
        run(tmp_path, empty_database, code, *torchrun())
    else:
        run(tmp_path, empty_database, code, RANK="0")
    left = Left(tmp_path)
    for metric, losses in expected(tmp_path).items():
        check_curve(left.mlflow_curve(metric), losses)
        check_curve(left.wandb_curve(metric), losses)
        check_curve(left.tensorboard_curve(metric), losses)
        check_series(left.provenance_series(metric), losses)
    check(left.provenance)
    assert len(left.mlflow_runs) == 1
    assert left.mlflow_run().info.status == "FINISHED"


def test_two_workers_that_both_log_have_a_curve_each(tmp_path: Path, empty_database: Path) -> None:
    """Without a word about it from the user."""
    both = ALL.replace("log_freq=100", "log_freq=100, log_on_workers=-1")
    run(tmp_path, empty_database, fewer_epochs(program("distributed", both)), *torchrun())
    for rank in (0, 1):
        left = Left(tmp_path, rank)
        for metric, losses in expected(tmp_path, rank).items():
            check_curve(left.mlflow_curve(metric), losses)
            check_curve(left.tensorboard_curve(metric), losses)
    assert len(left.mlflow_runs) == 2
