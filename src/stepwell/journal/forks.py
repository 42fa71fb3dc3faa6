"""Background threads and forks keep out of each other's way.

A child that is forked while another thread imports a module finds that module half made, and its lock
held for ever; the same is true of the locks inside the standard library. A background thread imports,
and calls what takes such a lock, under a lock that every fork waits for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST_WAIT = 5.0


class _Forks:
    """``lock`` is held by whoever takes such a lock in the background, and by every fork."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.held = threading.local()

    def before(self) -> None:
        self.held.here = self.lock.acquire(timeout=LONGEST_WAIT)

    def after_in_parent(self) -> None:
        if self.held.here:
            self.lock.release()

    def after_in_child(self) -> None:
        self.lock = threading.RLock()


_forks = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_forks.before,
        after_in_parent=_forks.after_in_parent,
        after_in_child=_forks.after_in_child,
    )


@contextmanager
def held_off() -> Iterator[None]:
    """No fork within: for imports and foreign locks in a background thread."""
    with _forks.lock:
        yield
