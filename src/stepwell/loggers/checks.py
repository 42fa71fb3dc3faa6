"""Arguments of constructors: what is wrong is said at once, with what to write instead."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepwell.journal.errors import StepwellError
from stepwell.journal.values import shown


def optional_text(name: str, value: Any) -> str | None:
    """A text, or None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return str(value)
    raise StepwellError(f"{name} is {shown(value)}: write a text, such as {name}='…', or None")


def optional_id(name: str, value: Any) -> str | None:
    """An id, or None; a number is one too."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or (isinstance(value, str) and value):
        return value
    raise StepwellError(f"{name} is {shown(value)}: write the backend's own id as a text, or None")


def folder(name: str, value: Any) -> Path:
    """A folder."""
    if isinstance(value, str | os.PathLike) and "\0" not in os.fspath(value):
        return Path(value)
    raise StepwellError(f"{name} is {shown(value)}: write a folder, such as 'mllogs'")


def seconds(name: str, value: Any) -> float:
    """A time to wait."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if math.isnan(found) or isinstance(value, str):
        raise StepwellError(f"{name} is {shown(value)}: write a number of seconds")
    return found


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if isinstance(value, bool):
        return value
    raise StepwellError(f"{name} is {shown(value)}: write True or False")


def positive(name: str, value: Any) -> int:
    """A whole number from 1 on."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise StepwellError(f"{name} is {shown(value)}: write a whole number from 1 on")


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """One of these words."""
    if isinstance(value, str) and value in known:
        return value
    raise StepwellError(f"{name} is {shown(value)}: write {' or '.join(map(repr, known))}")
