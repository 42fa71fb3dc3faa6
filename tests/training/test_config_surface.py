"""Configurations in the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepwell.training.config import ApplicationFields, TrainingFields, TrainingTelemetryConfig
from stepwell.training.settings import Setting, settings_of

REFERENCE = Path(__file__).parents[2] / "docs" / "training.md"


def reference_row(name: str, about: Setting, default: Any) -> str:
    """A row of the reference in the documentation."""
    takes = f"{about.kind.wanted.partition(', such')[0]}{' or fn' if about.takes_function else ''}"
    shown = "" if default is None else f"`{default}`"
    return f"| `{name}` | {takes} | {shown} | {about.meaning} |"


@pytest.mark.parametrize("fields", [ApplicationFields, TrainingFields])
def test_the_documentation_has_every_field(fields: type) -> None:
    """The page lists each field with what it takes, its default and its meaning."""
    lines = REFERENCE.read_text(encoding="utf-8").splitlines()
    plain = TrainingTelemetryConfig()
    rows = [
        reference_row(name, about, None if name == "application_name" else getattr(plain, name))
        for name, about in settings_of(fields).items()
    ]
    assert [row for row in rows if row not in lines] == []
