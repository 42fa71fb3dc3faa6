"""A clock for pumps that a test advances."""

from __future__ import annotations

import time

from stepwell import Run
from stepwell.journal import pump


class PumpClock:
    """Replaces ``time`` in the module of the pump; no task seems to use any processor time."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        """Return the seconds that it shows."""
        return self.now

    def thread_time(self) -> float:
        """Return no time."""
        return 0.0

    def thread_time_ns(self) -> int:
        """Return no time."""
        return 0

    def pass_seconds(self, run: Run, seconds: float, step: float = 0.5) -> None:
        """Let time pass, with a round of the pump of this run at each step of it."""
        for _ in range(round(seconds / step)):
            self.now += step
            assert run.flush()


def stop_clock() -> PumpClock:
    """Give the pumps of this process a stopped clock."""
    clock = PumpClock()
    pump.time = clock  # type: ignore[assignment, attr-defined]
    return clock
