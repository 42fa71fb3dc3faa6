"""A run for values that stepwell may warn about, and segments that are soon full."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepwell
from stepwell import Run
from stepwell._core import errors
from stepwell.journal import lane
from stepwell.journal.format import HEADER_BYTES, ROW_BYTES, SPAN_SLOTS


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that is being recorded, in which every warning is still to be said."""
    errors.counts.clear()
    return stepwell.init("test", dir=tmp_path / "runs")


@pytest.fixture
def slots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Slots of a segment: 1,024 of spans and as many rows of metrics, or what a test asks for."""
    slots: int = getattr(request, "param", 1024)
    if slots < SPAN_SLOTS:
        monkeypatch.setattr(lane, "SPAN_SLOTS", slots)
        monkeypatch.setattr(lane, "METRIC_BYTES", HEADER_BYTES + slots * ROW_BYTES)
    return slots
