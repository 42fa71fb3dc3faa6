"""A run to do things to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stepwell import Run
from stepwell.journal.state import local


@pytest.fixture
def folder(recorded: Run, tmp_path: Path) -> Path:
    """A run as it was left by a killed process: live files, sealed ones and every text file."""
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
    return Path(shutil.copytree(recorded.path, tmp_path / "strange" / "run"))
