"""An unconfigured provider of one-logger, whose runs are in a folder of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.compat.one_logger import TrainingTelemetryProvider


@pytest.fixture
def provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TrainingTelemetryProvider]:
    """The provider, as at the start of a program in this folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))
    found = TrainingTelemetryProvider.instance()
    found.reset()
    yield found
    found.reset()
