"""Feeding one exporter: nothing is lost and nothing comes twice, however it fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from stepwell._core import clock, errors
from stepwell.telemetry import feed
from stepwell.telemetry.exporter import EventRecord, Record, Source
from stepwell.telemetry.feed import Feed


class FakeTime:
    """A clock that only sleeping moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


time = FakeTime()
SOURCE = Source("r", 0, 0, 1, "rank-00000", "here", 1, "app")


def events(*numbers: int, thread: str = "MainThread") -> list[Record]:
    return [EventRecord("event", "tick", None, thread, n, {"i": n}) for n in numbers]


class Script:
    """Records in the portions in which they are written down."""

    def __init__(self, *portions: list[Record]) -> None:
        self.portions = list(portions)

    def poll(self) -> list[Record]:
        return self.portions.pop(0) if self.portions else []

    @property
    def over(self) -> bool:
        return not self.portions


class Fails:
    """An exporter whose calls fail as often as is said."""

    def __init__(self, **times: int) -> None:
        self.times = times
        self.calls: list[str] = []
        self.batches: list[list[int]] = []
        self.tried: list[list[int]] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.times.get(name, 0) > 0:
            self.times[name] -= 1
            raise ConnectionError(f"no {name}")

    def open(self, source: Source) -> None:
        assert source == SOURCE
        self._call("open")

    def export(self, records: Sequence[Record]) -> None:
        self.tried.append([record.attributes["i"] for record in records])
        self._call("export")
        self.batches.append(self.tried[-1])

    def flush(self) -> None:
        self._call("flush")

    def close(self) -> None:
        self._call("close")


@pytest.fixture(autouse=True)
def _fake_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace every delay by none."""
    monkeypatch.setattr(feed, "time", time)
    monkeypatch.setattr(errors, "_quiet", False)


def steps(feed: Feed, seconds: float = 1000.0) -> None:
    """Step until the exporter has everything."""
    end = time.monotonic() + seconds
    while not feed.over:
        assert time.monotonic() < end
        if not feed.step():
            time.sleep(feed.pause())


def test_all_of_it_in_order() -> None:
    """Portions arrive as they come, large ones cut into batches."""
    exporter = Fails()
    feed = Feed(exporter, Script(events(1, 2), [], events(*range(3, 4503))), SOURCE)
    steps(feed)
    feed.close()
    assert [len(batch) for batch in exporter.batches] == [2, 2000, 2000, 500]
    assert [i for batch in exporter.batches for i in batch] == list(range(1, 4503))
    assert exporter.calls == ["open", *["export"] * 4, "flush", "close"]
    assert (feed.sent, feed.failures, feed.last_error) == (4502, 0, None)


def test_a_batch_that_was_refused_comes_again() -> None:
    """The same records in the same batch, before any later one."""
    exporter = Fails(export=3)
    feed = Feed(exporter, Script(events(1, 2), events(3)), SOURCE)
    steps(feed)
    assert exporter.tried == [[1, 2]] * 4 + [[3]]
    assert exporter.batches == [[1, 2], [3]]
    assert (feed.sent, feed.failures) == (3, 3)
    assert feed.last_error == "ConnectionError: no export"


def test_opening_is_tried_again() -> None:
    """No record is handed over before the exporter is open."""
    exporter = Fails(open=2)
    feed = Feed(exporter, Script(events(1)), SOURCE)
    steps(feed)
    assert exporter.calls == ["open", "open", "open", "export"]
    assert exporter.batches == [[1]]


def test_each_delay_is_twice_the_last() -> None:
    """Tries are 1, 2, 4 and 8 units apart, then as far as those in quarantine."""
    exporter = Fails(export=6)
    feed = Feed(exporter, Script(events(1)), SOURCE)
    pauses = []
    while not exporter.batches:
        assert not feed.step() or exporter.batches
        pauses.append(feed.pause())
        assert not feed.step() or exporter.batches, "too early"
        time.sleep(feed.pause())
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 30, 30, 0])


def test_after_five_failures_in_a_row_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the exporter, the error and what happens next; then it is silent."""
    exporter = Fails(export=7)
    feed = Feed(exporter, Script(events(1)), SOURCE)
    with caplog.at_level(logging.WARNING, "stepwell"):
        for _ in range(4):
            feed.step()
            time.sleep(feed.pause())
        assert caplog.messages == []
        assert not feed.quarantined
        steps(feed)
    (said,) = caplog.messages
    assert "Exporter Fails failed 5 times in a row (ConnectionError: no export)" in said
    assert "nothing is lost" in said
    assert "It is retried every" in said
    assert exporter.batches == [[1]]
    assert not feed.quarantined


def test_four_failures_now_and_then_are_no_quarantine(caplog: pytest.LogCaptureFixture) -> None:
    """Only failures in a row count."""
    exporter = Fails(export=4)
    feed = Feed(exporter, Script(events(1), events(2)), SOURCE)
    while not exporter.batches:
        feed.step()
        time.sleep(feed.pause())
    exporter.times["export"] = 4
    steps(feed)
    assert exporter.batches == [[1], [2]]
    assert feed.failures == 8
    assert caplog.messages == []


def test_draining_tries_until_its_time_is_up() -> None:
    """A passing failure is waited for; one that stays is left when the time has come."""
    exporter = Fails(export=3)
    feed = Feed(exporter, Script(events(1)), SOURCE)
    assert feed.drain(time.monotonic() + 10)
    assert exporter.batches == [[1]]
    assert exporter.calls[-1] == "flush"
    stubborn = Fails(export=1000)
    began = time.monotonic()
    assert not Feed(stubborn, Script(events(1)), SOURCE).drain(began + 1)
    assert time.monotonic() - began == pytest.approx(0.1 + 0.2 + 0.4)
    assert len(stubborn.tried) == 4


def quarantined(exporter: Fails) -> Feed:
    """A feed whose exporter has failed five times in a row."""
    feed = Feed(exporter, Script(events(1)), SOURCE)
    while not feed.quarantined:
        feed.step()
        time.sleep(feed.pause())
    return feed


def test_the_end_does_not_wait_for_one_in_quarantine() -> None:
    """It is tried once more, at once, and left."""
    exporter = Fails(export=1000)
    feed = quarantined(exporter)
    tried = len(exporter.tried)
    began = time.monotonic()
    assert not feed.drain(began + 10, closing=True)
    assert time.monotonic() == began
    assert len(exporter.tried) == tried + 1


def test_draining_gives_one_in_quarantine_five_more_tries() -> None:
    """It may be back, and slow at first; one that is still down is not waited for until the deadline."""
    exporter = Fails(export=5 + 4)
    assert quarantined(exporter).drain(time.monotonic() + 1000)
    assert exporter.batches == [[1]]
    stubborn = Fails(export=1000)
    feed = quarantined(stubborn)
    began = time.monotonic()
    assert not feed.drain(began + 1000)
    assert time.monotonic() - began == pytest.approx(0.1 + 0.2 + 0.4 + 0.8)
    assert len(stubborn.tried) == 5 + 5


def test_draining_hands_over_what_waited_and_what_is_new() -> None:
    """Records of an earlier look that were not taken yet, then those of new looks."""
    exporter = Fails(export=1)
    feed = Feed(exporter, Script(events(1), events(2), events(3)), SOURCE)
    feed.step()
    assert feed.waiting == 1
    assert feed.drain(time.monotonic() + 10)
    assert exporter.batches == [[1], [2], [3]]


def test_draining_does_not_wait_for_what_is_recorded_later() -> None:
    """Where every look finds something, it ends with what was recorded after it had begun."""

    class Busy:
        over = False
        polls = 0

        def poll(self) -> list[Record]:
            self.polls += 1
            time.sleep(0.001)
            return events(clock.to_wall(clock.now()))

    busy = Busy()
    assert Feed(Fails(), busy, SOURCE).drain(time.monotonic() + 10)
    assert busy.polls >= 2


@pytest.mark.parametrize("call", ["flush", "close"])
def test_a_failing_end_is_counted(call: str) -> None:
    """Flushing or closing may fail like anything else."""
    exporter = Fails(**{call: 1})
    feed = Feed(exporter, Script(events(1)), SOURCE)
    assert feed.drain(time.monotonic() + 10) is (call == "close")
    feed.close()
    assert feed.failures == 1
    assert feed.last_error == f"ConnectionError: no {call}"
    assert exporter.calls[-1] == "close"


@pytest.mark.parametrize("error", [SystemExit(1), RecursionError(), Exception("\ud800")])
def test_whatever_is_raised_is_a_failure(error: BaseException) -> None:
    """Even an attempt to end the thread."""

    class Odd(Fails):
        def export(self, records: Sequence[Record]) -> None:
            if not self.tried:
                self.tried.append([])
                raise error
            super().export(records)

    feed = Feed(Odd(), Script(events(1)), SOURCE)
    steps(feed)
    assert (feed.sent, feed.failures) == (1, 1)


def test_what_export_threads_record_is_not_exported() -> None:
    """Else an exporter that records would be fed with its own records for ever."""
    exporter = Fails()
    portions = (events(1), events(2, thread="stepwell-export-Fails"), events(3))
    feed = Feed(exporter, Script(*portions), SOURCE)
    steps(feed)
    assert exporter.batches == [[1], [3]]


def test_an_object_with_export_alone_will_do() -> None:
    """open, flush and close may be missing."""

    class Plain:
        def __init__(self) -> None:
            self.got: list[Any] = []

        def export(self, records: Sequence[Record]) -> None:
            self.got += records

    exporter = Plain()
    feed = Feed(exporter, Script(events(1, 2)), SOURCE)
    assert feed.drain(time.monotonic() + 10)
    feed.close()
    assert exporter.got == events(1, 2)
    assert (feed.name, feed.failures) == ("Plain", 0)


def test_failing_for_days_is_no_failure_of_the_feed() -> None:
    """Thousands of failures in a row are counted like the first ones."""

    class Dead:
        def export(self, records: Sequence[Record]) -> None:
            raise ConnectionError("gone")

    feed = Feed(Dead(), Script(events(1)), SOURCE)
    for _ in range(3000):
        feed._not_before = 0.0
        assert not feed.step()
    assert (feed.failures, feed.quarantined) == (3000, True)
