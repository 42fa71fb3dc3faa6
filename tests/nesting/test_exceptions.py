"""Exceptions pass through spans unchanged and are recorded once, where they were raised."""

from __future__ import annotations

import traceback

import pytest

import stepwell
from stepwell import Run
from tests.nesting.tree import SLOTS, attributes, edges, events, finished, statuses


def fail(message: str) -> None:
    raise ValueError(message)


def test_an_exception_is_an_error_of_every_span_it_leaves(recorded: Run) -> None:
    """Each span that it passes through has the status error; the innermost has one event."""

    def work() -> None:
        with recorded.span("outer"), recorded.span("middle"):
            with recorded.span("before"):
                pass
            with recorded.span("inner", i=1):
                fail("too cold")

    with pytest.raises(ValueError, match="too cold"):
        work()
    with recorded.span("after"):
        pass
    spans = finished(recorded)
    assert dict(spans.select("name", "status").iter_rows()) == {
        "outer": "error",
        "middle": "error",
        "before": "ok",
        "inner": "error",
        "after": "ok",
    }
    assert edges(spans)["after", None] == 1
    assert events(recorded) == [
        ("error", "inner", {"exception_type": "ValueError", "exception_message": "too cold"})
    ]


def test_an_exception_is_passed_on_untouched(recorded: Run) -> None:
    """The very object arrives, with cause and attributes, and no frame of ours in its traceback."""
    error = ValueError("mine")
    error.__cause__ = KeyError("why")
    outer, inner = recorded.span("outer", a=1), recorded.span("inner")
    with pytest.raises(ValueError, match="mine") as caught, outer, inner:
        raise error
    assert caught.value is error
    assert isinstance(error.__cause__, KeyError)
    assert error.__context__ is None
    assert error.args == ("mine",)
    assert not hasattr(error, "__notes__")
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.filename for frame in frames] == [__file__]


def test_a_caught_exception_is_an_error_of_the_inner_span_alone(recorded: Run) -> None:
    """Where it is caught the spans further out are ok."""
    with recorded.span("outer"):
        try:
            with recorded.span("inner"):
                fail("caught")
        except ValueError:
            pass
    spans = finished(recorded)
    assert statuses(spans) == {("outer", "ok"): 1, ("inner", "error"): 1}


def test_every_exception_is_recorded(recorded: Run) -> None:
    """A hundred exceptions are a hundred events, though Python reuses the memory of each."""
    for i in range(100):
        try:
            with recorded.span("try", i=i):
                fail(f"number {i}")
        except ValueError:
            pass
    with recorded.span("outer"):
        for i in range(100, 200):
            try:
                if i % 2:
                    fail(f"number {i}")
                else:
                    with recorded.span("try", i=i):
                        fail(f"number {i}")
            except ValueError:
                pass
    recorded.finish()
    expected = [f"number {i}" for i in range(200) if i < 100 or i % 2 == 0]
    assert [entry["exception_message"] for _, _, entry in events(recorded)] == expected
    assert {span for _, span, _ in events(recorded)} == {"try"}


def test_an_exception_after_a_caught_one_is_recorded_too(recorded: Run) -> None:
    """A second exception in the same span is recorded as well."""

    @recorded.span("outer")
    def work() -> None:
        try:
            with recorded.span("inner"):
                fail("first")
        except ValueError:
            pass
        fail("second")

    with pytest.raises(ValueError, match="second"):
        work()
    recorded.finish()
    assert [(span, entry["exception_message"]) for _, span, entry in events(recorded)] == [
        ("inner", "first"),
        ("outer", "second"),
    ]


def test_an_exception_raised_from_another(recorded: Run) -> None:
    """The new exception has its own event on the span where it was raised."""

    @recorded.span("middle")
    def work() -> None:
        try:
            with recorded.span("inner"):
                fail("cause")
        except ValueError as error:
            raise RuntimeError("wrapped") from error

    with pytest.raises(RuntimeError, match="wrapped"), recorded.span("outer"):
        work()
    recorded.finish()
    assert [(span, entry["exception_type"]) for _, span, entry in events(recorded)] == [
        ("inner", "ValueError"),
        ("middle", "RuntimeError"),
    ]


def test_an_exception_passes_spans_that_are_entered_on_its_way(recorded: Run) -> None:
    """Spans of a clean-up do not make the same exception a second event."""

    @recorded.span("outer")
    def work() -> None:
        try:
            with recorded.span("inner"):
                fail("once")
        finally:
            with recorded.span("clean up"):
                try:
                    with recorded.span("clean up inside"):
                        fail("other")
                except ValueError:
                    pass

    with pytest.raises(ValueError, match="once"):
        work()
    spans = finished(recorded)
    assert statuses(spans)["clean up", "ok"] == 1
    assert [(span, entry["exception_message"]) for _, span, entry in events(recorded)] == [
        ("inner", "once"),
        ("clean up inside", "other"),
    ]


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit, StopAsyncIteration])
def test_the_end_of_an_iteration_is_no_error(recorded: Run, kind: type[BaseException]) -> None:
    """StopIteration and its like leave spans ok, without an event, and are passed on."""
    with pytest.raises(kind), recorded.span("outer"), recorded.span("inner", a=1):
        raise kind
    spans = finished(recorded)
    assert set(spans["status"]) == {"ok"}
    assert events(recorded) == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_inside_spans(recorded: Run, kind: type[BaseException]) -> None:
    """KeyboardInterrupt and SystemExit leave through spans as any exception does."""
    with pytest.raises(kind), recorded.span("outer"), recorded.span("inner"):
        raise kind("stop")
    with recorded.span("after"):
        pass
    spans = finished(recorded)
    assert statuses(spans) == {("outer", "error"): 1, ("inner", "error"): 1, ("after", "ok"): 1}
    assert edges(spans)["after", None] == 1
    assert events(recorded) == [
        ("error", "inner", {"exception_type": kind.__name__, "exception_message": "stop"})
    ]


def test_an_exception_whose_text_cannot_be_had(recorded: Run) -> None:
    """An exception that cannot be printed is recorded by its type, and passed on."""

    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with pytest.raises(OddError), recorded.span("work"):
        raise OddError
    recorded.finish()
    ((name, span, about),) = events(recorded)
    assert (name, span) == ("error", "work")
    assert about["exception_type"].endswith("OddError")
    assert about["exception_message"] == "<OddError: unreadable, RuntimeError>"


def test_an_exception_in_a_span_that_began_in_an_earlier_segment(recorded: Run) -> None:
    """Status and event go to the span itself, not to its place in the new segment."""

    @recorded.span("epoch", i=7)
    def work() -> None:
        for _ in range(SLOTS + 5):
            with recorded.span("step"):
                pass
        fail("late")

    with pytest.raises(ValueError, match="late"):
        work()
    spans = finished(recorded)
    assert statuses(spans) == {("epoch", "error"): 1, ("step", "ok"): SLOTS + 5}
    assert attributes(spans, "epoch") == [{"i": 7}]
    assert [(name, span) for name, span, _ in events(recorded)] == [("error", "epoch")]


def test_an_exception_that_leaves_the_run_fails_it(recorded: Run) -> None:
    """Leaving the run's own context by an exception makes its status failed, with the reason."""
    with pytest.raises(ValueError, match="fatal"), recorded, recorded.span("work"):
        fail("fatal")
    run = stepwell.open_run(recorded.path)
    assert run.status == "failed"
    assert run.processes().collect()["error"].to_list() == ["ValueError: fatal"]


def test_an_interrupt_that_leaves_the_run(recorded: Run) -> None:
    """Leaving the run's own context by Ctrl-C makes its status interrupted."""
    with pytest.raises(KeyboardInterrupt), recorded, recorded.span("work"):
        raise KeyboardInterrupt
    assert stepwell.open_run(recorded.path).status == "interrupted"
