"""Arguments of constructors: what is wrong is said at once, with what to write instead."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
