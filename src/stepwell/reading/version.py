"""Which version of the format a run is in, and whether this reader knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell.journal.errors import StepwellError
from stepwell.journal.format import FORMAT

LATEST = 1000
"""What is no number of a version, but damage, keeps nobody from reading what can be read."""


def newer_format(about: Mapping[str, Any]) -> int | None:
    """The version that run.json tells, if this reader is too old for it; else None."""
    told = about.get("stepwell")
    return told if isinstance(told, int) and FORMAT < told < LATEST else None


def check_format(run: str, about: Mapping[str, Any]) -> None:
    """Refuse a run of the future: read with the rules of today, its tables would be wrong."""
    newer = newer_format(about)
    if newer is not None:
        raise StepwellError(
            f"the run {run!r} is in format {newer}, and this stepwell reads {FORMAT}: a newer one "
            "recorded it. Upgrade here with pip install -U stepwell"
        )
