"""Garbage collections that take long, as spans: while one goes on, all threads of the process wait.

Python calls back at any moment, also in the middle of the recorder's own work. So the callback only
notes two times; the pump writes the spans, on a track of their own.
"""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from time import perf_counter_ns as _now
from typing import Any

from stepwell.journal import clock
from stepwell.journal.track import Track
from stepwell.journal.values import encode
from stepwell.vocabulary import RUNTIME

NAME = "gc"
MAX_WAITING = 10_000
Pause = tuple[int, int, dict[str, Any], str]


class Pauses:
    """Notes collections of at least ``shortest_ms`` until it is stopped."""

    def __init__(self, track: Track, shortest_ms: float) -> None:
        self._track = track
        self._shortest = int(shortest_ms * 1e6)
        self._waiting: deque[Pause] = deque(maxlen=MAX_WAITING)
        self._began = 0

    def start(self) -> None:
        """Let Python tell of its collections."""
        _watching.add(self)
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Let it tell no more."""
        _watching.discard(self)
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, Any]) -> None:
        # One at a time in a process, so one place for its beginning will do.
        if phase == "start":
            self._began = _now()
        elif self._began:
            end = _now()
            if end - self._began >= self._shortest:
                self._waiting.append((self._began, end, info, _thread_name()))
            self._began = 0

    def write(self) -> None:
        """In the pump: write what was noted."""
        while self._waiting:
            start, end, info, thread = self._waiting.popleft()
            about = {
                "generation": info["generation"],
                "collected": info["collected"],
                "thread": thread,
            }
            self._track.write(NAME, RUNTIME, start, end, encode(about))


def _thread_name() -> str:
    """Name of this thread, without a lock and without making an object for one that has none."""
    ident = threading.get_ident()
    known: dict[int, threading.Thread] = getattr(threading, "_active", {})
    thread = known.get(ident)
    return f"thread {ident}" if thread is None else thread.name


_watching: set[Pauses] = set()


def _after_fork() -> None:
    """A child has no pump that would write; and no collection is under way in it."""
    for pauses in list(_watching):
        pauses.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
clock.follow(globals())
