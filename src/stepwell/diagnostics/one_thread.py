"""Work on the CPU in the calling thread alone.

torch shares a large tensor out among threads. For one pass over memory that gains little, and where other
programs keep the cores busy, these threads wait for each other up to hundreds of times as long as they work.
``torch.set_num_threads`` is no way out: it also changes how the rest of the process calculates, for good.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Within, torch's own kernels do not share out what this thread asks for, where that can be had.

    ``torch.get_num_threads() == 1`` tells whether it could. No other thread notices.
    """
    before = torch.get_num_threads()
    set_threads = _setter() if before > 1 else None
    if set_threads is None:
        yield
        return
    set_threads(1)
    try:
        yield
    finally:
        set_threads(before)


@cache
def _setter() -> Any:
    """OpenMP's own, which is about the calling thread only; None where torch does without OpenMP."""
    try:
        # As a dependency of this library it is the one that torch uses, if several are loaded.
        setter = ctypes.CDLL(torch._C.__file__).omp_set_num_threads
    except (AttributeError, OSError, TypeError):
        return None
    setter.argtypes, setter.restype = [ctypes.c_int], None
    return setter
