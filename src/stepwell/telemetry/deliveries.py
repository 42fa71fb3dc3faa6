"""Deliveries: exporters at work, and the wait for them.

Export threads and sidecars, of a whole run or of one logger, are waited for in one way and all at once: as
long as they make progress. Starting up is progress too. Ctrl-C ends the wait, not the delivery.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepwell.journal.errors import report
from stepwell.journal.settings import warn_setting
from stepwell.telemetry.feeding import FAILING
from stepwell.telemetry.notices import ProgressLine

VARIABLE = "STEPWELL_FINISH_TIMEOUT"
FINISH_TIMEOUT = 300.0
"""Seconds that the end of a run or of a logger waits at most, unless the variable is set."""
STALL = 10.0
"""Seconds without progress after which it waits no longer."""
KILLED_TIMEOUT = 5.0
"""Seconds that it waits at most after SIGTERM: schedulers send SIGKILL soon after."""
COUNT_AFTER = 1.0
"""Seconds after which deliveries are asked how much they have left."""
FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.1


@dataclass(frozen=True)
class DeliveryProgress:
    """How far a delivery is with what it was asked for.

    Attributes:
        is_over: whether there is nothing to wait for: all is delivered, or it fails again and again.
        is_delivered: whether all is delivered.
        sent: how many records are delivered.
        total: how many records there are; None while that is unknown.
        work: what it has done besides, such as importing, in units of ``measure_work``.
        stage: what it does if it is not delivering, in words: "starting", "failing", …
        patience: seconds without progress after which the wait for it ends.
    """

    is_over: bool
    is_delivered: bool
    sent: int = 0
    total: int | None = None
    work: float = 0.0
    stage: str = ""
    patience: float = STALL


class Delivery(Protocol):
    """One exporter at work: what ``run.exporters`` lists.

    ``name`` is the exporter's name, ``sent`` how many records it took, ``failures`` how many of its
    calls failed, and ``last_error`` the latest failure in words.
    """

    exporter: Any

    @property
    def name(self) -> str: ...
    @property
    def sent(self) -> int: ...
    @property
    def failures(self) -> int: ...
    @property
    def last_error(self) -> str | None: ...

    def start(self) -> None:
        """Begin; returns at once."""
        ...

    def ask(self, timeout: float, closing: bool = False) -> None:
        """Have all handed over that was recorded until now, and end with ``closing``; returns at once."""
        ...

    def look(self) -> DeliveryProgress:
        """Return how far it is with that."""
        ...

    def count(self) -> None:
        """Have the remaining records counted; returns at once."""
        ...

    def hurry(self) -> None:
        """Give it the priority of this process, which waits for something that it does."""
        ...

    def rest(self) -> None:
        """Lower its priority again."""
        ...

    def keep_running(self) -> None:
        """Start it again if it has died."""
        ...

    def leave(self, reason: str) -> None:
        """Wait no longer after ``ask`` to close. If records are missing, and there is a reason, say so."""
        ...


def finish_timeout() -> float:
    """Return how many seconds the end of a run waits for its exporters at most."""
    text = os.environ.get(VARIABLE, "").strip()
    try:
        seconds = float(text) if text else FINISH_TIMEOUT
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and seconds >= 0:
        return seconds
    warn_setting(VARIABLE, text, "a number of seconds, such as 300, or 0 to not wait")
    return FINISH_TIMEOUT


def finish_deliveries(
    deliveries: Sequence[Delivery],
    status: str = "finished",
    timeout: float | None = None,
    quiet: bool = True,
) -> None:
    """End deliveries, and wait until everything is delivered, for as long as they make progress.

    Args:
        deliveries: all that end now.
        status: how the run ended; the wait after "killed" is short.
        timeout: seconds to wait at most; else ``STEPWELL_FINISH_TIMEOUT``.
        quiet: no progress line.
    """
    limit = finish_timeout() if timeout is None else timeout
    if status == "killed":
        limit = min(limit, KILLED_TIMEOUT)
    line = ProgressLine(quiet)
    reasons: dict[int, str] = {}
    try:
        for delivery in deliveries:
            delivery.ask(limit, closing=True)
        reasons = _wait(deliveries, limit, line)
    except KeyboardInterrupt:
        reasons = {id(delivery): "interrupted" for delivery in deliveries}
    finally:
        line.erase()
        for delivery in deliveries:
            delivery.leave(reasons.get(id(delivery), ""))


def drain_deliveries(deliveries: Sequence[Delivery], timeout: float) -> bool:
    """Have all delivered that was recorded until now; whether it was in time."""
    try:
        for delivery in deliveries:
            delivery.ask(timeout)
        _wait(deliveries, timeout)
        return all(delivery.look().is_delivered for delivery in deliveries)
    except Exception as error:
        report("drain_deliveries", error)
        return False


class _Watch:
    """One delivery that is waited for."""

    def __init__(self, delivery: Delivery, now: float) -> None:
        self.delivery = delivery
        self.progress = delivery.look()
        self._last = self.progress
        self._since = now

    def look(self, now: float) -> bool:
        """Look again; whether waiting for it makes sense."""
        new, last = self.delivery.look(), self._last
        self.progress = new
        # To fail again and again is work, and no progress.
        is_working = new.stage != FAILING and abs(new.work - last.work) >= 1
        if new.sent > last.sent or is_working or new.stage not in (last.stage, FAILING):
            self._last, self._since = new, now
        return not new.is_over

    def has_stalled(self, now: float) -> bool:
        return now - self._since >= self.progress.patience

    def __str__(self) -> str:
        progress = self.progress
        if progress.stage:
            return f"{self.delivery.name}: {progress.stage}"
        total = "" if progress.total is None else f" of {max(progress.sent, progress.total):,}"
        return f"{self.delivery.name}: {progress.sent:,}{total} records"


def _wait(
    deliveries: Sequence[Delivery], limit: float, line: ProgressLine | None = None
) -> dict[int, str]:
    """Wait until all are over; returns why the others are not, by the id of the delivery.

    With a line to show progress on, one that makes no progress is not waited for.
    """
    began = now = time.monotonic()
    watches = [_Watch(delivery, now) for delivery in deliveries]
    reasons: dict[int, str] = {}
    pause, is_counted = FIRST_PAUSE, False
    while True:
        watches = [watch for watch in watches if watch.look(now)]
        if line is not None:
            for watch in [watch for watch in watches if watch.has_stalled(now)]:
                reasons[id(watch.delivery)] = f"no progress for {watch.progress.patience:g} s"
                watches.remove(watch)
        left = began + limit - now
        if not watches or left <= 0:
            late = f"not done after {limit:g} s" if limit else ""
            return {**{id(watch.delivery): late for watch in watches}, **reasons}
        if line is not None:
            line.show(", ".join(map(str, watches)))
            if now - began >= COUNT_AFTER and not is_counted:
                is_counted = True
                for watch in watches:
                    watch.delivery.count()
        time.sleep(min(pause, left))
        pause = min(1.5 * pause, LONGEST_PAUSE)
        now = time.monotonic()
