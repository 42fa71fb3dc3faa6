"""At which step a metric is: the one given, else the current one, else the count of earlier values."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch

from stepwell import Run, open_run
from tests.journal.readback import metrics_of


def test_without_any_step_values_are_counted(recorded: Run) -> None:
    """Each metric counts its own values from 0 while no step was ever set."""
    recorded.log({"a": 1.0})
    recorded.log({"a": 2.0, "b": 5})
    recorded.log({"a": 3.0, "c": {"d": 7.0}})
    assert metrics_of(recorded) == {
        "a": [(0, 1.0), (1, 2.0), (2, 3.0)],
        "b": [(0, 5.0)],
        "c/d": [(0, 7.0)],
    }


def test_the_current_step_is_taken_once_set(recorded: Run) -> None:
    """After ``set_step`` values are at that step and epoch, and before it they stay counted."""
    recorded.log({"a": 1.0})
    recorded.set_step(10, epoch=2)
    recorded.log({"a": 2.0})
    recorded.set_step(11)
    recorded.log({"a": 3.0})
    recorded.set_step(None, epoch=3)
    recorded.log({"a": 4.0})
    assert metrics_of(recorded) == {"a": [(0, 1.0), (10, 2.0), (11, 3.0), (11, 4.0)]}
    assert open_run(recorded.path).metrics().collect()["epoch"].to_list() == [None, 2, 2, 3]


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        (0, 0),
        (7, 7),
        (np.int64(8), 8),
        (np.int32(-3), -3),
        (np.array(9), 9),
        (torch.tensor(4), 4),
        (3.0, 3),
        (True, 1),
        (-1, -1),
        (2**40, 2**40),
        (2**62 - 1, 2**62 - 1),
        (-(2**62) + 1, -(2**62) + 1),
    ],
)
def test_an_explicit_step_wins(recorded: Run, step: Any, kept: int) -> None:
    """The step given with the values is theirs, negative and NumPy ones included."""
    recorded.set_step(100)
    recorded.log({"a": 1.0, "b": {"c": 2}}, step=step)
    recorded.log({"a": 3.0})
    assert metrics_of(recorded) == {"a": [(kept, 1.0), (100, 3.0)], "b/c": [(kept, 2.0)]}


class Failing:
    def __int__(self) -> int:
        raise RuntimeError("no number")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


ABSURD = [2**62, -(2**62), 10**5000, math.nan, math.inf, "many", [1], Failing()]


@pytest.mark.parametrize("step", ABSURD, ids=range(len(ABSURD)))
def test_an_absurd_step_is_one_warning_and_the_current_step(
    run: Run, caplog: pytest.LogCaptureFixture, step: Any
) -> None:
    """Values with an invalid step are recorded at the current step, with one warning."""
    run.set_step(5)
    run.log({"a": 1.0}, step=step)
    run.log({"a": 2.0}, step=step)
    assert metrics_of(run) == {"a": [(5, 1.0), (5, 2.0)]}
    [said] = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert said.startswith("step must be a whole number below 2**62, got ")
    assert said.endswith(". The current step is used instead.")


@pytest.mark.parametrize("step", [*ABSURD, -1, 2**39], ids=range(len(ABSURD) + 2))
def test_an_absurd_current_step_is_one_warning_and_unknown(
    run: Run, caplog: pytest.LogCaptureFixture, step: Any
) -> None:
    """An invalid step makes the current step unknown: values are counted again."""
    run.set_step(5, epoch=1)
    run.set_step(step)
    run.set_step(step)
    run.log({"a": 1.0})
    run.event("e")
    assert metrics_of(run) == {"a": [(0, 1.0)]}
    assert open_run(run.path).events().collect()["step"].to_list() == [None]
    [said] = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert said.startswith("step must be a whole number from 0 to ")
    assert "recorded as unknown" in said


def test_the_largest_step_and_epoch_fit(recorded: Run) -> None:
    """Half a trillion steps and sixteen million epochs come back as they were."""
    step, epoch = 2**39 - 2, 2**24 - 2
    recorded.set_step(step, epoch=epoch)
    with recorded.span("s"):
        recorded.log({"a": 1.0})
        recorded.event("e")
    tables = open_run(recorded.path)
    for table in (tables.spans(), tables.metrics(), tables.events()):
        assert table.select("step", "epoch").collect().rows() == [(step, epoch)]


def test_counts_begin_anew_with_each_run(recorded: Run) -> None:
    """A second run in the same process counts from 0 and knows no step of the first."""
    import stepwell

    recorded.set_step(8)
    recorded.log({"a": 1.0})
    second = stepwell.init("second", dir=recorded.path.parent)
    second.log({"a": 2.0})
    second.log({"a": 3.0})
    assert metrics_of(second) == {"a": [(0, 2.0), (1, 3.0)]}
    assert metrics_of(recorded) == {"a": [(8, 1.0)]}
