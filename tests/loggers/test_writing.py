"""Records of a logger: metrics at their steps, and hyperparameters."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run, StepwellError
from tests.harness import run_script
from tests.loggers.logged import Another, Own, items, metrics, process_folder


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
    """With the exact value, whatever number it is; it is not an event."""
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
    """Training continues, and the value is an event of the run."""
    logger = Own().create_logger_context()
    logger.log(odd, f"odd {type(odd).__name__}")
    assert "must be a number" in caplog.text
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
    """The given step, else that of the run, else the number of earlier values of this metric."""
    logger = Own().create_logger_context()
    for run_step, step in zip(run_steps, steps, strict=True):
        if run_step is not None:
            recorded.set_step(run_step)
        logger.log(1.0, "loss", step=step)
    recorded.finish()
    assert [m.step for m in metrics(recorded)] == found
    assert stepwell.open_run(recorded.path).metrics().collect()["step"].to_list() == found


def test_the_count_is_that_of_the_metric_whoever_hears_of_it(recorded: Run) -> None:
    """Two loggers and the run's own log share one count."""
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
    with pytest.raises(StepwellError, match="3 items and 2 identifiers"):
        logger.log([1.0, 2.0, 3.0], ["a", "b"])
    monkeypatch.delenv("STEPWELL_STRICT")
    logger.log([1.0, 2.0, 3.0], ["a", "b"])
    recorded.finish()
    assert [m.name for m in metrics(recorded)] == ["a", "b"]


@pytest.mark.parametrize("wrong", [None, ""])
def test_what_has_no_name_is_said(recorded: Run, wrong: Any) -> None:
    """A name that is something else than a text is taken for one."""
    logger = Own().create_logger_context()
    with pytest.raises(StepwellError, match="has no name"):
        logger.log(1.0, wrong)
    logger.log(1.0, 5)
    recorded.finish()
    assert [m.name for m in metrics(recorded)] == ["5"]


MANY = """
import sys, stepwell
from tests.loggers.logged import Own
with stepwell.init("many", dir=sys.argv[1]):
    logger = Own(log_freq="batch").create_logger_context()
    for i in range(100_000):
        logger.log(float(i), f"metric {i % 10_000}", step=i)
"""


@pytest.mark.full
def test_ten_thousand_metrics_and_a_hundred_thousand_values(tmp_path: Path) -> None:
    """All of them arrive, over several segments."""
    # In a process of its own, as names stay with a process: every later run would have all of them.
    run_script(MANY, tmp_path, check=True)
    (run,) = stepwell.list_runs(tmp_path)
    found = metrics(run)
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
    """It reports the latest one, for whichever logger it was."""
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
    assert "save_hyperparameters() stored nothing" in caplog.text
