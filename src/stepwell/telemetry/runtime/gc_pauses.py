"""Long garbage collections as spans: all threads of the process wait during one.

Python calls back at any moment, also in the middle of the recorder's own work. So the callback only notes
two times; the pump writes the spans, on their own track.
"""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from time import perf_counter_ns as _now
from typing import Any

from stepwell._core import clock
from stepwell._core.values import encode
from stepwell.journal.journal import Track
from stepwell.vocabulary import RUNTIME

NAME = "gc"
MAX_WAITING = 10_000
Pause = tuple[int, int, dict[str, Any], str]


class GcPauses:
    """Notes garbage collections of at least ``shortest_ms`` until it is stopped."""

    def __init__(self, track: Track, shortest_ms: float) -> None:
        self._track = track
        self._shortest = int(shortest_ms * 1e6)
        self._waiting: deque[Pause] = deque(maxlen=MAX_WAITING)
        self._began = 0

    def start(self) -> None:
        _watching.add(self)
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        _watching.discard(self)
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, Any]) -> None:
        # A process runs one collection at a time, so one start time is enough.
        if phase == "start":
            self._began = _now()
        elif self._began:
            end = _now()
            if end - self._began >= self._shortest:
                self._waiting.append((self._began, end, info, _thread_name()))
            self._began = 0

    def write(self) -> None:
        """Write the noted collections as spans. Called by the pump."""
        while self._waiting:
            start, end, info, thread = self._waiting.popleft()
            attributes = {
                "generation": info["generation"],
                "collected": info["collected"],
                "thread": thread,
            }
            self._track.write(NAME, RUNTIME, start, end, encode(attributes))


def _thread_name() -> str:
    """Return the name of this thread, without a lock, and without creating a Thread object."""
    ident = threading.get_ident()
    threads: dict[int, threading.Thread] = getattr(threading, "_active", {})
    thread = threads.get(ident)
    return f"thread {ident}" if thread is None else thread.name


_watching: set[GcPauses] = set()


def _after_fork() -> None:
    """Stop in a forked child: it has no pump to write spans, and no collection is running in it."""
    for pauses in list(_watching):
        pauses.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
clock.follow(globals())
