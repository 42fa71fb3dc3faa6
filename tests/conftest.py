"""What tests share: an environment that no launcher has touched, and a run in a fresh folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell
from stepwell import Run
from stepwell.telemetry.identity import describe_launch_environment

OURS = ("STEPWELL_",)


@pytest.fixture(autouse=True)
def _untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of ours or of a launcher is set, and no run outlives its test."""
    for name in [*describe_launch_environment(os.environ), *os.environ]:
        if name.startswith(OURS) or name in describe_launch_environment(os.environ):
            monkeypatch.delenv(name, raising=False)
    yield
    stepwell.finish()


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that is being recorded, in which a problem inside stepwell is raised."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    return stepwell.init("test", dir=tmp_path / "runs")
