"""Live spans: objects to add to, to close from anywhere, and to hold on to while segments come and go."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell import Run
from stepwell.journal.lane import Lane
from stepwell.journal.state import state
from stepwell.telemetry import Attributes, Event, Span, SpanRecorder, timed_span
from stepwell.telemetry.span_handle import NO_SPAN, REMEMBERED_EVENTS
from stepwell.testing import FakeClock
from tests.nesting.tree import SLOTS, attributes, edges, events, finished, statuses

recorder = SpanRecorder()


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock() as clock:
        yield clock


@pytest.fixture
def timed(clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A strict run on a stopped clock."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    return stepwell.init("test", dir=tmp_path / "runs")


def _in_thread(function: Any) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_what_a_span_tells(timed: Run, clock: FakeClock) -> None:
    """Name, parent, times, duration and its first and last instant, while it is open and after."""
    began = round(clock.time * 1e9)
    with timed_span("outer") as outer, timed_span("inner") as inner:
        assert (inner.name, inner.category, inner.parent) == ("inner", "", outer)
        assert (inner.parent_id, outer.parent, outer.parent_id) == (outer.id, None, 0)
        clock.advance(1.5)
        assert inner.active
        assert (inner.end_ns, inner.stop_event) == (None, None)
        assert (inner.duration, inner.duration_msec, inner.duration_ns) == (1.5, 1500, 15 * 10**8)
        assert repr(inner) == "<span inner 1500.000 ms so far>"
    clock.advance(100)
    assert not inner.active
    assert (inner.start_ns, inner.end_ns) == (began, began + 15 * 10**8)
    assert inner.duration == 1.5
    assert (inner.start_event.name, inner.start_event.time_ns) == ("span_start", began)
    assert inner.stop_event is not None
    assert (inner.stop_event.name, inner.stop_event.time_ns) == ("span_stop", inner.end_ns)
    assert repr(inner) == "<span inner 1500.000 ms>"
    assert edges(finished(timed)) == {("outer", None): 1, ("inner", "outer"): 1}


def test_attributes_from_everywhere(recorded: Run) -> None:
    """Given at the start, added inside, from another thread, and after the end: all are the span's."""
    with timed_span("work", {"a": 1}, {"b": 2}) as span:
        span.add_attribute("c", 3)
        span.add_attributes(Attributes({"d": 4, "a": 0}))
        _in_thread(lambda: span.add_attribute("e", 5))
    span.add_attribute("f", 6)
    _in_thread(lambda: span.add_attributes({"g": 7, "c": 33}))
    expected = {"a": 0, "b": 2, "c": 33, "d": 4, "e": 5, "f": 6, "g": 7}
    assert span.attributes == expected
    assert attributes(finished(recorded), "work") == [expected]
    assert events(recorded) == []


def test_attributes_of_one_entry_are_not_those_of_the_next(recorded: Run) -> None:
    """A timed_span that is entered again begins with what it was made with."""
    block = timed_span("work", {"a": 1})
    for i in range(2):
        with block as span:
            span.add_attribute("i", i)
    assert attributes(finished(recorded), "work") == [{"a": 1, "i": 0}, {"a": 1, "i": 1}]


def test_events_of_a_span(timed: Run, clock: FakeClock) -> None:
    """Events keep their time and attributes, on the span that they were added to, also late."""

    class Name(Enum):
        DONE = "done"

    with timed_span("outer") as outer, timed_span("inner") as inner:
        clock.advance(1)
        event = Event.create("given", {"a": 1}, timestamp=clock.time - 0.5)
        assert outer.add_event(event) is event
        recorder.event(Event.create("innermost"))
        recorder.event(outer, Event.create("named"))
        inner.add_event(Name.DONE, {"b": 2})
        _in_thread(lambda: inner.add_event("thread"))
    clock.advance(1)
    outer.add_event("late")
    recorder.error(outer, "broken", ValueError("why"))
    assert [event.name for event in outer.events] == ["given", "named", "late", "error"]
    assert [event.name for event in inner.events] == ["done", "thread"]
    timed.finish()
    found = {(name, span): about for name, span, about in events(timed)}
    assert found["given", "outer"] == {"a": 1}
    assert found["done", "inner"] == {"b": 2}
    assert {("innermost", "inner"), ("named", "outer"), ("thread", "inner")} <= set(found)
    error = found["error", "outer"]
    assert (error["error_message"], error["exception_type"]) == ("broken", "ValueError")
    assert "ValueError: why" in error["exception_traceback"]
    times = dict(
        stepwell.open_run(timed.path).events().collect().select("name", "time_ns").iter_rows()
    )
    assert times["given"] + 5 * 10**8 == times["named"] == times["late"] - 10**9


def test_only_the_latest_events_are_at_hand(recorded: Run) -> None:
    """A span with very many events keeps the latest; the run has them all."""
    with timed_span("loop") as span:
        for i in range(500):
            span.add_event("tick", {"i": i})
    assert [event.attributes["i"] for event in span.events] == list(range(500))[-REMEMBERED_EVENTS:]
    recorded.finish()
    assert len(events(recorded)) == 500


def test_stopping(timed: Run, clock: FakeClock) -> None:
    """A span ends once: at a given time, with last attributes, and never before it began."""
    span = recorder.start("work", {"a": 1}, start_time=clock.time)
    clock.advance(2)
    span.stop({"b": 2}, timestamp=clock.time - 0.5)
    clock.advance(1)
    span.stop()
    recorder.stop(span, {"c": 3})
    assert span.duration == 1.5
    early = recorder.start("early")
    early.stop(timestamp=clock.time - 10)
    assert early.duration == 0
    spans = finished(timed)
    assert dict(spans.select("name", "duration_ns").iter_rows()) == {"work": 15 * 10**8, "early": 0}
    assert attributes(spans, "work") == [{"a": 1, "b": 2, "c": 3}]


def test_stopping_out_of_order(recorded: Run) -> None:
    """The outer span may end first; the inner one stays open, and later spans are not nested in it."""
    outer = recorder.start("outer")
    inner = recorder.start("inner")
    outer.stop()
    with stepwell.span("during"):
        pass
    inner.stop()
    with stepwell.span("after"):
        pass
    assert edges(finished(recorded)) == {
        ("outer", None): 1,
        ("inner", "outer"): 1,
        ("during", "inner"): 1,
        ("after", None): 1,
    }


def test_explicit_parents_across_threads(recorded: Run) -> None:
    """A span may be put under one of another thread, one in another segment, and one that is over."""
    with timed_span("parent") as parent:
        _in_thread(lambda: recorder.start("open", parent_span=parent).stop())
        _fill(SLOTS + 100)
        _in_thread(lambda: recorder.start("rolled", parent_span=parent).stop())
        recorder.start("own", parent_span=parent).stop()
    _in_thread(lambda: recorder.start("over", parent_span=parent).stop())
    with timed_span("other"):
        child = recorder.start("chosen", parent_span=parent)
        with stepwell.span("grandchild"):
            pass
        child.stop()
    spans = finished(recorded).filter(pl.col("name") != "fill")
    assert edges(spans) == {
        ("parent", None): 1,
        ("other", None): 1,
        ("grandchild", "chosen"): 1,
        **{(name, "parent"): 1 for name in ("open", "rolled", "own", "over", "chosen")},
    }


def _fill(count: int) -> None:
    fill = stepwell.span("fill")
    for _ in range(count):
        with fill:
            pass


def test_segments_come_and_go_around_open_spans(recorded: Run) -> None:
    """Spans that stay open through many segments are one row each, with all their attributes."""
    with timed_span("outer", {"at": "start"}) as outer:
        inner = recorder.start("inner")
        for i in range(3):
            _fill(SLOTS + 10)
            outer.add_attribute(f"round {i}", i)
            inner.add_event("round", {"i": i})
            _in_thread(lambda i=i: inner.add_attribute(f"thread {i}", i))
            recorder.start("child").stop()
        inner.stop()
        _fill(10)
    spans = finished(recorded)
    assert attributes(spans, "outer") == [{"at": "start", "round 0": 0, "round 1": 1, "round 2": 2}]
    assert attributes(spans, "inner") == [{"thread 0": 0, "thread 1": 1, "thread 2": 2}]
    assert edges(spans) == {
        ("outer", None): 1,
        ("inner", "outer"): 1,
        ("child", "inner"): 3,
        ("fill", "inner"): 3 * (SLOTS + 10),
        ("fill", "outer"): 10,
    }
    assert [span for _, span, _ in events(recorded)] == ["inner"] * 3
    assert state.journal is None


def test_live_spans_in_very_large_numbers(recorded: Run) -> None:
    """More short live spans than a segment holds, nested in one that is open all the time."""
    with timed_span("outer") as outer:
        for _ in range(SLOTS + 500):
            with timed_span("short") as span:
                pass
            assert span.parent is outer
    assert edges(finished(recorded)) == {("outer", None): 1, ("short", "outer"): SLOTS + 500}


def test_closing_from_another_thread_while_the_owner_rolls_over(recorded: Run) -> None:
    """Whichever thread ends a span: it ends once, and the tree of the continuing thread is right."""
    waiting: list[Span] = []
    closed: list[Span] = []
    over = threading.Event()

    def close() -> None:
        while not over.is_set() or waiting:
            if waiting:
                span = waiting.pop()
                span.add_attribute("by", "other")
                span.stop()
                closed.append(span)

    closer = threading.Thread(target=close)
    closer.start()
    until = time.monotonic() + 4
    count = 0
    with timed_span("outer"):
        while time.monotonic() < until and count < 5 * SLOTS:
            waiting.append(recorder.start("passed on"))
            _fill(97)
            count += 97
        over.set()
        closer.join()
        recorder.start("last").stop()
    spans = finished(recorded)
    assert len(closed) > 100
    assert statuses(spans) == {
        ("outer", "ok"): 1,
        ("last", "ok"): 1,
        ("passed on", "ok"): len(closed),
        ("fill", "ok"): count,
    }
    found = edges(spans)
    assert found["last", "outer"] == 1
    assert found["fill", "outer"] + found["fill", "passed on"] == count
    assert attributes(spans, "passed on") == [{"by": "other"}] * len(closed)
    took = {span.id: span.duration_ns for span in closed}
    own = spans.filter(name="passed on").select(pl.col("id") & 0xFFFFFFFF, "duration_ns")
    assert dict(own.iter_rows()) == took


def test_closing_in_the_middle_of_a_roll_over(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending a span while its owner moves it to the next segment waits until that is done."""
    span = recorder.start("passed on")
    closer = threading.Thread(target=span.stop)
    switch = Lane._switch

    def slow_switch(*args: Any) -> None:
        if not closer.ident:
            closer.start()
            closer.join(0.2)
        switch(*args)

    monkeypatch.setattr(Lane, "_switch", slow_switch)
    _fill(SLOTS + 100)
    closer.join()
    spans = finished(recorded)
    assert statuses(spans) == {("passed on", "ok"): 1, ("fill", "ok"): SLOTS + 100}


def test_tasks(recorded: Run) -> None:
    """Tasks have spans of their own, may pass them on, and may be put under a chosen parent."""

    async def child(parent: Span, passed: asyncio.Queue[Span]) -> None:
        with timed_span("task") as span:
            await asyncio.sleep(0)
            span.add_attribute("a", 1)
            passed.put_nowait(recorder.start("passed on", parent_span=parent))
            await asyncio.sleep(0)
            assert span.parent is parent

    async def main() -> None:
        passed: asyncio.Queue[Span] = asyncio.Queue()
        with timed_span("outer") as outer:
            await asyncio.gather(*[child(outer, passed) for _ in range(3)])
            while not passed.empty():
                passed.get_nowait().stop()
            with timed_span("after"):
                pass

    asyncio.run(main())
    spans = finished(recorded)
    assert edges(spans) == {
        ("outer", None): 1,
        ("task", "outer"): 3,
        ("passed on", "outer"): 3,
        ("after", "outer"): 1,
    }
    assert set(spans["status"]) == {"ok"}
    assert attributes(spans, "task") == [{"a": 1}] * 3


def test_decorated(recorded: Run) -> None:
    """timed_span decorates functions, generators and coroutines; it may be entered recursively."""

    @timed_span("recursive")
    def recursive(depth: int) -> int:
        return depth and 1 + recursive(depth - 1)

    @timed_span("generator")
    def generator() -> Iterator[int]:
        yield from range(3)

    @timed_span("coroutine")
    async def coroutine() -> int:
        await asyncio.sleep(0)
        return 7

    assert recursive(2) == 2
    assert list(generator()) == [0, 1, 2]
    assert asyncio.run(coroutine()) == 7
    assert edges(finished(recorded)) == {
        ("recursive", None): 1,
        ("recursive", "recursive"): 2,
        ("generator", None): 1,
        ("coroutine", None): 1,
    }


def test_exception_is_recorded_once_with_its_traceback(recorded: Run) -> None:
    """It goes through live spans and plain ones; the innermost has it."""
    error = ValueError("why")
    with (
        pytest.raises(ValueError, match="why") as caught,
        timed_span("outer"),
        stepwell.span("plain"),
        timed_span("inner"),
    ):
        raise error
    assert caught.value is error
    spans = finished(recorded)
    assert set(spans["status"]) == {"error"}
    ((name, span, about),) = events(recorded)
    assert (name, span, about["exception_type"]) == ("error", "inner", "ValueError")
    assert "test_live_spans.py" in about["exception_traceback"]


def test_after_the_run(recorded: Run) -> None:
    """A span that outlives its run is over with it; adding to it is harmless."""
    span = recorder.start("open", {"a": 1})
    recorded.finish()
    assert not span.active
    span.add_attribute("late", 1)
    span.add_event("late")
    span.stop()
    with timed_span("none") as none:
        assert none is NO_SPAN
    assert recorder.start("none") is NO_SPAN
    found = stepwell.open_run(recorded.path).spans().collect()
    assert statuses(found) == {("open", "unfinished"): 1}


def test_span_of_an_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls on a span of the previous run do not affect the next run."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    first = stepwell.init("first", dir=tmp_path)
    old = recorder.start("old")
    first.finish()
    second = stepwell.init("second", dir=tmp_path)
    with timed_span("new"):
        old.add_attribute("a", 1)
        old.add_event("late")
        old.stop()
        recorder.start("child", parent_span=old).stop()
    spans = finished(second)
    assert set(spans["name"]) == {"new", "child"}
    assert events(second) == []


def test_when_there_is_no_space(recorded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that find no space can be used like any others, are counted, and leave no wrong parent."""
    journal = state.journal
    assert journal is not None
    with timed_span("kept") as kept:
        _fill(journal.lanes[0].limit - journal.lanes[0].next - 2)
        with monkeypatch.context() as full:
            full.setattr(type(journal), "take", lambda *args, **kwargs: None)
            _fill(10)
            with timed_span("dropped", {"a": 1}) as dropped:
                dropped.add_attribute("b", 2)
                dropped.add_event("told")
                other = recorder.start("dropped too", parent_span=kept)
                _in_thread(other.stop)
                assert dropped.active
            assert not other.active
            assert (dropped.id, other.id) == (0, 0)
            assert dropped.attributes == {"a": 1, "b": 2}
        with timed_span("after"):
            pass
    drops = journal.drops["spans"]
    spans = finished(recorded)
    assert edges(spans)["after", "kept"] == 1
    assert {"dropped", "dropped too"}.isdisjoint(spans["name"])
    assert drops >= 10


def test_in_another_process_it_does_nothing(recorded: Run) -> None:
    """A span that is pickled is a do-nothing one where it arrives; its parts keep their values."""
    with timed_span("work", {"a": 1}) as span:
        assert pickle.loads(pickle.dumps(span)) is NO_SPAN
        event = Event.create("e", {"b": 2})
        assert pickle.loads(pickle.dumps(event)) == event
        assert pickle.loads(pickle.dumps(span.attributes)) == {"a": 1}


def test_attributes_as_a_mapping() -> None:
    """They behave like a dict of plain values, with typed access."""
    made = Attributes({"i": 1, "f": 1.5, "s": "x"}).add("b", True)
    assert dict(made) == made.to_json() == {"i": 1, "f": 1.5, "s": "x", "b": True}
    assert (made.get_int_value("i"), made.get_float_value("f")) == (1, 1.5)
    assert (made.get_float_value("i"), made.get_str_value("s")) == (1.0, "x")
    assert (made.get_bool_value("b"), made.get_int_value("none")) == (True, None)
    assert Attributes.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert Attributes.merge({"a": 1}, {"a": 2, "b": 3}) == {"a": 2, "b": 3}
    twin = made.copy().add("i", 2)
    assert made["i"] == 1
    assert twin != made
