"""A run to do things to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import Run
from stepwell.journal.state import local
from tests.in_memory import folder_in_memory
from tests.in_memory import tmp_path as tmp_path
from tests.reading.strangers import Read, SampledReader, read_everything


@pytest.fixture(params=["decoded", pytest.param("all tables", marks=pytest.mark.full)])
def read(request: pytest.FixtureRequest) -> Read:
    """Read a damaged run and count its rows; with all its tables every time, or every tenth time."""
    return read_everything if request.param == "all tables" else SampledReader()


@pytest.fixture
def folder(recorded: Run) -> Iterator[Path]:
    """The run of a killed process: live files, sealed ones and every text file."""
    recorded.set_step(1, epoch=0)
    for round_ in range(3):
        with recorded.span("outer", round=round_), recorded.span("inner"):
            recorded.log({"x": 1.0})
        recorded.event("e", a=1)
        assert local.lane.roll()
        assert local.lane.roll_metrics()
        recorded.flush()
    recorded.artifact(b"kept", "a")
    recorded.span("open", a=1).__enter__()
    recorded.log({"x": 2.0})
    with folder_in_memory() as made:
        yield Path(shutil.copytree(recorded.path, Path(made) / "strange" / "run"))
