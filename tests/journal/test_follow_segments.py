"""The follower over many segments: rolled over, sealed, of threads and of tasks."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from stepwell import Run
from stepwell.follower.rows import LiveRows
from stepwell.follower.span_segments import SegmentFiles
from stepwell.follower.spans import MAX_SEGMENTS
from stepwell.journal.format import SPAN_SLOTS
from stepwell.telemetry.span_handle import Span, intern_name, open_span
from tests.journal.following import Following

pytestmark = pytest.mark.usefixtures("slots")


class Polling:
    """Looks all the time, in a thread."""

    def __init__(self, *followings: Following) -> None:
        self.followings = followings
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.005):
                for following in self.followings:
                    following.poll()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.error is None


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns much more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def small_spans(run: Run, count: int, name: str = "small") -> None:
    """Many spans without anything."""
    small = run.span(name)
    for _ in range(count):
        with small:
            pass


def test_open_over_segments(recorded: Run, slots: int) -> None:
    """Spans that stay open over several segments are one span each, with all their attributes."""
    following = Following(recorded.path, keep=lambda name: name != "small")
    with recorded.span("outer", a=1) as outer, recorded.span("inner") as inner:
        for i in range(4):
            small_spans(recorded, slots // 2)
            outer.set(**{f"b{i}": i})
            if i % 2:
                following.poll()
            with recorded.span("child", i=i):
                recorded.event("tick", i=i)
        inner.set(c=3)
        recorded.flush()
        following.poll()
    following.poll()
    (stop,) = following.of("stop", "outer")
    assert stop.attributes == {"a": 1, "b0": 0, "b1": 1, "b2": 2, "b3": 3}
    following.check()


def test_late_first_look(recorded: Run) -> None:
    """A first look at many sealed segments gives the same as looking all the time."""
    often = Following(recorded.path, keep=lambda name: name != "small")
    with recorded.span("outer"):
        for i in range(10):
            with recorded.span("middle", i=i):
                small_spans(recorded, 600)
                with recorded.span("inner"):
                    recorded.event("here")
            often.poll()
    recorded.finish()
    often.to_end()
    late = Following(recorded.path, keep=often.keep)
    late.to_end()
    assert [(r.type, r.name) for r in late.records] == [(r.type, r.name) for r in often.records]
    often.check()
    late.check()


@pytest.mark.full
def test_backlog_comes_in_parts(recorded: Run) -> None:
    """A large backlog is returned in parts, in order, over all threads."""
    threads = [threading.Thread(target=small_spans, args=(recorded, 5000)) for _ in range(3)]
    with recorded.span("outer"):
        for thread in threads:
            thread.start()
        for i in range(6000):
            with recorded.span("mine"):
                if i % 100 == 0:
                    recorded.event("tick", i=i)
        for thread in threads:
            thread.join()
    recorded.finish()
    following = Following(recorded.path)
    sizes = []
    while not following.follower.over:
        sizes.append(len(following.poll()))
    assert max(sizes) < 25_000
    assert len(sizes) > 3
    times = [r.end_ns if r.type == "stop" else getattr(r, "start_ns", 0) for r in following.records]
    times = [time for time in times if time]
    assert times == sorted(times)
    following.check()


def test_sealed_between_looks(recorded: Run, slots: int) -> None:
    """What was read in part while it was live is read on where it was sealed."""
    following = Following(recorded.path)
    for i in range(3):
        small_spans(recorded, 100, f"a{i}")
        following.poll()
        small_spans(recorded, slots, f"b{i}")
        recorded.flush()
    following.poll()
    following.check()


def test_sealed_during_a_look(recorded: Run, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that goes between finding it and reading it is found where it was sealed."""
    following = Following(recorded.path)
    small_spans(recorded, 100, "before")
    read = SegmentFiles.live_rows

    def seal_first(*arguments: Any) -> LiveRows:
        monkeypatch.setattr(SegmentFiles, "live_rows", read)
        small_spans(recorded, slots, "meanwhile")
        recorded.flush()
        return read(*arguments)

    monkeypatch.setattr(SegmentFiles, "live_rows", seal_first)
    assert len([r for r in following.poll() if r.type == "stop"]) == 100
    following.poll()
    following.check()


def test_attributes_sealed_during_a_look(
    recorded: Run, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attributes that go after their span was read are found where they were sealed."""
    following = Following(recorded.path, keep=lambda name: name != "small")
    with recorded.span("outer", a=1):
        pass
    read = SegmentFiles.text

    def seal_first(*arguments: Any) -> bytes:
        monkeypatch.setattr(SegmentFiles, "text", read)
        small_spans(recorded, slots)
        recorded.flush()
        return read(*arguments)

    monkeypatch.setattr(SegmentFiles, "text", seal_first)
    start, stop = following.poll()
    assert start.attributes == stop.attributes == {"a": 1}
    following.check()


@pytest.mark.parametrize(
    "slots", [1024, pytest.param(SPAN_SLOTS, marks=pytest.mark.full)], indirect=True
)
def test_tight_loop(recorded: Run, restless: None, slots: int) -> None:
    """Spans in many segments while a thread looks all the time, at all of them and at a few."""
    everything = Following(recorded.path)
    few = Following(recorded.path, keep=lambda name: name in ("outer", "rare"))
    with Polling(everything, few), recorded.span("outer"):
        for i in range(10):
            small_spans(recorded, slots - 100)
            with recorded.span("rare", i=i):
                recorded.event("tick", i=i)
    recorded.finish()
    everything.to_end()
    few.to_end()
    assert len(few.of("stop", "rare")) == 10
    few.check()
    everything.check()


@pytest.mark.full
def test_threads(recorded: Run, restless: None) -> None:
    """Threads that come and go, with spans and attributes and errors of their own."""
    everything = Following(recorded.path)
    few = Following(recorded.path, keep=lambda name: name not in ("small", "inner"))

    def work(number: int) -> None:
        for i in range(60):
            with recorded.span("outer", n=number) as outer, recorded.span("inner"):
                small_spans(recorded, 20)
                recorded.event("tick", i=i)
                outer.set(i=i)
                with recorded.span("leaf", i=i):
                    pass
                if i % 20 == 0:
                    with pytest.raises(KeyError), recorded.span("small"):
                        raise KeyError(i)

    with Polling(everything, few):
        for wave in range(3):
            threads = [
                threading.Thread(target=work, args=(n,), name=f"worker {wave}.{n}")
                for n in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    recorded.finish()
    everything.to_end()
    few.to_end()
    everything.check()
    few.check()


async def _tasks(run: Run, looks: list[Following]) -> None:
    async def child(i: int) -> None:
        with run.span("child", i=i):
            await asyncio.sleep(0)
            small_spans(run, 30)
            with run.span("leaf"):
                await asyncio.sleep(0)
                run.event("tick", i=i)

    async def successor(i: int) -> None:
        # Started under a span that is over when this begins.
        await asyncio.sleep(0.001)
        with run.span("after", i=i):
            small_spans(run, 10)

    tasks = []
    for i in range(60):
        with run.span("parent", i=i):
            tasks.append(asyncio.create_task(successor(i)))
            await asyncio.gather(child(i), child(-i), asyncio.to_thread(in_thread, run, i))
        for look in looks:
            look.poll()
    await asyncio.gather(*tasks)


def in_thread(run: Run, i: int) -> None:
    """What a task has done in the loop of a thread: the parent is a span of another thread."""

    async def work() -> None:
        with run.span("distant", i=i):
            small_spans(run, 20)

    asyncio.run(work())


@pytest.mark.full
@pytest.mark.parametrize("kept", ["all", "few"])
def test_tasks(recorded: Run, kept: str) -> None:
    """Parents that are of other tasks and threads, or over, are found across segments."""
    few = ("child", "distant", "after", "leaf", "parent")
    keep = (lambda name: True) if kept == "all" else (lambda name: name in few)
    following = Following(recorded.path, keep)
    leaves = Following(recorded.path, keep=lambda name: name in ("leaf", "distant"))
    with Polling(leaves):
        asyncio.run(_tasks(recorded, [following]))
    recorded.finish()
    late = Following(recorded.path, keep)
    for look in (following, late, leaves):
        look.to_end()
        look.check()
    parents = {r.id for r in following.of("start", "parent")}
    assert all(r.parent in parents for r in following.of("start", "distant"))
    assert all(r.parent in parents for r in following.of("start", "after"))


def test_parents_of_other_threads(recorded: Run, restless: None) -> None:
    """An explicit parent is returned before its children in other threads."""
    outer, child = intern_name("outer"), intern_name("child")
    following = Following(recorded.path, keep=lambda name: name != "small")

    def work(parent: Span) -> None:
        for _ in range(20):
            span = open_span(child, parent=parent)
            small_spans(recorded, 20)
            span.stop()

    with Polling(following):
        for _ in range(40):
            parent = open_span(outer)
            threads = [threading.Thread(target=work, args=(parent,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            threads[0].join()
            parent.add_attribute("a", 1)
            parent.stop()
            for thread in threads:
                thread.join()
    recorded.finish()
    following.to_end()
    assert len(following.of("stop", "child")) == 40 * 3 * 20
    assert all(r.parent is not None for r in following.of("start", "child"))
    following.check()


def test_frames_of_others(recorded: Run) -> None:
    """Workers that were folded into the archives are not returned."""
    following = Following(recorded.path)
    with recorded.span("outer"):
        child = os.fork()
        if child == 0:
            small_spans(recorded, 100, "of the child")
            os._exit(0)
        os.waitpid(child, 0)
        recorded.flush()
        following.poll()
    recorded.finish()
    following.to_end()
    assert {r.name for r in following.records} == {"outer"}
    late = Following(recorded.path)
    late.to_end()
    assert [r.type for r in late.records] == ["start", "stop"]


def test_as_much_that_is_new_as_was_read_is_no_end(recorded: Run, slots: int) -> None:
    """An empty look means that all was given, also when segments come as fast as they are read."""
    following = Following(recorded.path, keep=lambda name: name != "small")
    with recorded.span("first"):
        pass
    small_spans(recorded, 13 * slots)
    assert recorded.flush()
    assert [r.name for r in following.poll()] == ["first", "first"]
    waiting = len(following.follower._files.sealed)
    assert waiting > MAX_SEGMENTS
    small_spans(recorded, MAX_SEGMENTS * slots)
    with recorded.span("last"):
        pass
    assert recorded.flush()
    assert [r.name for r in following.poll()] == ["last", "last"]
