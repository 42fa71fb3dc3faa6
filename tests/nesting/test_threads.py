"""One span object in many threads at once: each thread has its own tree."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import polars as pl
import pytest

import stepwell
from stepwell import Run
from tests.nesting.tree import attributes, edges, finished

THREADS = 32
ROUNDS = 700


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Do the work in many threads that begin at the same moment; what they raise is raised."""
    together = threading.Barrier(count)
    problems: list[BaseException] = []

    def run(number: int) -> None:
        together.wait(60)
        try:
            work(number)
        except BaseException as problem:
            problems.append(problem)

    threads = [
        threading.Thread(target=run, args=(number,), name=f"t{number}") for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert problems == []


def test_the_same_span_object_in_32_threads(recorded: Run) -> None:
    """Every entry of a shared span is in its own thread's tree, over roll-overs, none is lost."""
    outer, inner = stepwell.span("outer"), stepwell.span("inner")

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            with outer, inner, inner:
                pass

    in_threads(work)
    spans = finished(recorded)
    assert edges(spans) == {
        ("outer", None): THREADS * ROUNDS,
        ("inner", "outer"): THREADS * ROUNDS,
        ("inner", "inner"): THREADS * ROUNDS,
    }
    assert Counter(spans["thread"]) == {f"t{n}": 3 * ROUNDS for n in range(THREADS)}
    above = spans.select(parent="id", above_thread="thread")
    inside = spans.join(above, on="parent", how="inner")
    assert inside.filter(pl.col("thread") != pl.col("above_thread")).height == 0


def test_attributes_and_events_stay_in_their_thread(recorded: Run) -> None:
    """Attributes and events that a thread adds to a shared span are on that thread's entry."""
    shared = stepwell.span("shared")

    def work(number: int) -> None:
        for i in range(50):
            with stepwell.span("around", number=number), shared:
                shared.set(number=number)
                shared.set(i=i)
                stepwell.event("ping", number=number, i=i)

    in_threads(work)
    spans = finished(recorded)
    by_thread = {f"t{n}": [{"number": n, "i": i} for i in range(50)] for n in range(THREADS)}
    for thread, expected in by_thread.items():
        own = spans.filter(pl.col("thread") == thread)
        assert attributes(own, "shared") == expected
    pings = stepwell.open_run(recorded.path).events().collect()
    pings = pings.join(spans.select(span="id", text="attributes", at="thread"), on="span")
    assert pings.height == THREADS * 50
    assert pings.filter(pl.col("at") != pl.col("thread")).height == 0
    assert pings["attributes"].str.json_decode(pl.Struct({"i": pl.Int64})).to_list() == (
        pings["text"].str.json_decode(pl.Struct({"i": pl.Int64})).to_list()
    )


@pytest.mark.full
def test_short_threads_leave_nothing_open(recorded: Run) -> None:
    """Hundreds of threads that come and go are all there, and the pump lets go of their files."""
    for i in range(300):
        thread = threading.Thread(target=stepwell.span("work", i=i)(lambda: None), name="short")
        thread.start()
        thread.join()
    assert recorded.flush()
    live = list(recorded.path.rglob("*.live"))
    spans = finished(recorded)
    assert [entry["i"] for entry in attributes(spans, "work")] == list(range(300))
    assert spans["thread"].n_unique() == 300
    assert live == []


def test_a_thread_that_ends_inside_a_span(recorded: Run) -> None:
    """A span whose thread has ended without leaving it is unfinished, and hides no other."""

    def work() -> None:
        stepwell.span("left open").__enter__()
        with stepwell.span("inside"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert recorded.flush()
    with recorded.span("main"):
        pass
    spans = finished(recorded)
    assert edges(spans) == {("left open", None): 1, ("inside", "left open"): 1, ("main", None): 1}
    assert dict(spans.select("name", "status").iter_rows()) == {
        "left open": "unfinished",
        "inside": "ok",
        "main": "ok",
    }
