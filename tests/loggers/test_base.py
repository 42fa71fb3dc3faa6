"""The life of a logger: created, used, destroyed; what it writes, and what it says when used wrongly."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run, StepwellError
from stepwell.journal import errors
from stepwell.loggers import (
    BackendRun,
    ConsoleLogger,
    EmptyLogger,
    Logger,
    LoggersCollection,
    MLFlowLogger,
    Prov4ML,
    Prov4MLLogger,
    TensorBoardLogger,
    WandBLogger,
    get_mlflow_logger,
    recording,
)
from stepwell.loggers import context as contexts
from tests.loggers.logged import Another, Own, items, logger_lines, metrics, process_folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs are started by themselves; problems inside are raised."""
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    return tmp_path / "runs"


# Its life


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
        (KeyboardInterrupt(), "killed"),
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
        pytest.raises(StepwellError, match="rank is"),
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
    assert f".{call}() comes before its context" in str(error.value)
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
    with pytest.raises(StepwellError, match="The one that it had was destroyed"):
        logger.log(1.0, "loss")


def test_destroying_twice_is_harmless(root: Path) -> None:
    """As in a `finally` behind a `with`; before anything was created it is a mistake."""
    for logger in (Own(), LoggersCollection([Own()])):
        with pytest.raises(StepwellError, match="comes before its context"):
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
            with pytest.raises(StepwellError, match="timeout is '5 s': write a number of seconds"):
                call(wrong)
        assert logger.is_initialized
        logger.destroy_logger_context(timeout=5)


def test_a_backend_that_cannot_be_made_leaves_nothing_behind(root: Path) -> None:
    """No context, and no run that goes on."""

    class Lost(Own):
        backend_class = "tests.loggers.no_such.Backend"

    logger = Lost()
    with pytest.raises(StepwellError, match=r"backend_class is 'tests.loggers.no_such.Backend'"):
        logger.create_logger_context()
    assert not logger.is_initialized
    assert stepwell.active_run() is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MLFlowLogger(tracking_uri="http://[bad"), "tracking_uri is 'http://"),
        (lambda: MLFlowLogger(tracking_uri="https://token@host"), "a password or token in it"),
        (lambda: MLFlowLogger(tracking_uri="http://host/?token=abc"), "a password or token in it"),
        (lambda: MLFlowLogger(run_id=["a"]), "run_id is"),  # type: ignore[arg-type]
        (lambda: MLFlowLogger(experiment_id=True), "experiment_id is"),  # type: ignore[arg-type]
        (lambda: MLFlowLogger().create_logger_context(run_id=["a"]), "run_id is"),
        (
            lambda: LoggersCollection([MLFlowLogger()]).create_logger_context(run_name=3),
            "run_name is 3",
        ),
        (lambda: WandBLogger(tags=5), "tags is 5"),  # type: ignore[arg-type]
        (lambda: ConsoleLogger(savedir="a\0b"), "savedir is"),
        (lambda: Prov4MLLogger(provenance_save_dir=None), "provenance_save_dir is None"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_makes_no_sense_is_said_at_once(root: Path, make: Any, said: str) -> None:
    """By the name of the argument."""
    with pytest.raises(StepwellError) as error:
        make()
    assert said in str(error.value)
    assert stepwell.active_run() is None


def test_addresses_of_databases_and_numbers_as_ids_are_taken() -> None:
    """A user's name without a password is no secret there."""
    assert MLFlowLogger(tracking_uri="postgresql://me@host/db").tracking_uri is not None
    made = MLFlowLogger(experiment_id=5)  # type: ignore[arg-type]
    assert made.experiment_id == "5"


def test_of_many_metrics_that_are_no_numbers_ten_are_said(
    recorded: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names may be new each time."""
    for key in [key for key in errors.counts if key.startswith(recording.NO_NUMBER)]:
        monkeypatch.delitem(errors.counts, key)
    with Own(log_freq="batch").start_logging() as logger:
        for number in range(30):
            logger.log("text", f"words/{number}")
    assert caplog.text.count("goes to no backend") == 10
    for number in range(10):
        del errors.counts[f"{recording.NO_NUMBER}words/{number}"]


def test_a_status_that_is_none_is_refused(recorded: Run) -> None:
    """It lists those that are."""
    logger = Own().create_logger_context()
    with pytest.raises(StepwellError, match="finished, failed, killed"):
        logger.destroy_logger_context(status="done")
    assert logger.is_initialized


def test_create_takes_no_option_that_it_does_not_know(recorded: Run) -> None:
    """Each says what it takes."""
    with pytest.raises(StepwellError, match=r"takes no 'run_id': it takes rank"):
        Own().create_logger_context(run_id="x")
    with pytest.raises(StepwellError, match="it takes rank, run_id, run_name, parent_run_id"):
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


# What it writes


@pytest.mark.parametrize(
    ("item", "value"),
    [
        (0.25, 0.25),
        (3, 3.0),
        (True, 1.0),
        (math.nan, math.nan),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (5e-324, 5e-324),
        (2**100, 2.0**100),
    ],
)
def test_a_metric_is_a_row(recorded: Run, item: Any, value: float) -> None:
    """With the exact value, whatever number it is; it is no event."""
    logger = Own().create_logger_context()
    logger.log(item, "train/loss ü")
    recorded.finish()
    (found,) = metrics(recorded)
    assert found.value == value or (math.isnan(found.value) and math.isnan(value))
    assert (found.name, found.audience) == ("train/loss ü", (1,))
    run = stepwell.open_run(recorded.path)
    assert run.metrics().collect()["name"].to_list() == ["train/loss ü"]
    assert run.events().collect().height == 0


def test_tensors_and_arrays_of_one_number_are_metrics(recorded: Run) -> None:
    """On the host; those on a device are fetched later, and go to the same loggers."""
    torch = pytest.importorskip("torch")
    import numpy

    logger = Own().create_logger_context()
    for item in (torch.tensor(1.5), torch.tensor([2.5]), numpy.float32(3.5), numpy.array(4.5)):
        logger.log(item, "loss")
    recorded.finish()
    assert [(m.value, m.audience) for m in metrics(recorded)] == [
        (value, (1,)) for value in (1.5, 2.5, 3.5, 4.5)
    ]


def test_scalars_on_a_device_are_not_waited_for(recorded: Run) -> None:
    """They are fetched in the background, and go to the logger that they were logged to."""
    from tests.journal.test_device_scalars import logging_threads, on_device

    logging_threads.add(threading.get_ident())
    try:
        one, two = Own().create_logger_context(), Another().create_logger_context()
        one.log(on_device(1.5), "loss", step=3)
        two.log(on_device(2.5), "loss", step=4)
        # They come before the end of their logger, not after it.
        one.destroy_logger_context()
        lines = (process_folder(recorded) / "events.jsonl").read_text()
        assert '"status":"finished"' in lines
        assert not recorded._recorder or not recorded._recorder.journal.scalars.pending
        recorded.finish()
    finally:
        logging_threads.clear()
    found = [(m.value, m.step, m.audience) for m in metrics(recorded)]
    assert found == [(1.5, 3, (1,)), (2.5, 4, (2,))]


def test_a_dict_of_metrics_has_names_with_slashes(recorded: Run) -> None:
    """As the run's own log has them."""
    logger = Own().create_logger_context()
    logger.log({"loss": 1, "top": {"k": 2}}, "val")
    recorded.finish()
    assert [(m.name, m.value) for m in metrics(recorded)] == [("val/loss", 1), ("val/top/k", 2)]


@pytest.mark.parametrize("odd", ["0.5", None, [1.0, 2.0], object()])
def test_a_metric_that_is_no_number_is_said_and_kept(
    recorded: Run, caplog: pytest.LogCaptureFixture, odd: Any
) -> None:
    """Training goes on, the value is an event of the run."""
    logger = Own().create_logger_context()
    logger.log(odd, f"odd {type(odd).__name__}")
    assert "no number" in caplog.text
    recorded.finish()
    assert metrics(recorded) == []
    assert stepwell.open_run(recorded.path).events().collect().height == 1


STEPS = [
    # (steps that the run sets, steps that are passed) → steps of the values
    ([None, None, None], [None, None, None], [0, 1, 2]),
    ([5, None, 7], [None, None, None], [5, 5, 7]),
    ([None, None], [10, 3], [10, 3]),
    ([5, 6], [10, None], [10, 6]),
    ([None, None, None], [None, 9, None], [0, 9, 1]),
    ([None], [-4], [-4]),
]


@pytest.mark.parametrize(("run_steps", "steps", "found"), STEPS)
def test_the_step_of_a_value(
    recorded: Run, run_steps: list[int | None], steps: list[int | None], found: list[int]
) -> None:
    """What is passed, else the run's, else the count of earlier values of this metric."""
    logger = Own().create_logger_context()
    for run_step, step in zip(run_steps, steps, strict=True):
        if run_step is not None:
            recorded.set_step(run_step)
        logger.log(1.0, "loss", step=step)
    recorded.finish()
    assert [m.step for m in metrics(recorded)] == found
    assert stepwell.open_run(recorded.path).metrics().collect()["step"].to_list() == found


def test_the_count_is_that_of_the_metric_whoever_hears_of_it(recorded: Run) -> None:
    """Two loggers and the run's own log go on from one another."""
    one, two = Own().create_logger_context(), Another().create_logger_context()
    one.log(0.0, "loss")
    two.log(1.0, "loss")
    stepwell.log({"loss": 2.0})
    one.log(3, "loss")
    two.log(0.0, "other")
    recorded.finish()
    found = {(m.name, m.value): (m.step, m.audience) for m in metrics(recorded)}
    assert found == {
        ("loss", 0.0): (0, (1,)),
        ("loss", 1.0): (1, (2,)),
        ("loss", 2.0): (2, ()),
        ("loss", 3.0): (3, (1,)),
        ("other", 0.0): (0, (2,)),
    }


@pytest.mark.parametrize("wrong", ["three", 2**70, math.nan, object()])
def test_a_wrong_step_does_not_stop_training(
    recorded: Run, monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    """The current one is taken."""
    monkeypatch.delenv("STEPWELL_STRICT")
    logger = Own().create_logger_context()
    recorded.set_step(8)
    logger.log(1.0, "loss", step=wrong)
    logger.log("words", "text", kind="text", step=wrong)
    recorded.finish()
    assert [m.step for m in metrics(recorded)] == [8]
    assert [i.step for i in items(recorded)] == [8]


def test_lists_are_logged_one_by_one(recorded: Run) -> None:
    """Items with identifiers, of any kind."""
    logger = Own().create_logger_context()
    logger.log([1.0, 2.0], ["a", "b"], step=4)
    logger.log(("x", "y"), ("c", "d"), kind="text")
    recorded.finish()
    assert [(m.name, m.value, m.step) for m in metrics(recorded)] == [("a", 1, 4), ("b", 2, 4)]
    assert [(i.name, i.value) for i in items(recorded)] == [("c", "x"), ("d", "y")]


def test_lists_that_do_not_match_are_said(recorded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with a partner are logged."""
    logger = Own().create_logger_context()
    with pytest.raises(StepwellError, match="3 items with 2 identifiers"):
        logger.log([1.0, 2.0, 3.0], ["a", "b"])
    monkeypatch.delenv("STEPWELL_STRICT")
    logger.log([1.0, 2.0, 3.0], ["a", "b"])
    recorded.finish()
    assert [m.name for m in metrics(recorded)] == ["a", "b"]


@pytest.mark.parametrize("wrong", [None, ""])
def test_what_has_no_name_is_said(recorded: Run, wrong: Any) -> None:
    """A name that is something else than a text is taken for one."""
    logger = Own().create_logger_context()
    with pytest.raises(StepwellError, match="says no name"):
        logger.log(1.0, wrong)
    logger.log(1.0, 5)
    recorded.finish()
    assert [m.name for m in metrics(recorded)] == ["5"]


def test_ten_thousand_metrics_and_a_hundred_thousand_values(recorded: Run) -> None:
    """All of them arrive, over several segments."""
    logger = Own(log_freq="batch").create_logger_context()
    for i in range(100_000):
        logger.log(float(i), f"metric {i % 10_000}", step=i)
    recorded.finish()
    found = metrics(recorded)
    assert len(found) == 100_000
    assert sum(m.value for m in found) == sum(range(100_000))
    assert len({m.name for m in found}) == 10_000


def test_logging_from_several_threads(recorded: Run) -> None:
    """Each has its own lane; nothing is lost."""
    logger = Own(log_freq="batch").create_logger_context()

    def work(number: int) -> None:
        for i in range(2000):
            logger.log(float(i), f"thread {number}", step=i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorded.finish()
    found = metrics(recorded)
    for number in range(4):
        mine = [m for m in found if m.name == f"thread {number}"]
        assert [m.step for m in mine] == list(range(2000))


def test_the_training_loop_knows_the_loss_of_a_logger(recorded: Run) -> None:
    """It reports the latest one, whoever was to hear of it."""
    from stepwell.training import application, training_iteration, training_loop

    logger = Own(log_freq="batch").create_logger_context()
    with application(), training_loop(train_iterations_start=0):
        for i in range(3):
            with training_iteration():
                logger.log(float(i), "loss")
    recorded.finish()
    events = stepwell.open_run(recorded.path).events().collect().to_dicts()
    (update,) = [e for e in events if e["name"] == "training_metrics_update"]
    assert json.loads(update["attributes"])["latest_loss"] == 2.0


# Parameters

PARAMS: list[tuple[Any, dict[str, Any]]] = [
    ({"lr": 0.1, "n": 3, "on": True, "no": None}, {"lr": 0.1, "n": 3, "on": True, "no": None}),
    (
        {"optimizer": {"name": "sgd", "o": {"m": 0.9}}},
        {"optimizer.name": "sgd", "optimizer.o.m": 0.9},
    ),
    ({"layers": [64, 32]}, {"layers": [64, 32]}),
    ({"empty": {}}, {"empty": {}}),
    ({"rate": math.nan, "up": math.inf}, {"rate": "nan", "up": "inf"}),
    ({"path": Path("a/b"), 5: "five"}, {"path": "a/b", "5": "five"}),
    ({"api_key": "abcdef", "db": {"password": "x"}}, {"api_key": "***", "db.password": "***"}),
]


@pytest.mark.parametrize(("params", "found"), PARAMS)
def test_hyperparameters(recorded: Run, params: Any, found: dict[str, Any]) -> None:
    """One item each, nested ones behind a dot, secrets masked."""
    logger = Own().create_logger_context()
    logger.save_hyperparameters(params)
    recorded.finish()
    assert {i.name: i.value for i in items(recorded, "param")} == found


def test_hyperparameters_of_other_shapes(recorded: Run) -> None:
    """Whatever gives a dict."""
    import argparse
    from dataclasses import dataclass

    @dataclass
    class Config:
        lr: float = 0.5

    logger = Own().create_logger_context()
    logger.save_hyperparameters(argparse.Namespace(a=1))
    logger.save_hyperparameters(Config())
    recorded.finish()
    assert {i.name: i.value for i in items(recorded)} == {"a": 1, "lr": 0.5}


def test_hyperparameters_that_are_none_do_not_stop_training(
    recorded: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said."""
    monkeypatch.delenv("STEPWELL_STRICT")
    logger = Own().create_logger_context()
    logger.save_hyperparameters(3)
    assert "save_hyperparameters() kept nothing" in caplog.text


# Constructors


@pytest.mark.parametrize(
    ("make", "to", "folder"),
    [
        (ConsoleLogger, "console", "mllogs/simple-logger"),
        (MLFlowLogger, "mlflow", "mllogs/mlflow"),
        (WandBLogger, "wandb", "mllogs/wandb"),
        (TensorBoardLogger, "tensorboard", "mllogs/tensorboard"),
        (Prov4MLLogger, "prov", "mllogs/prov_logs"),
        (EmptyLogger, "empty", "mllogs"),
    ],
)
def test_constructors_have_defaults(
    make: Any, to: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As documented, and make nothing."""
    monkeypatch.chdir(tmp_path)
    logger = make()
    assert (logger.to, logger.savedir, logger.log_freq) == (to, Path(folder), "epoch")
    assert (logger.log_on_workers, logger.worker_rank) == (0, 0)
    assert not logger.is_initialized
    assert logger.experiment_id is None
    assert logger.run_id is None
    assert list(tmp_path.iterdir()) == []


def test_prov4ml_is_another_name() -> None:
    """The document uses it."""
    assert Prov4ML is Prov4MLLogger


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Own(savedir=5), "savedir is 5: write a folder"),  # type: ignore[arg-type]
        (lambda: TensorBoardLogger(framework="jax"), "write 'pytorch' or 'tensorflow'"),  # type: ignore[arg-type]
        (lambda: WandBLogger(offline_mode="no"), "offline_mode is 'no': write True or False"),  # type: ignore[arg-type]
        (lambda: WandBLogger(tags="a,b"), "tags is 'a,b': write a list of texts"),
        (lambda: MLFlowLogger(experiment_name=5), "experiment_name is 5: write a text"),  # type: ignore[arg-type]
        (lambda: MLFlowLogger(tracking_uri="https://me:pw@host"), "MLFLOW_TRACKING_PASSWORD"),
        (lambda: Prov4MLLogger(save_after_n_logs=0), "save_after_n_logs is 0: write a whole"),
        (lambda: Prov4MLLogger(create_svg=1), "create_svg is 1: write True or False"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused_at_once(make: Any, said: str) -> None:
    """With the wrong value, and what to write instead; a password is not repeated."""
    with pytest.raises(StepwellError) as error:
        make()
    assert said in str(error.value)
    assert "pw" not in str(error.value)


def test_options_go_to_the_backend_as_plain_values(tmp_path: Path) -> None:
    """And are absolute where they are paths: the sidecar may be elsewhere."""
    loggers: list[Logger] = [
        ConsoleLogger(),
        MLFlowLogger(tracking_uri="http://h:1", run_name="r", run_id="i", experiment_id="e"),
        WandBLogger(tags=["a"], entity="me"),
        TensorBoardLogger(run_name="x"),
        Prov4MLLogger(),
    ]
    for logger in loggers:
        options = logger.backend_options()
        assert json.loads(json.dumps(options)) == options
        folder = options.get("savedir") or options.get("provenance_save_dir")
        assert os.path.isabs(folder)


# To other processes

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
    """What travels creates its own; here it goes on."""
    logger = LoggersCollection([Own(log_freq="batch")]).create_logger_context()
    other = pickle.loads(pickle.dumps(logger))
    assert not other.is_initialized
    assert not other["own"].is_initialized
    with pytest.raises(StepwellError, match="went to another process is created there"):
        other.log(1.0, "loss")
    logger.log(2.0, "loss")
    recorded.finish()
    assert [m.value for m in metrics(recorded)] == [2.0]


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
    environment = {**os.environ, "STEPWELL_DIR": str(tmp_path / "runs"), "STEPWELL_STRICT": "1"}
    subprocess.run([sys.executable, str(script)], check=True, env=environment, timeout=60)
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
    environment = {**os.environ, "STEPWELL_DIR": str(tmp_path / "runs"), "STEPWELL_STRICT": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], check=True, env=environment, timeout=60, capture_output=True
    )
    assert b"goes to no backend" in done.stderr
    (run,) = stepwell.list_runs(tmp_path / "runs")
    assert run.metrics().collect()["value"].to_list() == [7.0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_goes_on_in_the_same_run(recorded: Run) -> None:
    """As a worker of it, with rows of its own."""
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


# The backend's run


class _Delivery:
    """In the place of a delivery: what it was told, and a state that comes some time."""

    def __init__(self, later: float = 0.0, takes: float = 0.0) -> None:
        self.ready = time.monotonic() + later
        self.takes = takes
        self.calls: list[tuple[Any, ...]] = []

    def state(self) -> dict[str, Any]:
        found = {"run_id": "r1", "name": "n", "url": "http://x", "experiment_id": 3}
        return found if time.monotonic() >= self.ready else {"notes": {}}

    def drain(self, timeout: float) -> bool:
        time.sleep(min(timeout, self.takes))
        self.calls.append(("drain", timeout))
        return self.takes <= timeout

    def close(self, timeout: float) -> None:
        time.sleep(min(timeout, self.takes))
        self.calls.append(("close", timeout))


class Backed(Logger):
    """With a backend, whose delivery is watched."""

    to = "backed"
    backend_class = "tests.loggers.test_base.NoBackend"

    def backend_options(self) -> dict[str, Any]:
        return {"run_name": "mine", "folder": "x"}


class NoBackend:
    """Only keeps what it is made with."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def description(self) -> dict[str, Any]:
        return {"class": "tests.loggers.test_base.NoBackend", "options": self.options}


@pytest.fixture
def delivery(monkeypatch: pytest.MonkeyPatch) -> _Delivery:
    found = _Delivery()

    def deliver(context: contexts.Context, backend: Any) -> None:
        context.delivery = found

    monkeypatch.setattr(contexts.Context, "deliver", deliver)
    return found


def test_the_journal_is_told_how_the_backend_is_made(recorded: Run, delivery: _Delivery) -> None:
    """So that a run can be forwarded later."""
    Backed(log_on_workers=[2, 0]).create_logger_context(rank=0)
    (line,) = logger_lines(recorded)
    assert line["name"] == "backed"
    assert line["attributes"] == {
        "number": 1,
        "to": "backed",
        "rank": 0,
        "class": "tests.loggers.test_base.NoBackend",
        "options": {"number": 1, "rank": 0, "ranks": [0, 2], "run_name": "mine", "folder": "x"},
    }


def test_the_backends_run(recorded: Run, delivery: _Delivery) -> None:
    """Waited for as long as is said; its ids are then the logger's."""
    logger = Backed().create_logger_context()
    delivery.ready = time.monotonic() + 0.3
    assert logger.backend_run(timeout=0) is None
    assert logger.run_id is None
    assert logger.backend_run(timeout=5) == BackendRun("r1", "n", "http://x", None)
    assert (logger.run_id, logger.experiment_id) == ("r1", "3")


def test_the_end_is_bounded(recorded: Run, delivery: _Delivery) -> None:
    """By the time that is given; the journal is told how it ended, which delivery reads."""
    delivery.takes = 5.0
    logger = Backed().create_logger_context()
    assert not logger.flush(timeout=0.05)
    begin = time.monotonic()
    logger.destroy_logger_context(timeout=0.1, status="failed")
    assert time.monotonic() - begin < 2
    assert delivery.calls[-1] == ("close", 0.1)
    assert logger_lines(recorded)[-1]["attributes"]["status"] == "failed"


def test_without_a_backend_there_is_no_run_to_wait_for(recorded: Run) -> None:
    """Not for a moment."""
    begin = time.monotonic()
    assert Own().create_logger_context().backend_run(timeout=10) is None
    assert time.monotonic() - begin < 1


def test_a_delivery_that_cannot_begin_does_not_stop_training(
    recorded: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, and what is logged is in the run."""
    from stepwell.loggers.delivery import sending as deliveries

    def fail(run: Run, backend: Any) -> None:
        raise OSError("no space")

    monkeypatch.delenv("STEPWELL_STRICT")
    monkeypatch.setattr(deliveries, "start_delivery", fail)
    caplog.set_level(logging.WARNING, "stepwell")
    with Backed().start_logging() as logger:
        logger.log(1.0, "loss")
    assert "no space" in caplog.text
    recorded.finish()
    assert [m.value for m in metrics(recorded)] == [1.0]


# Others


def test_should_log_of_a_subclass_counts(recorded: Run) -> None:
    """For each call, alone and in a collection."""

    class Odd(Own):
        def should_log(self, batch_idx: int | None = None) -> bool:
            return bool(batch_idx and batch_idx % 2)

    logger = Odd(log_freq="epoch")
    both = LoggersCollection([logger]).create_logger_context()
    for i in range(4):
        logger.log(float(i), "alone", batch_idx=i)
        both.log(float(i), "both", batch_idx=i)
        logger.log(f"{i}", "text", kind="text", batch_idx=i)
    recorded.finish()
    assert [m.value for m in metrics(recorded) if m.name == "alone"] == [1.0, 3.0]
    assert [m.value for m in metrics(recorded) if m.name == "both"] == [1.0, 3.0]
    assert [i.value for i in items(recorded)] == ["1", "3"]


def test_the_mlflow_logger_is_found() -> None:
    """Alone, in a collection, or not at all."""
    mlflow = MLFlowLogger()
    assert get_mlflow_logger(mlflow) is mlflow
    assert get_mlflow_logger(LoggersCollection([Own(), mlflow])) is mlflow
    assert get_mlflow_logger(Own()) is None
    assert get_mlflow_logger(None) is None


def test_serialize_gives_the_path(tmp_path: Path) -> None:
    """Which the published one forgets."""
    path = Own(savedir=tmp_path).serialize({"a": 1}, "things/object")
    assert pickle.loads(Path(path).read_bytes()) == {"a": 1}
    assert Path(path) == tmp_path / "things" / "object"
