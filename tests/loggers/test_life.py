"""The life of a logger: created, used, destroyed, and what it says when used wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run, StepwellError
from stepwell._core import errors
from stepwell.loggers import (
    ConsoleLogger,
    EmptyLogger,
    LoggersCollection,
    MLFlowLogger,
    Prov4MLLogger,
    WandBLogger,
    writer,
)
from tests.loggers.logged import Another, Own, items, logger_lines, metrics


def test_a_run_is_started_and_finished_with_the_context(root: Path) -> None:
    """When none is active; and once more for the next context of the same logger."""
    logger = Own(log_freq="batch")
    for value in (1.0, 2.0):
        logger.create_logger_context()
        run = stepwell.active_run()
        assert run is not None
        assert logger.is_initialized
        logger.log(value, "loss")
        logger.destroy_logger_context()
        assert stepwell.active_run() is None
        assert not logger.is_initialized
        assert run.status == "finished"
        assert [m.value for m in metrics(run)] == [value]
    assert len(list(root.glob("*/run.json"))) == 2


def test_a_run_lasts_until_its_last_logger_ends(root: Path) -> None:
    """Also when the logger that the run was started for ends first."""
    first, second = Own(log_freq="batch"), Another(log_freq="batch")
    first.create_logger_context()
    run = stepwell.active_run()
    assert run is not None
    second.create_logger_context()
    first.destroy_logger_context()
    assert run.status == "running"
    second.log(2.0, "loss")
    second.destroy_logger_context()
    assert run.status == "finished"
    assert [m.value for m in metrics(run)] == [2.0]


def test_a_run_that_is_active_is_left_so(recorded: Run) -> None:
    """Only what a logger started it finishes."""
    logger = Own()
    for _ in range(2):
        logger.create_logger_context()
        logger.log(1.0, "loss")
        logger.destroy_logger_context()
    assert stepwell.active_run() is recorded
    recorded.finish()
    lines = [(line["name"], line["attributes"]) for line in logger_lines(recorded)]
    assert [(name, about["number"], about.get("status")) for name, about in lines] == [
        ("own", 1, None),
        ("own", 1, "finished"),
        ("own-2", 2, None),
        ("own-2", 2, "finished"),
    ]


def test_a_run_that_ends_first_ends_the_logger(recorded: Run) -> None:
    """With the run's own status; the rest of the calls do nothing."""
    logger = Own(log_freq="batch").create_logger_context()
    recorded.finish("failed")
    logger.log(1.0, "late")
    logger.log("late", "text", kind="text")
    logger.save_hyperparameters({"late": 1})
    logger.destroy_logger_context()
    assert [line["attributes"].get("status") for line in logger_lines(recorded)] == [None, "failed"]
    assert metrics(recorded) == []
    assert items(recorded) == []


def test_another_run_is_not_logged_to_by_mistake(
    recorded: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its loggers have other numbers. It is said what to do."""
    logger = Own(log_freq="batch").create_logger_context()
    logger.log(1.0, "loss")
    second = stepwell.init("second", dir=tmp_path)
    stepwell.log({"own": 0.5})
    logger.log(2.0, "loss")
    logger.log("words", "text", kind="text")
    assert "destroy the logger's context and create it again" in caplog.text
    logger.destroy_logger_context()
    logger.create_logger_context()
    logger.log(3.0, "loss")
    second.finish()
    assert [m.value for m in metrics(recorded)] == [1.0]
    assert [m.value for m in metrics(second)] == [0.5, 3.0]
    assert items(second) == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "finished"),
        (ValueError("bad"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(0), "finished"),
        (SystemExit(), "finished"),
        (SystemExit(1), "failed"),
    ],
)
def test_start_logging_tells_how_it_ended(
    root: Path, error: BaseException | None, status: str
) -> None:
    """The exception passes, and is the status of the logger and of the run it started."""
    logger = Own()
    runs = []

    def train() -> None:
        with logger.start_logging(rank=0) as given:
            assert given is logger
            runs.append(stepwell.active_run())
            if error is not None:
                raise error

    if error is None:
        train()
    else:
        with pytest.raises(type(error)) as raised:
            train()
        assert raised.value is error
    (run,) = runs
    assert run is not None
    assert logger_lines(run)[-1]["attributes"] == {"number": 1, "status": status}
    assert run.status == status
    assert not logger.is_initialized


def test_an_error_while_creating_is_not_hidden(root: Path) -> None:
    """By another one about destroying what was never created."""
    with (
        pytest.raises(StepwellError, match="rank must be"),
        Own().start_logging(rank="first"),  # type: ignore[arg-type]
    ):
        pass


def test_destroying_inside_of_start_logging_is_no_error(root: Path) -> None:
    """There is nothing left to destroy."""
    with Own().start_logging() as logger:
        logger.destroy_logger_context()


def test_creating_twice_is_said_and_harmless(
    recorded: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one counts."""
    logger = Own()
    assert logger.create_logger_context() is logger
    assert logger.create_logger_context(rank=5) is logger
    assert "has a context already" in caplog.text
    assert logger.worker_rank == 0
    assert len(logger_lines(recorded)) == 1


@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("log", lambda logger: logger.log(1.0, "loss")),
        ("log", lambda logger: logger.log("a", "b", kind="text")),
        ("save_hyperparameters", lambda logger: logger.save_hyperparameters({})),
        ("flush", lambda logger: logger.flush()),
        ("backend_run", lambda logger: logger.backend_run()),
    ],
)
@pytest.mark.parametrize("make", [Own, lambda: LoggersCollection([Own(), Another()])])
@pytest.mark.parametrize("when", ["before", "after", "recording"])
def test_without_a_context_it_says_what_to_call(
    root: Path, call: str, use: Any, make: Any, when: str
) -> None:
    """Before it is created and after it is destroyed, whether a run is active or not."""
    logger = make()
    if when == "after":
        logger.create_logger_context()
        logger.destroy_logger_context()
    if when == "recording":
        stepwell.init()
    with pytest.raises(StepwellError) as error:
        use(logger)
    assert f".{call}() needs a context" in str(error.value)
    assert "create_logger_context()" in str(error.value)
    assert "start_logging()" in str(error.value)


def test_after_it_was_destroyed_that_is_said(root: Path) -> None:
    """It is not the same as never created."""
    logger = Own()
    with pytest.raises(StepwellError) as error:
        logger.log(1.0, "loss")
    assert "destroyed" not in str(error.value)
    with logger.start_logging():
        pass
    with pytest.raises(StepwellError, match="Its earlier context was destroyed"):
        logger.log(1.0, "loss")


def test_destroying_twice_is_harmless(root: Path) -> None:
    """As in a `finally` behind a `with`; before anything was created it is a mistake."""
    for logger in (Own(), LoggersCollection([Own()])):
        with pytest.raises(StepwellError, match="needs a context"):
            logger.destroy_logger_context()
        with logger.start_logging():
            logger.destroy_logger_context()
        logger.destroy_logger_context()
        assert not logger.is_initialized


def test_a_timeout_that_is_none_is_refused(recorded: Run) -> None:
    """Before anything has happened."""
    for logger in (Own(), LoggersCollection([Own()])):
        logger.create_logger_context()
        wrong: Any = "5 s"
        for call in (logger.flush, logger.backend_run, logger.destroy_logger_context):
            with pytest.raises(
                StepwellError, match="timeout must be a number of seconds, got '5 s'"
            ):
                call(wrong)
        assert logger.is_initialized
        logger.destroy_logger_context(timeout=5)


def test_a_backend_that_cannot_be_made_leaves_nothing_behind(root: Path) -> None:
    """No context, and no active run."""

    class Lost(Own):
        backend_class = "tests.loggers.no_such.Backend"

    logger = Lost()
    with pytest.raises(
        StepwellError, match=r"backend_class must be .*, got 'tests.loggers.no_such.Backend'"
    ):
        logger.create_logger_context()
    assert not logger.is_initialized
    assert stepwell.active_run() is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: MLFlowLogger(tracking_uri="http://[bad"),
            "tracking_uri must be an address, got 'http://",
        ),
        (lambda: MLFlowLogger(tracking_uri="https://token@host"), "contains a password or token"),
        (
            lambda: MLFlowLogger(tracking_uri="http://host/?token=abc"),
            "contains a password or token",
        ),
        (lambda: MLFlowLogger(run_id=["a"]), "run_id must be"),  # type: ignore[arg-type]
        (lambda: MLFlowLogger(experiment_id=True), "experiment_id must be"),  # type: ignore[arg-type]
        (lambda: MLFlowLogger().create_logger_context(run_id=["a"]), "run_id must be"),
        (
            lambda: LoggersCollection([MLFlowLogger()]).create_logger_context(run_name=3),
            "run_name must be a string or None, got 3",
        ),
        (lambda: WandBLogger(tags=5), "tags must be a list of strings"),  # type: ignore[arg-type]
        (lambda: ConsoleLogger(savedir="a\0b"), "savedir must be a folder"),
        (lambda: Prov4MLLogger(provenance_save_dir=None), "provenance_save_dir must be a folder"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_makes_no_sense_is_said_at_once(root: Path, make: Any, said: str) -> None:
    """By the name of the argument."""
    with pytest.raises(StepwellError) as error:
        make()
    assert said in str(error.value)
    assert stepwell.active_run() is None


def test_addresses_of_databases_and_numbers_as_ids_are_taken() -> None:
    """A user name without a password is not a secret."""
    assert MLFlowLogger(tracking_uri="postgresql://me@host/db").tracking_uri is not None
    made = MLFlowLogger(experiment_id=5)  # type: ignore[arg-type]
    assert made.experiment_id == "5"


def test_of_many_metrics_that_are_no_numbers_ten_are_said(
    recorded: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names may be new each time."""
    for key in [key for key in errors.counts if key.startswith(writer.NOT_A_NUMBER)]:
        monkeypatch.delitem(errors.counts, key)
    with Own(log_freq="batch").start_logging() as logger:
        for number in range(30):
            logger.log("text", f"words/{number}")
    assert caplog.text.count("goes to no backend") == 10
    for number in range(10):
        del errors.counts[f"{writer.NOT_A_NUMBER}words/{number}"]


def test_a_status_that_is_none_is_refused(recorded: Run) -> None:
    """It lists those that are."""
    logger = Own().create_logger_context()
    with pytest.raises(StepwellError, match="'finished', 'failed', 'interrupted' or 'killed'"):
        logger.destroy_logger_context(status="done")
    assert logger.is_initialized


def test_create_takes_no_option_that_it_does_not_know(recorded: Run) -> None:
    """Each says what it takes."""
    with pytest.raises(StepwellError, match="no argument 'run_id'; it has rank"):
        Own().create_logger_context(run_id="x")
    with pytest.raises(StepwellError, match="it has rank, run_id, run_name, parent_run_id"):
        MLFlowLogger().create_logger_context(run="x")


def test_a_worker_that_does_not_log_is_quiet(recorded: Run) -> None:
    """All calls work and do nothing, and it can be destroyed and created again."""
    logger = Own(log_on_workers=0)
    for _ in range(2):
        logger.create_logger_context(rank=1)
        logger.log(1.0, "loss")
        logger.log("text", "text", kind="text")
        logger.save_hyperparameters({"a": 1})
        assert logger.flush()
        assert logger.backend_run(timeout=0) is None
        logger.destroy_logger_context()
        assert not logger.is_initialized
    recorded.finish()
    assert not (next(recorded.path.glob("rank-*")) / "events.jsonl").exists()


def test_a_worker_without_a_launcher_starts_no_run_of_its_own(root: Path) -> None:
    """It would be one among many with nothing in it."""
    with Own(log_on_workers=0).start_logging(rank=1):
        assert stepwell.active_run() is None
    assert not root.exists()


def test_switched_off_it_does_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But a wrong kind is an error all the same."""
    monkeypatch.setenv("STEPWELL_MODE", "off")
    with Own(log_freq="batch").start_logging() as logger:
        logger.log(1.0, "loss")
        logger.log("a", "b", kind="text")
        logger.save_hyperparameters({"a": 1})
        assert logger.flush()
        with pytest.raises(StepwellError, match="did you mean 'text'"):
            logger.log("a", "b", kind="texts")
    assert not root.exists()


def test_an_empty_logger_takes_everything(root: Path) -> None:
    """In any order, and leaves nothing."""
    logger = EmptyLogger()
    logger.log(1.0, "loss")
    logger.save_hyperparameters({"a": 1})
    with logger.start_logging(rank=3, anything=1) as given:
        assert given is logger
        assert logger.is_initialized
        logger.log(object(), None, kind="model")
    assert logger.backend_run() is None
    assert logger.flush()
    assert not root.exists()
