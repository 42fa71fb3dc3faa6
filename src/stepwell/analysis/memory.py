"""Memory: the C library keeps freed memory, which adds up over many tasks."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        # Only glibc has it.
        return None


def trim_malloc() -> None:
    """Return free memory to the system, if the C library can."""
    trim = _trim()
    if trim is not None:
        trim(0)
