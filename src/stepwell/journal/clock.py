"""The two clocks: a monotonic one for every time in the journal, and the wall clock beside it.

Hot modules keep the monotonic clock as a global of their own, ``_now``, which is quicker than looking it up
here. They tell so with ``follow``, so that a test can put another clock in its place everywhere.
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
    """Keep the global ``_now`` of a module the monotonic clock."""
    _namespaces.append(namespace)
    namespace["_now"] = _clocks[0]


def replace(monotonic: Clock = time.perf_counter_ns, wall: Clock = time.time_ns) -> None:
    """Use these clocks from now on, nanoseconds both; without arguments the real ones."""
    _clocks[:] = [monotonic, wall]
    for namespace in _namespaces:
        namespace["_now"] = monotonic


def now() -> int:
    """The monotonic clock. Never 0, which means "not yet" in the journal."""
    return _clocks[0]()


def wall() -> int:
    """Nanoseconds since the epoch, as the wall clock has it."""
    return _clocks[1]()


def anchor() -> None:
    """From now on ``to_wall`` goes by what the wall clock says at this moment."""
    _offset[0] = wall() - now()


def to_wall(clock: int) -> int:
    """Nanoseconds since the epoch; differences are those of the monotonic clock, come what may."""
    return clock + _offset[0]


BEFORE_BOOT = -(1 << 62)
"""Earlier than any instant of the monotonic clock, which begins with the machine; spans may begin before."""
EARLIEST_WALL = 946_684_800 * 10**9
"""The year 2000: an earlier time is given in another unit, or made up."""


def from_wall(wall_ns: int) -> int:
    """Return the monotonic clock at this wall time; below 1 before the machine started."""
    return now() - (wall() - wall_ns)
