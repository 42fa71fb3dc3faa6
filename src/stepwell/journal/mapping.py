"""Mapped files: without a file descriptor each, and safe from SIGBUS.

A job may have hundreds of recording threads, and the descriptors of a process are few and belong to the user.

If a file system does not accept a store to a mapped page (the file became immutable, the disk fails, a
copy-on-write file system is full), the kernel sends SIGBUS, which would end training. Here the mapping is
replaced by plain memory with the same content at the same address, and the store is repeated. Later records
stay in memory and are written when the file system accepts them again.

Any other SIGBUS goes to the handler that was installed before. If another process sends it while the
interpreter holds its own locks, no Python code can run, and this process ends with SIGSEGV or hangs. No tool
is known to send SIGBUS.
"""

from __future__ import annotations

import _thread
import contextlib
import mmap
import os
import platform
import signal
import sys
import threading
from functools import cache
from typing import Any

MAP_FIXED = 0x10
"""Linux: replace the mapping at that address. Missing in the module ``mmap``."""


def map_file(fd: int, size: int) -> mmap.mmap:
    """Map a file; if possible without the copy of its descriptor that ``mmap.mmap(fd)`` keeps."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, trackfd=False)
    place_file = libc_mmap()
    if place_file is None:
        return mmap.mmap(fd, size)
    # The object owns anonymous memory, which the file replaces.
    mapping = mmap.mmap(-1, size)
    address = address_of(mapping)
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if place_file(address, size, protection, mmap.MAP_SHARED | MAP_FIXED, fd, 0) != address:
        mapping.close()
        return mmap.mmap(fd, size)
    return mapping


@cache
def libc_mmap() -> Any:
    """Return the C function ``mmap``; None if it is not available."""
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
    """Return the address of a mapping."""
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


MACHINES = ("x86_64", "aarch64")
"""Machines for which the layouts below are correct."""
SA_SIGINFO = 4
CODE, ADDRESS, SENDER = 8, 16, 16
"""Offsets in ``siginfo_t``: the cause, and the address or the sender."""
PAGE = mmap.PAGESIZE


class BusErrors:
    """Handles SIGBUS for the segments of this process.

    Attributes:
        kept: addresses of segments that are in memory only.
    """

    def __init__(self) -> None:
        self.kept: set[int] = set()
        self._sizes: dict[int, int] = {}
        # Re-entrant: a signal handler may record, and so create its own segment, while this is installed.
        self._lock = threading.RLock()
        self._is_tried = False
        self._libc: Any = None
        self._previous: Any = None
        self._callback: Any = None

    def guard(self, mapping: mmap.mmap) -> int:
        """Handle refused stores to this mapping. Return its address; 0 if the system does not allow it."""
        if not self._is_tried:
            with self._lock:
                self._install()
        if self._previous is None:
            return 0
        address = address_of(mapping)
        self._sizes[address] = len(mapping)
        return address

    def release(self, address: int) -> None:
        """Stop guarding a mapping that is about to be unmapped."""
        self._sizes.pop(address, None)
        self.kept.discard(address)

    def _install(self) -> None:
        if self._is_tried:
            return
        self._is_tried = True
        if libc_mmap() is None or platform.machine() not in MACHINES or sys.maxsize < 2**32:
            return
        import ctypes

        class Action(ctypes.Structure):
            """``struct sigaction`` of glibc and musl."""

            _fields_ = (
                ("handler", ctypes.c_void_p),
                ("mask", ctypes.c_ulong * 16),
                ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p),
            )

        self._libc = ctypes.CDLL(None)
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
            self._handle
        )
        # Never freed: the kernel may call it while the interpreter shuts down.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._callback))
        action = Action(ctypes.cast(self._callback, ctypes.c_void_p).value, flags=SA_SIGINFO)
        previous = Action()
        if not self._libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(previous)):
            self._previous = previous

    def _restore(self) -> None:
        import ctypes

        self._libc.sigaction(signal.SIGBUS, ctypes.byref(self._previous), None)

    # Runs in the thread that wrote, in the middle of its store

    def _handle(self, _number: int, info: int, _context: int) -> None:
        try:
            self._answer(info)
        except KeyboardInterrupt:
            self._answer(info)
            _thread.interrupt_main()
        except BaseException:
            # The store is repeated, and ends the process as it would without this handler.
            self._restore()

    def _answer(self, info: int) -> None:
        import ctypes

        if ctypes.c_int.from_address(info + CODE).value <= 0:
            self._pass_on(ctypes.c_int.from_address(info + SENDER).value)
            return
        place = ctypes.c_void_p.from_address(info + ADDRESS).value or 0
        for address, size in list(self._sizes.items()):
            if address <= place < address + size:
                self._keep(address, size)
                return
        self._restore()

    def _pass_on(self, sender: int) -> None:
        """Let the previous handler receive a signal that another process sent."""
        if sender != os.getpid():
            self._restore()
            os.kill(os.getpid(), signal.SIGBUS)

    def _keep(self, address: int, size: int) -> None:
        import ctypes

        content = _read(address, size)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        if libc_mmap()(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != address:
            raise MemoryError
        ctypes.memmove(address, content, size)
        self.kept.add(address)


def _read(address: int, size: int) -> bytes:
    """Return the mapped content without accessing the pages; zeros where the disk fails."""
    import ctypes

    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
    except OSError:
        return ctypes.string_at(address, size)
    pages = []
    try:
        for begin in range(address, address + size, PAGE):
            page = b""
            with contextlib.suppress(OSError):
                page = os.pread(memory, min(PAGE, address + size - begin), begin)
            pages.append(page.ljust(min(PAGE, address + size - begin), b"\0"))
    finally:
        os.close(memory)
    return b"".join(pages)


bus_errors = BusErrors()
