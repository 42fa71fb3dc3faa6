"""Threads: starting them in the background, keeping them from holding locks across a fork, and two at a time.

A child that is forked while another thread imports a module finds that module half initialised and its lock
held for ever. The same holds for locks inside the standard library. A background thread therefore imports
modules, and calls functions that take such locks, inside `forks_blocked`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from stepwell._core.errors import warn_once

T = TypeVar("T")
R = TypeVar("R")


def start_thread(name: str, target: Callable[..., Any], *args: Any) -> threading.Thread | None:
    """Start a daemon thread and return it; None if the system refuses.

    It refuses at a limit of processes or memory, and from Python 3.12 on while the interpreter shuts down.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        if "shutdown" not in str(error):
            warn_once(
                "no thread",
                "Cannot start a thread (%s). Training continues; background work is done at the end.",
                error or "out of memory",
            )
        return None
    return thread


LONGEST_WAIT = 5.0
"""Seconds that a fork waits for a background thread."""


class _Forks:
    """``lock`` is held while a background thread may hold such a lock, and during every fork."""

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
def forks_blocked() -> Iterator[None]:
    """Delay forks inside this block: for imports, and calls that take locks, in a background thread."""
    with _forks.lock:
        yield


def map_arrays(do: Callable[[T], R], items: Iterable[T], is_large: bool) -> list[R]:
    """Return the results in order. With large arrays, two are computed at a time."""
    if not is_large:
        # With small arrays two threads mostly wait for each other.
        return list(map(do, items))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as two:
        return list(two.map(do, items))
