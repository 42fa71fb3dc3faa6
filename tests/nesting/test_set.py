"""``span.set`` adds attributes to an open span, in whichever segment it is."""

from __future__ import annotations

import polars as pl

import stepwell
from stepwell import Run
from tests.nesting.tree import SLOTS, attributes, edges, events, finished, read


def test_set_adds_to_what_is_there(recorded: Run) -> None:
    """New keys are added, old ones replaced, and the next entry starts with none of them."""
    with recorded.span("step", a=1, b=2) as step:
        step.set(b=3, c=[1, 2])
        step.set(d=None)
    with step:
        pass
    bare = stepwell.span("bare")
    with bare:
        bare.set(x=1)
    with bare:
        pass
    spans = finished(recorded)
    assert attributes(spans, "step") == [{"a": 1, "b": 3, "c": [1, 2], "d": None}, {"a": 1, "b": 2}]
    assert attributes(spans, "bare") == [{"x": 1}, None]


def test_set_reaches_a_span_that_is_not_the_innermost(recorded: Run) -> None:
    """An outer span is found by its name inside other spans, and keeps its place in the tree."""
    with recorded.span("outer", a=1) as outer, recorded.span("inner", b=1):
        outer.set(loss=0.5)
        with recorded.span("last"):
            outer.set(more=True)
    spans = finished(recorded)
    assert attributes(spans, "outer") == [{"a": 1, "loss": 0.5, "more": True}]
    assert attributes(spans, "inner") == [{"b": 1}]
    assert edges(spans) == {("outer", None): 1, ("inner", "outer"): 1, ("last", "inner"): 1}


def test_set_in_a_recursion_means_the_innermost(recorded: Run) -> None:
    """Each level of a recursion has what was set while it was the innermost."""
    level = stepwell.span("level")

    def descend(depth: int) -> None:
        with level:
            level.set(down=depth)
            if depth < 20:
                descend(depth + 1)
            level.set(up=depth)

    descend(0)
    expected = [{"down": n, "up": n} for n in range(21)]
    assert attributes(finished(recorded), "level") == expected


def test_set_on_a_span_that_began_in_an_earlier_segment(recorded: Run) -> None:
    """Attributes set before, between and after roll-overs are all there in the end."""
    with recorded.span("epoch", number=1) as epoch:
        for part in range(3):
            epoch.set(**{f"part {part}": part})
            for _ in range(SLOTS):
                with recorded.span("step"):
                    pass
        epoch.set(end=True)
        (seen,) = attributes(read(recorded), "epoch")
    expected = {"number": 1, "part 0": 0, "part 1": 1, "part 2": 2, "end": True}
    assert seen == expected
    assert attributes(finished(recorded), "epoch") == [expected]


def test_set_itself_may_fill_the_space_for_attributes(recorded: Run) -> None:
    """Setting an attribute thousands of times rolls over as often as it must; the last one counts."""
    with recorded.span("outer", kept="yes"), recorded.span("loop") as loop:
        for i in range(5000):
            loop.set(i=i, text="y" * 1000)
        with recorded.span("inside"):
            pass
    spans = finished(recorded)
    assert attributes(spans, "loop") == [{"i": 4999, "text": "y" * 1000}]
    assert attributes(spans, "outer") == [{"kept": "yes"}]
    assert edges(spans) == {("outer", None): 1, ("loop", "outer"): 1, ("inside", "loop"): 1}


def test_set_on_a_span_that_is_not_open_does_nothing(recorded: Run) -> None:
    """Neither before, after nor without a run does ``set`` fail or change another span."""
    span = stepwell.span("span")
    span.set(a=1)
    with span:
        pass
    span.set(a=2)
    with recorded.span("other"):
        span.set(a=3)
    spans = finished(recorded)
    span.set(a=4)
    assert attributes(spans, "span") == [None]
    assert attributes(spans, "other") == [None]


def test_attributes_of_any_size_keep_their_span(recorded: Run) -> None:
    """Sets from nothing to a few kilobytes, one after the other, are read back unchanged."""
    sizes = [*range(64), 500, 1000, 4000, 8000, 8, 0]
    for size in sizes:
        with recorded.span("s", text="z" * size):
            pass
    entries = attributes(finished(recorded), "s")
    assert [len(item["text"]) for item in entries] == sizes


def test_events_are_on_the_innermost_open_span(recorded: Run) -> None:
    """An event belongs to the span it happened in, after an inner one to the outer one again."""
    recorded.event("root")
    with recorded.span("outer"):
        recorded.event("one")
        with recorded.span("inner"):
            recorded.event("two", x=1)
            stepwell.event("three")
        recorded.event("four")
    recorded.event("five")
    recorded.finish()
    assert events(recorded) == [
        ("root", None, {}),
        ("one", "outer", {}),
        ("two", "inner", {"x": 1}),
        ("three", "inner", {}),
        ("four", "outer", {}),
        ("five", None, {}),
    ]


def test_steps_and_epochs_are_those_of_the_moment(recorded: Run) -> None:
    """Spans, events and metrics carry the step and epoch at which they began."""
    with recorded.span("before"):
        recorded.set_step(0, epoch=0)
        for epoch in range(2):
            for step in range(2):
                recorded.set_step(2 * epoch + step, epoch=epoch)
                with recorded.span("step"):
                    recorded.event("mark")
                recorded.log({"loss": 1.0})
    spans = finished(recorded)
    run = stepwell.open_run(recorded.path)
    expected = [(0, 0), (1, 0), (2, 1), (3, 1)]
    step = spans.filter(pl.col("name") == "step")
    assert step.select("step", "epoch").rows() == expected
    assert run.events().collect().select("step", "epoch").rows() == expected
    assert run.metrics().collect().select("step", "epoch").rows() == expected
    assert spans.select("step", "epoch").row(0) == (None, None)
