"""The programs that users were shown for loggers run as they are, and their losses arrive everywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.harness import environment, made_once, run_ranks, run_script
from tests.harness.marks import others_in_full
from tests.loggers.document_programs import ALL, SHOWN, fewer_epochs, program
from tests.loggers.needs import needs
from tests.loggers.prov_checking import check
from tests.loggers.reading_back import Curve, Left

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
    needs("torch", "mlflow", "wandb", "tensorboard", "prov", "pytorch_lightning"),
]

BATCH, EPOCH = "my_training_loss_batch", "my_training_loss_epoch"
BATCHES = 101


def run(folder: Path, database: Path, code: str, processes: int = 1) -> None:
    """Run a program to its end; it is to say nothing that is not meant to be read."""
    shelf = folder / "mllogs" / "mlflow"
    shelf.mkdir(parents=True)
    shutil.copy(database, shelf / "mlflow.db")
    script = folder / "program.py"
    script.write_text(code)
    variables = {"STEPWELL_FINISH_TIMEOUT": "120", "STEPWELL_STRICT": "1", "HOME": str(folder)}
    env = environment(WANDB_ERROR_REPORTING="false", **variables)
    if processes == 1:
        # As the third program wants it.
        ended = [run_script(script, cwd=folder, env={**env, "RANK": "0"}, timeout=280, check=True)]
    else:
        ended = run_ranks(script, world=processes, cwd=folder, env=env, timeout=280, check=True)
    for one in ended:
        assert "stepwell" not in one.stderr


def expected(folder: Path, rank: int = 0, every: int = 100) -> dict[str, list[float]]:
    """Expected values: each 100th batch of an epoch, and every epoch."""
    batches, epochs = json.loads((folder / f"losses-{rank}.json").read_text())
    return {
        BATCH: [loss for number, loss in enumerate(batches) if number % BATCHES % every == 0],
        EPOCH: epochs,
    }


def check_curve(curve: Curve, losses: list[float]) -> None:
    """The values in their order, each at its own step."""
    assert [value for _, value in curve] == pytest.approx(losses, rel=1e-6)
    steps = [step for step, _ in curve]
    assert steps == sorted(set(steps))


def check_series(about: dict[str, Any], losses: list[float]) -> None:
    """Provenance contains the series, not each value."""
    assert int(about["stepwell:count"]) == len(losses)
    told = [float(about[f"{key}"]) for key in ("prov:value", "stepwell:least", "stepwell:most")]
    assert told == pytest.approx([losses[-1], min(losses), max(losses)], rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("name", SHOWN)
def test_alone_with_the_logger_that_was_shown(
    name: str, tmp_path: Path, empty_database: Path
) -> None:
    """As a user would try it first, with RANK set as the third one wants it."""
    run(tmp_path, empty_database, program(name))
    left = Left(tmp_path)
    # Without a log_freq, Lightning decides: by log_every_n_steps, which is 1 there.
    for metric, losses in expected(tmp_path, every=1 if name == "lightning" else 100).items():
        if name == "trainer":
            check_curve(left.wandb_curve(metric), losses)
        elif name == "lightning":
            check_series(left.provenance_series(metric), losses)
        else:
            check_curve(left.mlflow_curve(metric), losses)
    if name in ("basic", "distributed"):
        assert left.mlflow_run().info.status == "FINISHED"
        assert left.mlflow_models() == ["trained_model"]
        assert left.mlflow_files() == []
        experiment = left.mlflow.get_experiment(left.mlflow_run().info.experiment_id)
        assert experiment.name == "my_awesome_experiment"


# One recorded run of a program with all loggers: alone, and in two processes.


@pytest.fixture(
    scope="module",
    params=others_in_full(
        [f"{name}-{processes}" for name in SHOWN for processes in (1, 2)], ["basic-1"]
    ),
)
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, empty_database: Path
) -> Path:
    """Where a program has run with all loggers."""
    name, _, processes = request.param.partition("-")
    code = fewer_epochs(program(name, ALL))

    def make(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        run(folder, empty_database, code, int(processes))

    return made_once(tmp_path_factory, f"document-002-{request.param}", make)


@pytest.mark.parametrize("backend", ["mlflow", "wandb", "tensorboard"])
def test_losses_are_curves_on_every_backend(backend: str, folder: Path) -> None:
    """Alone and in two processes: of two workers the first one logs, once."""
    curve = getattr(Left(folder), f"{backend}_curve")
    for metric, losses in expected(folder).items():
        check_curve(curve(metric), losses)


def test_losses_are_series_in_the_provenance(folder: Path) -> None:
    left = Left(folder)
    for metric, losses in expected(folder).items():
        check_series(left.provenance_series(metric), losses)


def test_the_provenance_is_valid(folder: Path) -> None:
    check(Left(folder).provenance)


def test_there_is_one_run_and_it_is_finished(folder: Path) -> None:
    left = Left(folder)
    assert len(left.mlflow_runs) == 1
    assert left.mlflow_run().info.status == "FINISHED"


@pytest.mark.full
def test_two_workers_that_both_log_have_a_curve_each(tmp_path: Path, empty_database: Path) -> None:
    """Without a word about it from the user."""
    both = ALL.replace("log_freq=100", "log_freq=100, log_on_workers=-1")
    run(tmp_path, empty_database, fewer_epochs(program("distributed", both)), 2)
    for rank in (0, 1):
        left = Left(tmp_path, rank)
        for metric, losses in expected(tmp_path, rank).items():
            check_curve(left.mlflow_curve(metric), losses)
            check_curve(left.tensorboard_curve(metric), losses)
    assert len(left.mlflow_runs) == 2
