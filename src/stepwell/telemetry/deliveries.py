"""Deliveries: running exporters, and the wait for them.

Export threads and sidecars, of a run or of a logger, are waited for together, as long as they make
progress. Starting up counts as progress. Ctrl-C ends the wait, not the delivery.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepwell._core.environment import warn_setting
from stepwell._core.errors import report
from stepwell.telemetry.feed import FAILING
from stepwell.telemetry.notices import ProgressLine

VARIABLE = "STEPWELL_FINISH_TIMEOUT"
FINISH_TIMEOUT = 300.0
"""Default of the longest wait at the end of a run or of a logger, in seconds."""
STALL = 10.0
"""Seconds without progress after which the wait ends."""
KILLED_TIMEOUT = 5.0
"""Longest wait after SIGTERM, in seconds: schedulers send SIGKILL soon after."""
COUNT_AFTER = 1.0
"""Seconds of waiting after which deliveries count their remaining records."""
FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.1


@dataclass(frozen=True)
class DeliveryProgress:
    """The progress of a delivery with its latest request.

    Attributes:
        is_over: whether there is nothing to wait for: everything is delivered, or it keeps failing.
        is_delivered: whether everything is delivered.
        sent: number of records delivered.
        total: number of records; None while unknown.
        work: other work, such as imports, in units of ``measure_work``.
        stage: what it does instead of delivering: "starting", "failing", …
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
    """A running exporter, as listed by ``run.exporters``.

    ``name`` is the exporter's name, ``sent`` the number of records delivered, ``failures`` the number of
    failed calls, and ``last_error`` the message of the latest failure.
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
        """Start; return at once."""
        ...

    def ask(self, timeout: float, closing: bool = False) -> None:
        """Request delivery of everything recorded so far, and the end with ``closing``; return at once."""
        ...

    def look(self) -> DeliveryProgress:
        """Return the progress of the latest request."""
        ...

    def count(self) -> None:
        """Have the remaining records counted; return at once."""
        ...

    def hurry(self) -> None:
        """Give it the priority of this process, which waits for it."""
        ...

    def rest(self) -> None:
        """Lower its priority again."""
        ...

    def keep_running(self) -> None:
        """Restart it if it has died."""
        ...

    def leave(self, reason: str) -> None:
        """Stop waiting after ``ask(closing=True)``. If records are missing and there is a reason, warn."""
        ...


def finish_timeout() -> float:
    """Return the longest wait for exporters at the end of a run, in seconds."""
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
    """End deliveries, and wait until everything is delivered, as long as they make progress.

    Args:
        deliveries: the deliveries to end.
        status: how the run ended; the wait after "killed" is short.
        timeout: longest wait in seconds. Default: ``STEPWELL_FINISH_TIMEOUT``.
        quiet: whether to show no progress line.
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
    """Deliver everything recorded so far; return whether it was delivered in time."""
    try:
        for delivery in deliveries:
            delivery.ask(timeout)
        _wait(deliveries, timeout)
        return all(delivery.look().is_delivered for delivery in deliveries)
    except Exception as error:
        report("drain_deliveries", error)
        return False


class _Watch:
    """A delivery to wait for."""

    def __init__(self, delivery: Delivery, now: float) -> None:
        self.delivery = delivery
        self.progress = delivery.look()
        self._last = self.progress
        self._since = now

    def look(self, now: float) -> bool:
        """Update the progress; return whether to keep waiting."""
        new, last = self.delivery.look(), self._last
        self.progress = new
        # Failing repeatedly is work, but not progress.
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
    """Wait until all are over; return the reasons why others are not, by ``id`` of the delivery.

    With a progress line, the wait for a delivery that makes no progress ends early.
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
