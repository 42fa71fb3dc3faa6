"""Spans inside generators, which end when their generator does and not in order."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import polars as pl

import stepwell
from stepwell import Run
from tests.nesting.tree import SLOTS, attributes, edges, events, finished, statuses


def batches(name: str, count: int = 3, **more: object) -> Iterator[int]:
    with stepwell.span(name, **more):
        for number in range(count):
            with stepwell.span("load"):
                pass
            yield number


def test_a_generator_closed_early(recorded: Run) -> None:
    """Closing a generator ends its span, ok and without an event, and nothing nests in it later."""
    generator = batches("batches")
    next(generator)
    generator.close()
    with recorded.span("after"):
        pass
    spans = finished(recorded)
    assert edges(spans) == {("batches", None): 1, ("load", "batches"): 1, ("after", None): 1}
    assert statuses(spans) == {("batches", "ok"): 1, ("load", "ok"): 1, ("after", "ok"): 1}
    assert events(recorded) == []


def test_a_generator_left_by_break_or_garbage_collected(recorded: Run) -> None:
    """A generator without references ends its span; one in a reference cycle when it is collected."""
    for _ in batches("broken off"):
        break
    # Else the collector may run in the pump's thread, where the span cannot be found.
    gc.disable()
    cycle: list[object] = [batches("in a cycle")]
    cycle.append(cycle)
    next(cycle[0])  # type: ignore[call-overload]
    alive = weakref.ref(cycle[0])
    del cycle
    while alive() is not None:
        gc.collect()
    gc.enable()
    with recorded.span("after"):
        pass
    spans = finished(recorded)
    assert edges(spans) == {
        ("broken off", None): 1,
        ("load", "broken off"): 1,
        ("in a cycle", None): 1,
        ("load", "in a cycle"): 1,
        ("after", None): 1,
    }
    assert set(spans["status"]) == {"ok"}


def test_interleaved_generators_end_each_its_own_span(recorded: Run) -> None:
    """Generators of different names that take turns keep their own durations."""
    first, second = batches("first", 5), batches("second", 2)
    for _ in range(2):
        next(first)
        next(second)
    second.close()
    list(first)
    with recorded.span("after"):
        pass
    spans = finished(recorded)
    by_name = {row["name"]: row for row in spans.iter_rows(named=True)}
    # The second began while the first was open; the first ended last.
    end = {name: row["start_ns"] + row["duration_ns"] for name, row in by_name.items()}
    assert end["second"] < end["first"] <= by_name["after"]["start_ns"]
    assert by_name["second"]["parent"] == by_name["first"]["id"]
    assert by_name["after"]["parent"] is None
    assert set(spans["status"]) == {"ok"}


def test_the_first_of_two_generators_ends_first(recorded: Run) -> None:
    """When the outer generator ends before the inner one, both ends are their own."""
    first, second = batches("first", 1), batches("second", 5)
    next(first)
    next(second)
    assert list(first) == []
    with recorded.span("between"):
        pass
    assert list(second) == [1, 2, 3, 4]
    with recorded.span("after"):
        pass
    spans = finished(recorded)
    by_name = {row["name"]: row for row in spans.iter_rows(named=True)}
    end = {name: row["start_ns"] + row["duration_ns"] for name, row in by_name.items()}
    assert end["first"] <= by_name["between"]["start_ns"] < end["second"]
    assert by_name["after"]["parent"] is None
    assert set(spans["status"]) == {"ok"}


def test_two_generators_of_one_name_closed_out_of_order(recorded: Run) -> None:
    """Both get an end, and nothing stays open, although the recorder cannot distinguish them."""
    first, second = batches("same", 5, i=1), batches("same", 5, i=2)
    next(first)
    next(second)
    first.close()
    second.close()
    with recorded.span("after"):
        pass
    spans = finished(recorded)
    assert statuses(spans)["same", "ok"] == 2
    assert edges(spans)["after", None] == 1
    assert attributes(spans, "same") == [{"i": 1}, {"i": 2}]


def test_a_generator_outlives_the_span_of_its_caller(recorded: Run) -> None:
    """Its span keeps its parent and ends when it does; later spans are not its children."""
    with recorded.span("outer"):
        generator = batches("batches")
        next(generator)
    with recorded.span("later"):
        pass
    assert list(generator) == [1, 2]
    with recorded.span("after"):
        pass
    spans = finished(recorded)
    pairs = edges(spans)
    assert pairs["outer", None] == pairs["batches", "outer"] == 1
    assert pairs["later", None] == pairs["after", None] == 1
    assert set(spans["status"]) == {"ok"}
    by_name = {row["name"]: row for row in spans.iter_rows(named=True)}
    end = {name: row["start_ns"] + row["duration_ns"] for name, row in by_name.items()}
    assert end["outer"] <= by_name["later"]["start_ns"] < end["batches"]


def test_an_unfinished_generator_survives_roll_overs(recorded: Run) -> None:
    """An orphaned span is carried over two segments and then ends as it should."""
    with recorded.span("outer"), recorded.span("middle"):
        generator = batches("batches", 2, note="kept")
        next(generator)
    for _ in range(2 * SLOTS):
        with recorded.span("step"):
            pass
    generator.close()
    spans = finished(recorded)
    assert edges(spans) == {
        ("outer", None): 1,
        ("middle", "outer"): 1,
        ("batches", "middle"): 1,
        ("load", "batches"): 1,
        ("step", None): 2 * SLOTS,
    }
    assert attributes(spans, "batches") == [{"note": "kept"}]
    assert statuses(spans)["batches", "ok"] == 1
    last_step = spans.filter(pl.col("name") == "step")["start_ns"].max()
    batches_span = spans.row(by_predicate=pl.col("name") == "batches", named=True)
    assert batches_span["start_ns"] + batches_span["duration_ns"] > last_step


def test_forgotten_generators_do_not_pile_up(recorded: Run) -> None:
    """Of a thousand generators left open the recorder keeps a few; the rest count as unfinished."""
    kept = []
    for _ in range(1000):
        with recorded.span("caller"):
            kept.append(batches("batches"))
            next(kept[-1])
    opened = stepwell.open_run(recorded.path).open_spans().collect()
    assert 0 < opened.height <= 64
    for generator in kept:
        generator.close()
    with recorded.span("after"):
        pass
    spans = finished(recorded)
    assert edges(spans) == {
        ("caller", None): 1000,
        ("batches", "caller"): 1000,
        ("load", "batches"): 1000,
        ("after", None): 1,
    }
    assert statuses(spans)["batches", "unfinished"] == 1000 - opened.height
    assert statuses(spans)["batches", "ok"] == opened.height


def test_a_generator_closed_in_another_thread(recorded: Run) -> None:
    """Its span cannot be found there; the spans of that thread are left alone."""
    generator = batches("batches")
    next(generator)

    def work() -> None:
        with stepwell.span("thread"):
            generator.close()
            with stepwell.span("inside"):
                pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    spans = finished(recorded)
    assert edges(spans) == {
        ("batches", None): 1,
        ("load", "batches"): 1,
        ("thread", None): 1,
        ("inside", "thread"): 1,
    }
    assert statuses(spans)["batches", "unfinished"] == 1
    assert statuses(spans)["thread", "ok"] == statuses(spans)["inside", "ok"] == 1
