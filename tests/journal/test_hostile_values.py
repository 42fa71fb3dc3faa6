"""Objects that fail when they are looked at cost their own value and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stepwell import Run
from stepwell.journal import metrics, names
from tests.journal.readback import carried_by_all, events_of, parse_strictly, spans_of, values_of


class Raises:
    """Raises whatever is asked of it."""

    def _fail(self, *_: Any) -> Any:
        raise RuntimeError("do not look at me")

    __repr__ = __str__ = __float__ = __int__ = __index__ = __len__ = __iter__ = __bool__ = _fail


class RaisesOnAttributes:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        return "odd"


class BadText(str):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class BadMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no items")

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


HOSTILE = [Raises(), RaisesOnAttributes(), BadText("x"), BadMapping()]
IDS = [type(value).__name__ for value in HOSTILE]


@pytest.mark.parametrize("value", HOSTILE, ids=IDS)
def test_a_value_that_fails_costs_no_other_metric(run: Run, value: Any) -> None:
    """Logging it raises nothing, and the numbers before and after it are kept."""
    run.log({"before": 1.0, "bad": value, "after": 2.0})
    run.log({"before": 3.0, "bad": [value], "after": 4.0})
    assert values_of(run) == {"before": [1.0, 3.0], "after": [2.0, 4.0]}


@pytest.mark.parametrize("value", HOSTILE, ids=IDS)
def test_an_attribute_that_fails_is_replaced_by_a_description(run: Run, value: Any) -> None:
    """Its neighbours are kept; in its place is its type between angle brackets."""
    for attributes in carried_by_all(run, good=1, bad=value, deep=[{"bad": value}, 2]):
        assert (attributes["good"], attributes["deep"][1]) == (1, 2)
        for shown in (attributes["bad"], attributes["deep"][0]["bad"]):
            assert shown == "x" or str(shown).startswith(f"<{type(value).__name__}: ")


def test_a_metric_name_that_fails_costs_no_other_metric(run: Run) -> None:
    """A key whose str() raises is described; the numbers before and after it are kept."""
    run.log({"before": 1.0, Raises(): 2.0, "after": 3.0})  # type: ignore[dict-item]
    shown = "<Raises: unreadable, RuntimeError>"
    assert values_of(run) == {"before": [1.0], shown: [2.0], "after": [3.0]}


@pytest.mark.parametrize("value", [None, 5, 0.5, "loss", ["loss"], [], object(), Raises(), {1, 2}])
def test_logging_something_else_than_a_dict_is_one_warning(
    run: Run, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    """However often it happens, one warning says what to write; nothing is raised."""
    for _ in range(3):
        run.log(value)
        run.log({"loss": 1.0})
        run.log(value)
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    kind = type(value).__name__
    assert said == [
        f'log() takes a dict such as {{"loss": 0.3}}, got {kind}. Nothing was recorded.'
    ]
    assert values_of(run) == {"loss": [1.0, 1.0, 1.0]}


def test_a_dict_that_contains_itself_is_followed_for_a_while(run: Run) -> None:
    """A cycle in logged values ends by itself, and later values are recorded."""
    values: dict[str, Any] = {"x": 1.0}
    values["again"] = values
    run.log(values)
    run.log({"later": 2.0})
    recorded_values = values_of(run)
    assert (recorded_values["x"], recorded_values["again/x"], recorded_values["later"]) == (
        [1.0],
        [1.0],
        [2.0],
    )
    assert len(recorded_values) < 100


def test_structures_that_contain_themselves_are_cut(run: Run) -> None:
    """Cycles in attributes end in a description, also when each level refers back many times."""
    cycle: list[Any] = []
    cycle += [cycle] * 50
    mapping: dict[str, Any] = {"n": 1}
    mapping["self"] = mapping
    for attributes in carried_by_all(run, mapping=mapping):
        assert attributes["mapping"]["self"]["self"]["n"] == 1
        assert "nested too deeply" in str(attributes)
    with run.span("wide", cycle=cycle):
        pass
    assert "cut" in str(spans_of(run)[-1])


def test_deeply_nested_attributes_are_cut(run: Run) -> None:
    """A hundred thousand lists inside each other neither crash nor hide their neighbour."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for attributes in carried_by_all(run, deep=deep, beside=1):
        assert attributes["beside"] == 1
        assert "<list: nested too deeply>" in str(attributes["deep"])
    while deep:  # taken apart by hand: CPython itself would recurse
        deep = deep[0]


def test_a_huge_dict_is_cut_and_says_so(run: Run) -> None:
    """Of a dict of a million keys the beginning is kept, or a note of its size; never all of it."""
    huge = {f"key {i}": i for i in range(1_000_000)}
    for attributes in carried_by_all(run, huge=huge, beside=1):
        assert attributes["beside"] == 1
        assert attributes["huge"]["key 0"] == 0
        assert attributes["huge"]["cut"] == "<1000000 items>"
        assert len(attributes["huge"]) == 1001


def test_an_attribute_set_is_bounded_however_it_is_made(run: Run) -> None:
    """No shape of attributes makes a record of more than 64 KiB; an artifact keeps its sha256."""
    large = {f"k{i}": "t" * 300 for i in range(900)}
    for attributes in carried_by_all(run, **large):
        assert len(str(attributes)) < 1 << 16
        assert "cut" in attributes
    wide = [[["x"] * 500] * 500] * 2
    run.event("wide", wide=wide)
    assert len(str(events_of(run)[-1])) < 1 << 16


def test_more_names_than_the_table_holds_share_one(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past the limit values are kept under "(too many names)", with one warning."""
    run.log({"known": 1.0})
    monkeypatch.setattr(names, "MAX_NAMES", len(names.names.ids) + 2)
    run.log({f"over {i}": float(i) for i in range(5)})
    run.log({f"over {i}": float(i) for i in range(5)})
    run.log({"known": 2.0})
    values = values_of(run)
    assert values["known"] == [1.0, 2.0]
    assert (values["over 0"], values["over 1"]) == ([0.0, 0.0], [1.0, 1.0])
    assert values["(too many names)"] == [2.0, 3.0, 4.0, 2.0, 3.0, 4.0]
    assert [r.getMessage()[:9] for r in caplog.records if r.levelno >= logging.WARNING] == [
        "More than"
    ]
    with run.span("also over", x=1):
        pass
    assert spans_of(run) == [("(too many names)", {"x": 1})]
    assert "over 4" not in metrics._words


def test_an_error_that_cannot_be_printed_ends_span_and_run_all_the_same(run: Run) -> None:
    """The exception reaches the caller untouched, and process.json says which type it was."""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    raised = Unprintable()
    with pytest.raises(Unprintable) as caught, run, run.span("work"):
        raise raised
    assert caught.value is raised
    [document] = run.path.glob("*/process.json")
    content = parse_strictly(document.read_text())
    assert content["status"] == "failed"
    assert content["error"]["type"].endswith("Unprintable")
    [(name, attributes)] = events_of(run)
    assert (name, attributes["exception_message"]) == (
        "error",
        "<Unprintable: unreadable, RuntimeError>",
    )


def test_each_exception_is_recorded_once_on_its_innermost_span(run: Run) -> None:
    """Errors that follow each other are all recorded, however Python reuses their memory."""
    for i in range(20):
        try:
            with run.span("outer"), run.span("inner"):
                raise ValueError(i)
        except ValueError:
            pass
    messages = [attributes["exception_message"] for _, attributes in events_of(run)]
    assert messages == [str(i) for i in range(20)]


def test_a_thread_with_a_very_long_name_records(run: Run) -> None:
    """A name longer than a segment's header page is cut; what the thread recorded is all there."""
    import threading

    def work() -> None:
        with run.span("in the thread"):
            run.log({"x": 1.0})

    thread = threading.Thread(target=work, name="t🙂" * 5000)
    thread.start()
    thread.join()
    assert values_of(run) == {"x": [1.0]}
    assert spans_of(run) == [("in the thread", {})]
