"""Stores that the file system refuses: training goes on, in memory.

The kernel answers a store to a mapped page with SIGBUS when the file system does not take it: the file was
made immutable, the disk fails, a copy-on-write file system is full. That signal would end training. Here the
segment in question is replaced by plain memory with the same content, at the same address, and the store is
done again. What is recorded in it from then on is written when the file system takes it, and not before.

Any other SIGBUS goes to the handler that was installed before. One that another process sends may come in the
middle of the interpreter's own locking, where no Python code can run: then this process ends with SIGSEGV, or
hangs. No tool is known to send it.
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
from typing import Any

from stepwell.journal.mapping import MAP_FIXED, address_of, libc_mmap

MACHINES = ("x86_64", "aarch64")
"""Where the layouts below are right."""
SA_SIGINFO = 4
CODE, ADDRESS, SENDER = 8, 16, 16
"""Offsets in ``siginfo_t``: why, and where it happened or who sent it."""
PAGE = mmap.PAGESIZE


class BusErrors:
    """Handles SIGBUS for the segments of this process.

    Attributes:
        kept: addresses of the segments that are in memory only.
    """

    def __init__(self) -> None:
        self.kept: set[int] = set()
        self._sizes: dict[int, int] = {}
        self._lock = threading.Lock()
        self._is_tried = False
        self._libc: Any = None
        self._previous: Any = None
        self._callback: Any = None

    def guard(self, mapping: mmap.mmap) -> int:
        """Survive refused stores to this mapping, as far as this system lets us; returns its address."""
        if not self._is_tried:
            with self._lock:
                self._install()
        if self._previous is None:
            return 0
        address = address_of(mapping)
        self._sizes[address] = len(mapping)
        return address

    def release(self, address: int) -> None:
        """Let go of a mapping that is being unmapped."""
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
        # While the interpreter ends, too, the kernel knows its address.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._callback))
        action = Action(ctypes.cast(self._callback, ctypes.c_void_p).value, flags=SA_SIGINFO)
        previous = Action()
        if not self._libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(previous)):
            self._previous = previous

    def _restore(self) -> None:
        import ctypes

        self._libc.sigaction(signal.SIGBUS, ctypes.byref(self._previous), None)

    # In the thread that wrote, in the middle of its store

    def _handle(self, _number: int, info: int, _context: int) -> None:
        try:
            self._answer(info)
        except KeyboardInterrupt:
            self._answer(info)
            _thread.interrupt_main()
        except BaseException:
            # The store is done again, and ends the process as it would have without us.
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
        """Obey a signal that was sent; a handler of this process sends it again, and so does the store."""
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
    """What is mapped there, without touching it: what the disk does not give back is zeros."""
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
