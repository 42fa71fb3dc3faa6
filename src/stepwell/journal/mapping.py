"""Files in memory, without a file descriptor each.

A job may have hundreds of threads that record, and the descriptors of a process are few and belong to the
user's own files.
"""

from __future__ import annotations

import mmap
import sys
from functools import cache
from typing import Any

MAP_FIXED = 0x10
"""Of Linux: replace what is mapped at that address. The module ``mmap`` does not have it."""


def map_file(fd: int, size: int) -> mmap.mmap:
    """Map a file, without the copy of its descriptor that ``mmap.mmap(fd)`` keeps where possible."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, trackfd=False)
    place_file = libc_mmap()
    if place_file is None:
        return mmap.mmap(fd, size)
    # The object owns anonymous memory; the file takes the place of that memory.
    mapping = mmap.mmap(-1, size)
    address = address_of(mapping)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if place_file(address, size, protection, mmap.MAP_SHARED | MAP_FIXED, fd, 0) != address:
        mapping.close()
        return mmap.mmap(fd, size)
    return mapping


@cache
def libc_mmap() -> Any:
    """Return the C function ``mmap``; None where it cannot be called."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        function = ctypes.CDLL(None).mmap
    except (ImportError, OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    )
    return function


def address_of(mapping: mmap.mmap) -> int:
    """Where a mapping begins."""
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))
