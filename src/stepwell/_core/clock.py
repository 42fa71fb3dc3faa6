"""The two clocks: a monotonic clock for all recorded times, and the wall clock.

Modules on the hot path keep the monotonic clock in a global of their own, ``_now``, which is faster than a
lookup here. They register it with ``follow``, so that a test can replace the clock everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

Clock = Callable[[], int]

_namespaces: list[dict[str, Any]] = []
_clocks: list[Clock] = [time.perf_counter_ns, time.time_ns]
_offset: list[int] = [time.time_ns() - time.perf_counter_ns()]


def follow(namespace: dict[str, Any]) -> None:
    """Set the global ``_now`` of a module to the monotonic clock, now and whenever it is replaced."""
    _namespaces.append(namespace)
    namespace["_now"] = _clocks[0]


def replace(monotonic: Clock = time.perf_counter_ns, wall: Clock = time.time_ns) -> None:
    """Use these clocks from now on, both in nanoseconds; without arguments the real ones."""
    _clocks[:] = [monotonic, wall]
    for namespace in _namespaces:
        namespace["_now"] = monotonic


def now() -> int:
    """Return the monotonic clock in nanoseconds. It is never 0, which stands for "not yet" in records."""
    return _clocks[0]()


def wall() -> int:
    """Return the wall clock in nanoseconds since the epoch."""
    return _clocks[1]()


def due_after(began: float, least_s: float, rest: float) -> float:
    """Return when work that began at this time and ends now is due again, by ``time.monotonic``.

    The pause is ``rest`` times as long as the work took, and at least ``least_s``.
    """
    ended = time.monotonic()
    return ended + max(least_s, rest * (ended - began))


def anchor() -> None:
    """Make ``to_wall`` use the present difference between the two clocks."""
    _offset[0] = wall() - now()


def to_wall(clock: int) -> int:
    """Return nanoseconds since the epoch. Steps of the wall clock do not change differences."""
    return clock + _offset[0]


BEFORE_BOOT = -(1 << 62)
"""Earlier than any time of the monotonic clock, which starts with the machine. Given times may be earlier."""
EARLIEST_WALL = 946_684_800 * 10**9
"""The year 2000. An earlier time is in another unit, or invented."""


def from_wall(wall_ns: int) -> int:
    """Return the monotonic clock at this wall time; less than 1 if the machine had not started yet."""
    return now() - (wall() - wall_ns)
