"""Deep nesting, long-open spans and segment roll-overs keep the tree right."""

from __future__ import annotations

import json

import polars as pl
import pytest

import stepwell
from stepwell import Run
from tests.nesting.tree import SLOTS, attributes, edges, finished, read, statuses


def descend(levels: int) -> None:
    if levels:
        with stepwell.span("level", left=levels):
            descend(levels - 1)


def test_a_recursion_is_a_chain(recorded: Run) -> None:
    """A span entered 500 times inside itself is a chain of 500, each with its own attributes."""
    descend(500)
    spans = finished(recorded)
    assert spans["depth"].to_list() == list(range(500))
    assert spans["parent"].to_list() == [None, *spans["id"].to_list()[:-1]]
    assert attributes(spans, "level") == [{"left": 500 - i} for i in range(500)]
    assert statuses(spans) == {("level", "ok"): 500}
    # Inner ones end first.
    ends = (spans["start_ns"] + spans["duration_ns"]).to_list()
    assert ends == sorted(ends, reverse=True)


def test_a_recursion_goes_on_over_a_roll_over(recorded: Run) -> None:
    """A chain that is open when its segment is full keeps ids, parents, starts and attributes."""
    for _ in range(SLOTS - 250):
        with stepwell.span("before"):
            pass
    descend(500)
    spans = finished(recorded)
    levels = spans.filter(pl.col("name") == "level")
    assert levels["depth"].to_list() == list(range(500))
    assert attributes(spans, "level") == [{"left": 500 - i} for i in range(500)]
    assert edges(spans) == {
        ("before", None): SLOTS - 250,
        ("level", None): 1,
        ("level", "level"): 499,
    }
    assert len(segments_of(recorded)) == 2


def segments_of(run: Run) -> set[int]:
    """Numbers of the segments in which the spans of a run began."""
    spans = stepwell.open_run(run.path).spans().collect()
    return {(number & 0xFFFFFFFF) >> 14 for number in spans["id"]}


def test_an_epoch_is_the_parent_of_all_its_steps(recorded: Run) -> None:
    """Two spans open for 100,000 children have each of them as a child, over seven segments."""
    with recorded.span("job", who="me"), recorded.span("epoch", number=3):
        for i in range(100_000):
            with recorded.span("step"):
                if i % 25_000 == 0:
                    recorded.event("mark", i=i)
    spans = finished(recorded)
    assert edges(spans) == {("job", None): 1, ("epoch", "job"): 1, ("step", "epoch"): 100_000}
    assert attributes(spans, "job") == [{"who": "me"}]
    assert attributes(spans, "epoch") == [{"number": 3}]
    assert set(spans["status"]) == {"ok"}
    # 100,002 spans, and for each roll-over two open spans with a link each: 7 × 16383 = 114681.
    assert len(segments_of(recorded)) == 7
    first = spans.row(0, named=True)
    latest_end = (spans["start_ns"] + spans["duration_ns"]).max()
    assert first["name"] == "job"
    assert first["start_ns"] + first["duration_ns"] == latest_end


def test_events_know_their_span_over_a_roll_over(recorded: Run) -> None:
    """An event on a span that began in an earlier segment names that span."""
    with recorded.span("epoch"):
        recorded.event("early")
        for _ in range(SLOTS + 10):
            with recorded.span("step"):
                pass
        recorded.event("late")
        with recorded.span("step"):
            recorded.event("inside")
    spans = finished(recorded)
    epoch = spans.filter(pl.col("name") == "epoch")["id"].item()
    events = stepwell.open_run(recorded.path).events().collect()
    span_by_event = dict(events.select("name", "span").iter_rows())
    assert span_by_event["early"] == span_by_event["late"] == epoch
    assert span_by_event["inside"] == spans["id"].to_list()[-1]


def test_a_reader_sees_long_open_spans_as_open(recorded: Run) -> None:
    """While it is open, a span that was carried over a roll-over is listed once, as open."""
    with recorded.span("job"), recorded.span("epoch", number=1):
        for _ in range(3 * SLOTS):
            with recorded.span("step"):
                pass
        spans = read(recorded)
        opened = stepwell.open_run(recorded.path).open_spans().collect()
    assert statuses(spans) == {("job", "open"): 1, ("epoch", "open"): 1, ("step", "ok"): 3 * SLOTS}
    assert opened.select("name", "depth", "attributes").rows() == [
        ("job", 0, None),
        ("epoch", 1, '{"number":1}'),
    ]
    assert opened["id"].to_list() == spans["id"].to_list()[:2]


def test_attributes_may_fill_their_space_before_the_slots_are_full(recorded: Run) -> None:
    """Sets of 1000 bytes fill the 1 MiB beside a segment after a thousand spans: none is lost."""
    text = "x" * 1000
    with recorded.span("epoch", note="kept"):
        for i in range(3000):
            with recorded.span("step", i=i, text=text):
                pass
    spans = finished(recorded)
    assert [entry["i"] for entry in attributes(spans, "step")] == list(range(3000))
    assert {entry["text"] for entry in attributes(spans, "step")} == {text}
    assert attributes(spans, "epoch") == [{"note": "kept"}]
    assert edges(spans) == {("epoch", None): 1, ("step", "epoch"): 3000}
    # (1 MiB - 4096) / 1024 = 1020 sets a segment, one of them the epoch's, so three segments.
    assert len(segments_of(recorded)) == 3


def test_each_roll_over_happens_at_any_depth(recorded: Run) -> None:
    """Whatever slot a roll-over falls on, attributes included, the tree below it is right."""
    for i in range(4000):
        with recorded.span("a", i=i), recorded.span("b"), recorded.span("c", i=i):
            for _ in range(7):
                with recorded.span("d"):
                    pass
    spans = finished(recorded)
    assert edges(spans) == {
        ("a", None): 4000,
        ("b", "a"): 4000,
        ("c", "b"): 4000,
        ("d", "c"): 28_000,
    }
    assert [entry["i"] for entry in attributes(spans, "a")] == list(range(4000))
    assert [entry["i"] for entry in attributes(spans, "c")] == list(range(4000))


@pytest.mark.full
def test_more_open_spans_than_a_segment_can_carry(recorded: Run) -> None:
    """With 5,000 spans open at a roll-over the outermost are given up, the rest stay right."""
    spans_open = [stepwell.span("deep", i=i) for i in range(5000)]
    for span in spans_open:
        span.__enter__()
    for _ in range(SLOTS):
        with stepwell.span("leaf"):
            pass
    for span in reversed(spans_open):
        span.__exit__(None, None, None)
    recorded.finish()
    spans = stepwell.open_run(recorded.path).spans().collect()
    deep = spans.filter(pl.col("name") == "deep").sort("start_ns", "id")
    assert [json.loads(text)["i"] for text in deep["attributes"]] == list(range(5000))
    assert deep["status"].to_list()[-3900:] == ["ok"] * 3900
    assert set(deep["status"]) == {"ok", "unfinished"}
    innermost = deep["id"].to_list()[-1]
    assert set(spans.filter(pl.col("name") == "leaf")["parent"]) == {innermost}
