"""Kinds: every one is known, and a wrong one is an error that helps."""

from __future__ import annotations

import pytest

from stepwell import Run, StepwellError
from stepwell.loggers import (
    KINDS,
    ConsoleLogger,
    EmptyLogger,
    Logger,
    LoggersCollection,
    MLFlowLogger,
    Prov4MLLogger,
    TensorBoardLogger,
    WandBLogger,
)
from stepwell.loggers.items.converters import CONVERTERS
from stepwell.loggers.kinds import check_kind
from tests.loggers.logged import Own, records

DOCUMENTED = [
    "metric",
    "param",
    "artifact",
    "torch",
    "dict",
    "figure",
    "image",
    "text",
    "histogram",
    "table",
    "model",
    "best_model",
    "dataset",
    "watch",
    "flops_pb",
    "flops_pe",
    "system",
    "carbon",
    "execution_time",
    "prov_documents",
]


def test_all_documented_kinds_are_there() -> None:
    """Twenty of them, each with words about what its item is."""
    assert list(KINDS) == DOCUMENTED
    assert all(KINDS.values())


def test_each_kind_has_a_way_into_the_run() -> None:
    """None is declared and then not known."""
    others = {"metric", "watch", "system", "carbon", "execution_time", "prov_documents"}
    assert CONVERTERS.keys() | others == set(DOCUMENTED)


@pytest.mark.parametrize(
    "logger",
    [
        Logger,
        ConsoleLogger,
        MLFlowLogger,
        WandBLogger,
        TensorBoardLogger,
        Prov4MLLogger,
        EmptyLogger,
        LoggersCollection,
    ],
)
def test_each_logger_says_which_kinds_it_takes(logger: type[Logger]) -> None:
    """All of them take all."""
    assert logger.supported_kinds == tuple(DOCUMENTED)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("metrics", "metric"),
        ("Metric", "metric"),
        ("best-model", "best_model"),
        ("figur", "figure"),
        ("parameter", "param"),
        ("flops", "flops_p"),
        ("model_version", "model"),
    ],
)
def test_the_nearest_kind_is_offered(wrong: str, meant: str) -> None:
    """With the wrong word itself, and the whole list."""
    with pytest.raises(StepwellError) as error:
        check_kind(wrong)
    said = str(error.value)
    assert repr(wrong) in said
    assert f"did you mean '{meant}" in said
    assert all(repr(kind) in said for kind in KINDS)


@pytest.mark.parametrize("wrong", [None, 3, "", "zzzzzz", ["metric"], object()])
def test_what_is_like_no_kind_gets_the_list_alone(wrong: object) -> None:
    """Whatever it is."""
    with pytest.raises(StepwellError, match="kind must be one of 'metric'") as error:
        check_kind(wrong)
    assert "did you mean" not in str(error.value)


@pytest.mark.parametrize("item", [1.0, 1, "text", {"a": 1}])
def test_a_wrong_kind_is_an_error_of_the_call(recorded: Run, item: object) -> None:
    """Also on a worker that does not log: else only one rank of many would fail. Nothing is kept."""
    for workers in (0, 1):
        logger = Own(log_on_workers=workers).create_logger_context(rank=0)
        with pytest.raises(StepwellError, match="did you mean 'metric'"):
            logger.log(item, "x", kind="metrc")
        logger.destroy_logger_context()
    recorded.finish()
    assert records(recorded) == []
