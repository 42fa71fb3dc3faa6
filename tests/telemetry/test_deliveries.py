"""The wait for deliveries, on a clock that only waiting moves: it lasts as long as they make progress."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stepwell.telemetry import deliveries
from stepwell.telemetry.deliveries import DeliveryProgress, drain_deliveries, finish_deliveries


class Clock:
    """Time in seconds, which passes only in ``sleep``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)

    @property
    def passed(self) -> float:
        return self.now - 1000


class Scripted:
    """A delivery whose progress is a function of the seconds that have passed."""

    exporter = None
    sent = failures = 0
    last_error = None

    def __init__(self, clock: Clock, progress: Callable[[float], DeliveryProgress]) -> None:
        self.name = "scripted"
        self.clock = clock
        self.progress = progress
        self.reasons: list[str] = []

    def look(self) -> DeliveryProgress:
        return self.progress(self.clock.passed)

    def leave(self, reason: str) -> None:
        self.reasons.append(reason)

    def start(self) -> None: ...

    def ask(self, timeout: float, closing: bool = False) -> None: ...

    count = hurry = rest = start


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    fake = SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep)
    monkeypatch.setattr(deliveries, "time", fake)
    return made


def delivering(until: float, **more: Any) -> Callable[[float], DeliveryProgress]:
    """Ten records a second, until all are delivered."""

    def look(seconds: float) -> DeliveryProgress:
        return DeliveryProgress(seconds >= until, seconds >= until, int(seconds * 10), **more)

    return look


def stuck(at: float, **more: Any) -> Callable[[float], DeliveryProgress]:
    """Ten records a second, and nothing more from then on."""
    return lambda seconds: DeliveryProgress(False, False, int(min(seconds, at) * 10), **more)


def test_it_waits_as_long_as_records_are_delivered(clock: Clock) -> None:
    """For four minutes here."""
    delivery = Scripted(clock, delivering(240))
    finish_deliveries([delivery])
    assert clock.passed == pytest.approx(240, abs=0.2)
    assert delivery.reasons == [""]


def test_it_waits_no_longer_than_five_minutes(clock: Clock) -> None:
    delivery = Scripted(clock, delivering(4000))
    finish_deliveries([delivery])
    assert clock.passed == pytest.approx(300, abs=0.2)
    assert delivery.reasons == ["not done after 300 s"]


def test_it_gives_up_after_ten_seconds_without_progress(clock: Clock) -> None:
    """Counted from the last record."""
    delivery = Scripted(clock, stuck(20))
    finish_deliveries([delivery])
    assert clock.passed == pytest.approx(30, abs=0.3)
    assert delivery.reasons == ["no progress for 10 s"]


def test_a_process_that_imports_makes_progress(clock: Clock) -> None:
    """A unit of work every five seconds is enough, and one every twenty seconds is not."""

    def starting(every: float) -> Callable[[float], DeliveryProgress]:
        return lambda seconds: DeliveryProgress(
            False, False, work=min(seconds, 100) // every, stage="starting"
        )

    delivery = Scripted(clock, starting(5))
    finish_deliveries([delivery])
    assert clock.passed == pytest.approx(110, abs=0.3)
    clock.now = 1000
    finish_deliveries([Scripted(clock, starting(20))])
    assert clock.passed == pytest.approx(10, abs=0.3)


def test_to_fail_is_no_progress(clock: Clock) -> None:
    """Whatever the exporter does meanwhile."""

    def failing(seconds: float) -> DeliveryProgress:
        return DeliveryProgress(
            False, False, work=seconds, stage="starting" if seconds < 5 else "failing"
        )

    finish_deliveries([Scripted(clock, failing)])
    assert clock.passed == pytest.approx(15, abs=1.2)


def test_all_are_waited_for_at_once(clock: Clock) -> None:
    """One that is stuck takes no time from the others."""
    slow, hanging = Scripted(clock, delivering(40)), Scripted(clock, stuck(0))
    finish_deliveries([hanging, slow])
    assert clock.passed == pytest.approx(40, abs=0.2)
    assert (slow.reasons, hanging.reasons) == ([""], ["no progress for 10 s"])


def test_a_timeout_of_ones_own_and_that_after_sigterm(clock: Clock) -> None:
    """The shorter one counts."""
    for status, timeout, expected in [("finished", 3, 3), ("killed", None, 5), ("killed", 2, 2)]:
        clock.now = 1000
        finish_deliveries([Scripted(clock, delivering(100))], status, timeout)
        assert clock.passed == pytest.approx(expected, abs=0.2)


def test_a_flush_waits_as_long_as_it_is_told(clock: Clock) -> None:
    """Also without progress: who calls it has said how long."""
    assert not drain_deliveries([Scripted(clock, stuck(0))], 50)
    assert clock.passed == pytest.approx(50, abs=0.2)
    clock.now = 1000
    assert drain_deliveries([Scripted(clock, delivering(7)), Scripted(clock, delivering(9))], 50)
    assert clock.passed == pytest.approx(9, abs=0.2)
