"""A run for values that stepwell may warn about."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepwell
from stepwell import Run
from stepwell.journal import errors


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that is being recorded, in which every warning is still to be said."""
    errors.counts.clear()
    return stepwell.init("test", dir=tmp_path / "runs")
