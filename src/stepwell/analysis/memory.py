"""Giving memory back: the C library keeps what was freed in between, which adds up over many tasks."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        # Other C libraries do it themselves, or not at all.
        return None


def give_back() -> None:
    """Return to the system what is free."""
    trim = _trim()
    if trim is not None:
        trim(0)
