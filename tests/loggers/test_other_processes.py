"""Loggers in other processes: pickled, spawned, forked."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run, StepwellError
from stepwell.loggers import (
    ConsoleLogger,
    EmptyLogger,
    Logger,
    LoggersCollection,
    MLFlowLogger,
    Prov4MLLogger,
    TensorBoardLogger,
    WandBLogger,
)
from tests.harness import environment, run_script
from tests.loggers.logged import Another, Own, metrics

LOGGERS: list[Any] = [
    Logger,
    ConsoleLogger,
    MLFlowLogger,
    WandBLogger,
    TensorBoardLogger,
    Prov4MLLogger,
    EmptyLogger,
    lambda: LoggersCollection({"a": Own(log_freq=3), "b": Another()}),
]


@pytest.mark.parametrize("make", LOGGERS)
def test_loggers_can_be_pickled_and_copied(make: Any) -> None:
    """With their options."""
    logger = make()
    for other in (pickle.loads(pickle.dumps(logger)), copy.deepcopy(logger)):
        assert type(other) is type(logger)
        assert other.log_freq == logger.log_freq
        assert other.backend_options() == logger.backend_options()
        assert not other.is_initialized


def test_a_context_stays_at_home(recorded: Run) -> None:
    """The copy creates its own context; here logging continues."""
    logger = LoggersCollection([Own(log_freq="batch")]).create_logger_context()
    other = pickle.loads(pickle.dumps(logger))
    assert not other.is_initialized
    assert not other["own"].is_initialized
    with pytest.raises(StepwellError, match="needs a new context there"):
        other.log(1.0, "loss")
    logger.log(2.0, "loss")
    recorded.finish()
    assert [m.value for m in metrics(recorded)] == [2.0]


def strict(folder: Path) -> dict[str, str]:
    """An environment in which runs are recorded below a folder and problems are raised."""
    return environment(STEPWELL_DIR=str(folder / "runs"), STEPWELL_STRICT="1")


def test_a_spawned_process_creates_its_own(tmp_path: Path) -> None:
    """The logger went there as an argument."""
    script = tmp_path / "spawning.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "from stepwell.loggers import Logger, LoggersCollection\n"
        "def work(logger):\n"
        "    with logger.start_logging(rank=0):\n"
        "        logger.log(7.0, 'loss')\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    process = context.Process(target=work, args=(LoggersCollection([Logger()]),))\n"
        "    process.start(); process.join(); sys.exit(process.exitcode)\n"
    )
    run_script(script, env=strict(tmp_path), check=True)
    (run,) = stepwell.list_runs(tmp_path / "runs")
    assert run.metrics().collect()["value"].to_list() == [7.0]


def test_a_spawned_child_of_a_recording_process_logs_into_its_run(tmp_path: Path) -> None:
    """It says that no backend gets it from there."""
    script = tmp_path / "spawning.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "import stepwell\n"
        "from stepwell.loggers import TensorBoardLogger\n"
        "def work(logger):\n"
        "    with logger.start_logging(rank=0):\n"
        "        logger.log(7.0, 'loss')\n"
        "        logger.log('words', 'note', kind='text')\n"
        "if __name__ == '__main__':\n"
        "    with stepwell.init():\n"
        "        context = multiprocessing.get_context('spawn')\n"
        "        process = context.Process(target=work, args=(TensorBoardLogger(),))\n"
        "        process.start(); process.join()\n"
        "    sys.exit(process.exitcode)\n"
    )
    done = run_script(script, env=strict(tmp_path), check=True)
    assert "are not delivered to a backend" in done.stderr
    (run,) = stepwell.list_runs(tmp_path / "runs")
    assert run.metrics().collect()["value"].to_list() == [7.0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_goes_on_in_the_same_run(recorded: Run) -> None:
    """As its worker, with its own rows."""
    logger = Own(log_freq="batch").create_logger_context()
    logger.log(1.0, "loss", step=0)
    pid = os.fork()
    if not pid:
        try:
            logger.log(2.0, "loss", step=1)
            logger.log("hello", "note", kind="text")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    logger.destroy_logger_context()
    recorded.finish()
    found = stepwell.open_run(recorded.path).metrics().collect()
    assert sorted(found["value"].to_list()) == [1.0, 2.0]
