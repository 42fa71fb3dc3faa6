"""Metrics of one name from several contexts are series of their own."""

from __future__ import annotations

import enum
from pathlib import Path

import pytest

import stepwell
from stepwell.loggers import LoggersCollection, TensorBoardLogger
from stepwell.loggers.prov import document_of
from tests.loggers.logged import Own, metrics
from tests.loggers.prov_checking import check, pairs, things, value
from tests.loggers.tensorboard_reading import scalars


class Context(enum.Enum):
    """As yProv4ML has it."""

    TRAINING = 0
    VALIDATION = 1


def test_each_context_is_a_series(recorded: stepwell.Run) -> None:
    """Given as a word or as a member of an enumeration; without one the name does not change."""
    logger = Own(log_freq="batch").create_logger_context()
    for step in range(2):
        logger.log(1.0 + step, "loss", step=step)
        logger.log(10.0 + step, "loss", step=step, context="training")
        logger.log(20.0 + step, "loss", step=step, context=Context.VALIDATION)
        logger.log(30.0 + step, "Fold 1/loss", step=step, context="Context.TRAINING")
    logger.log([0.5, 0.25], ["a", "b"], context="TESTING", step=0)
    logger.log({"x": 1.0}, "parts", context="testing", step=0)
    logger.log(2.0, "training/lr", context="training", step=0)
    logger.log(3.0, "empty", context="", step=0)
    recorded.finish()
    series: dict[str, list[float]] = {}
    for one in metrics(recorded):
        series.setdefault(one.name, []).append(one.value)
    assert series == {
        "loss": [1.0, 2.0],
        "training/loss": [10.0, 11.0],
        "validation/loss": [20.0, 21.0],
        "training/Fold 1/loss": [30.0, 31.0],
        "testing/a": [0.5],
        "testing/b": [0.25],
        "testing/parts/x": [1.0],
        "training/lr": [2.0],
        "empty": [3.0],
    }


def test_the_document_has_an_entity_for_each_context(recorded: stepwell.Run) -> None:
    """Made by the phase that the context names, also where it was logged after that."""
    pytest.importorskip("prov")
    logger = Own(log_freq="batch").create_logger_context()
    with stepwell.span("training_loop"):
        logger.log(1.0, "loss", step=0, context="training")
        with stepwell.span("validation_loop"):
            pass
        logger.log(2.0, "loss", step=0, context="validation")
    logger.log(3.0, "loss", step=0)
    logger.log(4.0, "loss", step=0, context="testing")
    recorded.finish()
    document = document_of(recorded.path)
    check(document)
    found = things(document, "stepwell:Metric")
    made_by = dict(pairs(document, "wasGeneratedBy"))
    told = {
        id: (value(about["prov:value"]), about.get("stepwell:context"), made_by[id])
        for id, about in found.items()
    }
    place = "run:metric/attempt-0"
    assert told == {
        f"{place}/training%2Floss": ("1.0", "training", "run:attempt-0/training_loop"),
        f"{place}/validation%2Floss": ("2.0", "validation", "run:attempt-0/validation_loop"),
        f"{place}/testing%2Floss": ("4.0", "testing", "run:attempt-0"),
        f"{place}/loss": ("3.0", None, "run:attempt-0"),
    }


@pytest.mark.full
def test_tensorboard_has_a_tag_for_each_context(root: Path, tmp_path: Path) -> None:
    """Through a collection, too."""
    pytest.importorskip("tensorboard")
    logger = LoggersCollection([TensorBoardLogger(tmp_path / "logs"), Own()])
    with logger.start_logging():
        logger.log(1.0, "loss", step=0, context="training")
        logger.log(2.0, "loss", step=0, context="validation")
        assert logger.flush(100)
    [file] = (tmp_path / "logs").rglob("*tfevents*")
    found = scalars(file.parent)
    assert found["training/loss"] == [(0, 1.0)]
    assert found["validation/loss"] == [(0, 2.0)]
